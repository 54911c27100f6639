"""The embedded world: what is shipped is what make.py describes."""
import functools
import json
import os
import random
import re
import sys

import pytest
import torch
from conftest import TINY
from test_knights import parse, solutions

import common
import ngrpo
from grpo_sg import knights_reward

sys.path.insert(0, TINY)
import make  # noqa: E402


def rows(name):
    if name == "knights/test.jsonl":                    # a file for each number of people: a table for each
        return rows("knights/test_2.jsonl") + rows("knights/test_3.jsonl")
    with open(os.path.join(TINY, name)) as f:
        return [json.loads(line) for line in f]


LEARNERS = ("learner", "rephrase/learner", "explore/learner", "explore/explorer")
SETS = ("easy_train", "easy_test", "rephrase/train", "rephrase/test", "explore/train", "explore/test")


@pytest.mark.parametrize("name", LEARNERS)
def test_small_and_ordinary(name):
    folder = os.path.join(TINY, name)
    assert sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)) < 2e6
    assert "model.safetensors" in os.listdir(folder)
    model, tokenizer, eos_ids, V = common.load_model(folder)
    assert tokenizer.get_vocab() == make.make_tokenizer().get_vocab() and V == len(tokenizer)   # the same ids in all
    assert eos_ids.tolist() == [tokenizer.eos_token_id] and model.config.model_type == "llama"


def test_ids_survive_the_reload():
    """AutoTokenizer once put its own class in place of ours and dropped words without a word (model_type qwen2)."""
    _, tokenizer, _, V = common.load_model(f"{TINY}/learner")
    for row in rows("easy_train.jsonl")[:200] + rows("easy_test.jsonl")[:100]:
        for text in [row["question"] + "\n"] + [r["text"] for r in row["rephrasings"]] + ["12+7=19;19-4=15;\\boxed{15}"]:
            ids = tokenizer(text).input_ids
            assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
            assert tokenizer.unk_token_id not in ids and max(ids) < V


@pytest.mark.parametrize("world", ["easy_", "rephrase/", "explore/"])
def test_train_and_test_share_no_sum(world):
    """Disjoint by numbers and operations, not only by text, so that held out is held out (trl PR5790); and the files
    are what the seed makes."""
    train, test = ({(r["id"].split("-")[0], r["worked"]) for r in rows(world + n + ".jsonl")} for n in ("train", "test"))
    assert len(train) == 1200 and len(test) == 320 and not train & test
    for row in rows(world + "train.jsonl") + rows(world + "test.jsonl"):
        assert len({row["question"], *(r["text"] for r in row["rephrasings"])}) == 4
    for name, held, count in (("train", False, 1200), ("test", True, 320)):
        rng, styles = random.Random("0 " + (world + name).replace("/", "")), (3,) if "rephrase" in world else range(4)
        assert make.problem_set(rng, count, held, styles=tuple(styles)) == rows(world + name + ".jsonl")


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


# --- knights and knaves --------------------------------------------------------------------------------------

def sayings(row):
    """What each person says, read back from the question's own words."""
    names, told = re.search(r"Meet (.*?)\. (.*) Who is what\?", row["question"]).groups()
    names, told = re.split(", | and ", names), re.findall(r"[^.]+\.", told)
    assert len(names) == len(set(names)) == len(told) == row["people"]
    for name, sentence in zip(names, told):                     # each in turn, in the order in which they are met
        assert re.search(rf"^ ?{name} says: |^ ?{name} swears that |, says {name}\.$", sentence)
    return names, tuple(parse(sentence, names) for sentence in told)


def test_puzzles_have_one_solution():
    """By brute force over what the question says, and the answer is it; ids and files are what the seed makes."""
    for name, held, counts in (("train", False, {2: 200, 3: 600}), ("test", True, {2: 100, 3: 100})):
        puzzles = rows(f"knights/{name}.jsonl")
        assert make.puzzle_set(random.Random(f"0 knights {name}"), counts, held) == puzzles
        assert len({r["id"] for r in puzzles}) == len(puzzles) == sum(counts.values())
        for row in puzzles:
            names, said = sayings(row)
            [knights] = solutions(said)
            assert row["answer"] == "\n".join(f"({i}) {name} is a {'knight' if k else 'knave'}"
                                              for i, (name, k) in enumerate(zip(names, knights), 1))
            assert not any(part == (who, "", "knave") for who, (_, *parts) in enumerate(said) for part in parts)


def test_puzzles_to_train_on_and_to_test_on_say_different_things():
    """Names and manner aside, and even where only the operands of and, or, iff change places."""
    train, test = ([sayings(r)[1] for r in rows(f"knights/{name}.jsonl")] for name in ("train", "test"))
    assert len(set(train)) == 800 and len(set(test)) == 200
    loose = [{tuple((link, *(parts if link == "then" else sorted(parts))) for link, *parts in said) for said in each}
             for each in (train, test)]
    assert not loose[0] & loose[1]


def test_six_kinds_of_saying():
    """Nearly uniform, as in the original: what has one solution hardly depends on the kind."""
    kinds = [link or parts[0][1] for r in rows("knights/train.jsonl") for link, *parts in sayings(r)[1]]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in kinds}
    print(shares)
    assert shares.keys() == {"", "not ", "and", "or", "then", "exactly if"} and .1 < min(shares.values())


def test_worked_reasoning_is_right():
    """Every assignment before the last contradicts itself, the last one does not, and that is what is answered."""
    rng, tokenizer = random.Random(2), make.make_knights_tokenizer()
    for i in range(300):
        p = make.make_puzzle(rng, 2 + i % 2)
        row = dict(people=2 + i % 2, question=make.tell(p))
        names, said = sayings(row)
        gold = "\n".join(make.identify(names, solutions(said)[0]))
        text = make.reason(p, "worked", "right", rng)
        tries = [t.split(":") for t in text.split("</think>")[0].split(" ")[1:]]
        assert [a == b for a, b in tries] == [False] * (len(tries) - 1) + [True] and len({a for a, _ in tries}) == len(tries)
        assert knights_reward(text, gold) == 3 and len(tokenizer(text).input_ids) < 96
        assert knights_reward(make.reason(p, "worked", "crowd", rng), gold) == -1
        assert knights_reward(make.reason(p, "worked", "bent", rng), gold) == -3


def test_knights_learner_is_small_and_its_ids_survive():
    folder = os.path.join(TINY, "knights", "learner")
    assert sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)) < 1e6
    model, tokenizer, eos_ids, V = common.load_model(folder)
    assert tokenizer.get_vocab() == make.make_knights_tokenizer().get_vocab() and V == len(tokenizer)
    assert eos_ids.tolist() == [tokenizer.eos_token_id] and model.config.model_type == "llama"
    rng = random.Random(3)
    for i in range(500):
        p = make.make_puzzle(rng, 2 + i % 2)
        prompt = common.encode_prompt(tokenizer, make.tell(p), "{question}\n<think>")
        ids = tokenizer(make.reason(p, rng.choice(list(make.THINKING)), rng.choice(list(make.ENDING)), rng)).input_ids
        ids, length = prompt + ids, len(ids)
        [text] = common.decode(tokenizer, torch.tensor([ids]), torch.tensor([len(ids)]))        # as a run does
        assert tokenizer(text).input_ids == ids and tokenizer.unk_token_id not in ids
        assert text.startswith(make.tell(p) + "\n<think>") and len(prompt) < 70 and length < 100        # a crowd is longer
    tags = [tokenizer(tag).input_ids for tag in ("<think>", "</think>", "<answer>", "</answer>")]
    assert all(len(ids) == 1 for ids in tags) and not {i for [i] in tags} & set(tokenizer.all_special_ids)


def test_knights_learner_earns_every_reward():
    """Sampled: right a third of the time, and each of the four values is met."""
    model, tokenizer, _, _ = common.load_model(os.path.join(TINY, "knights", "learner"))
    by_size = make.knights_rewards(model, tokenizer, rows("knights/test.jsonl"), 3)
    for size, rewards in [*by_size.items(), ("all", sum(by_size.values(), []))]:
        shares = {value: rewards.count(value) / len(rewards) for value in (3, -.5, -1, -3)}
        print(size, shares)
    assert .2 <= shares[3] <= .5 and min(shares.values()) > .01 and abs(sum(shares.values()) - 1) < 1e-9


# --- the premises of the hard worlds, before any training: 240 held-out questions -----------------------------

N = 240


@functools.lru_cache(None)
def right(name, file, style=None, n=32):
    """(N, n) of right and wrong, and the texts, to the questions in their own phrasing or in another."""
    model, tokenizer, _, _ = common.load_model(os.path.join(TINY, name))
    problems = rows(file)[:N]
    asked = problems if style is None else make.in_style(problems, style)
    texts = make.sample(model, tokenizer, [r["question"] for r in asked], n)
    return torch.tensor([[common.check_answer(t, r["answer"]) for t in g] for r, g in zip(asked, texts)]), texts


def pass_at(table, k):
    return sum(common.pass_at_k(table.shape[1], int(c), k) for c in table.sum(1)) / len(table)


@pytest.mark.slow
def test_rephrasing_revives_dead_groups():
    """At G 8 most questions give only wrong answers as they are asked; the pool over three rephrasings does not, and
    it is not only a matter of counting: four times as many samples of the question itself revive fewer."""
    name, file = "rephrase/learner", "rephrase/test.jsonl"
    own = right(name, file)[0]
    others = [right(name, file, style, 8)[0] for style in range(3)]
    dead = (own[:, :8].sum(1) == 0).double().mean()
    pool = (torch.cat(others, 1).sum(1) == 0).double().mean()
    matched = (own.sum(1) == 0).double().mean()
    rates = [t.double().mean().item() for t in others]
    print(f"all-zero: own {dead:.3f}, pool of three {pool:.3f}, 4G of its own {matched:.3f}; rephrasings right {rates}")
    assert dead >= .5 and pool <= .25 and pool < matched and all(.15 <= r <= .6 for r in rates)


@pytest.mark.slow
def test_explorer_is_weaker_and_more_diverse():
    file = "explore/test.jsonl"
    learner, explorer = right("explore/learner", file)[0], right("explore/explorer", file)[0]
    groups = [i for i, r in enumerate(rows(file)[:N]) if r["id"].startswith("groups")]
    print({k: (round(pass_at(learner, k), 3), round(pass_at(explorer, k), 3)) for k in (1, 2, 4, 8, 16, 32)},
          "groups:", learner[groups].double().mean().item(), explorer[groups].double().mean().item())
    assert pass_at(explorer, 1) < pass_at(learner, 1) and pass_at(explorer, 32) >= pass_at(learner, 32) + .2
    assert learner[groups].double().mean() < .03 and explorer[groups].double().mean() > .1


def test_two_routes_of_different_reliability():
    """Step by step, or adding up the changes first: both are among the right answers, one is right less often."""
    marks, texts = right("explore/learner", "explore/test.jsonl")
    first = [r["worked"].split(";")[0] for r in rows("explore/test.jsonl")[:N]]
    count = {(route, ok): sum(t.count("=") > 1 and ok == m and (t.split(";")[0] == f) == (route == "steps")
                              for group, f, ms in zip(texts, first, marks.tolist()) for t, m in zip(group, ms))
             for route in ("steps", "changes") for ok in (True, False)}
    share = {route: count[route, True] / int(marks.sum()) for route in ("steps", "changes")}
    print(f"share of the right answers: {share}; counts (route, right): {count}")
    assert min(share.values()) > .05


@pytest.mark.slow
def test_selected_logits_spread_the_weights_of_grpo_sg():
    """w = clip(2 (sigmoid(h / 9) - .25), .9, 1.4), the paper's constants, of the logits h of sampled tokens."""
    spread = {}
    for name, file in zip(LEARNERS, ("easy_test", "rephrase/test", "explore/test", "explore/test")):
        model, tokenizer, eos_ids, V = common.load_model(os.path.join(TINY, name))
        prompts = [common.encode_prompt(tokenizer, r["question"]) for r in rows(file + ".jsonl")[:200]]
        tokens, _, lengths, _ = ngrpo.rollout(model, model.get_output_embeddings(), prompts,
                                              common.draws(0, 0, 5, (200, 48)), 1., eos_ids, V)
        h = []
        for p, t, n in zip(prompts, tokens, lengths):
            ids = torch.tensor(p + t[:n].tolist())
            with torch.no_grad():
                logits = model(input_ids=ids[None]).logits[0, len(p) - 1:-1]
            h.append(logits.gather(1, ids[len(p):, None])[:, 0])
        h = torch.cat(h)
        w = (2 * (torch.sigmoid(h / 9) - .25)).clamp(.9, 1.4)
        spread[name] = w.std().item()
        print(f"{name}: h 5/50/95 % {[round(x, 1) for x in h.quantile(torch.tensor([.05, .5, .95])).tolist()]}, "
              f"w mean {w.mean():.3f} sd {w.std():.3f}")
    assert max(spread.values()) >= .05


@pytest.mark.slow
@pytest.mark.parametrize("world,flags", [
    ("rephrase", "--steps 30 --prompts 8 --group 8 --lr 1e-4"), ("rephrase", "--steps 30 --prompts 8 --group 32 --lr 1e-4"),
    ("explore", "--steps 48 --prompts 16 --group 8 --lr 3e-4")])
def test_plain_grpo_leaves_something_to_win(tmp_path, world, flags):
    """As many steps as the methods get, no mixing: at least 25 points are left on the test set."""
    ngrpo.main(f"--model {TINY}/{world}/learner --data {TINY}/{world}/train.jsonl --eval_data {TINY}/{world}/test.jsonl "
               f"--mix_rate 0 --out {tmp_path}/o {flags}".split())
    with open(tmp_path / "o" / "metrics.jsonl") as f:
        last = [r for r in map(json.loads, f) if r["kind"] == "eval"][-1]
    assert last["problems"] >= 200 and last["pass@1"] <= .75
