"""The embedded world: what is shipped is what make.py describes."""
import json
import os
import random
import sys

import pytest
import torch
from conftest import TINY

import common
import ngrpo

sys.path.insert(0, TINY)
import make  # noqa: E402


def rows(name):
    with open(os.path.join(TINY, name)) as f:
        return [json.loads(line) for line in f]


def test_small_and_ordinary():
    size = sum(os.path.getsize(os.path.join(TINY, "learner", f)) for f in os.listdir(os.path.join(TINY, "learner")))
    assert size < 2e6 and os.path.exists(os.path.join(TINY, "learner", "model.safetensors"))


def test_ids_survive_the_reload():
    """AutoTokenizer once put its own class in place of ours and dropped words without a word (model_type qwen2)."""
    _, tokenizer, _, V = common.load_model(f"{TINY}/learner")
    for row in rows("easy_train.jsonl")[:200] + rows("easy_test.jsonl")[:100]:
        for text in [row["question"] + "\n"] + [r["text"] for r in row["rephrasings"]] + ["12+7=19;19-4=15;\\boxed{15}"]:
            ids = tokenizer(text).input_ids
            assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
            assert tokenizer.unk_token_id not in ids and max(ids) < V
    assert make.make_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_train_and_test_share_no_sum():
    """Disjoint by numbers and operations, not only by text."""
    train, test = ({(r["id"].split("-")[0], r["worked"]) for r in rows(f"easy_{n}.jsonl")} for n in ("train", "test"))
    assert len(train) == 1200 and len(test) == 320 and not train & test
    for row in rows("easy_train.jsonl") + rows("easy_test.jsonl"):
        assert len({row["question"], *(r["text"] for r in row["rephrasings"])}) == 4


def test_problems_are_what_the_seed_makes():
    assert make.problem_set(random.Random("0 train"), 1200, test=False) == rows("easy_train.jsonl")
    assert make.problem_set(random.Random("0 test"), 320, test=True) == rows("easy_test.jsonl")


def test_answers_are_right():
    """Every gold follows from the worked solution, whose every step is checked by arithmetic."""
    rng = random.Random(1)
    for _ in range(500):
        p = make.make_problem(rng, rng.choice(make.KINDS))
        text = make.solve(p, "worked", rng)
        for step in text.split(";")[:-1]:
            left, right = step.split("=")
            assert {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[next(c for c in left if c in "+-*")](
                *map(int, left.replace("+", " ").replace("-", " ").replace("*", " ").split())) == int(right)
        assert text.endswith(f"\\boxed{{{right}}}")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    out = tmp_path_factory.mktemp("start")
    ngrpo.main(["--steps", "0", "--eval_problems", "200", "--eval_samples", "16", "--ks", "1", "16", "--out", str(out)])
    return next(r for r in map(json.loads, open(out / "metrics.jsonl")) if r["kind"] == "eval")


def test_it_starts_where_there_is_something_to_learn(start):
    assert .25 <= start["pass@1"] <= .4 and start["pass@16"] >= .85
    assert torch.get_num_threads() == 1
