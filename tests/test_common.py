"""Models, prompts, problems, answers and run folders."""
import json
import math
import os
import random
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import TINY, random_model
from test_saving import in_child
from transformers import AutoTokenizer, DynamicCache

from common import (answers_equal, batch_of, check_answer, draws, encode_prompt, extract_answer, learning_rate,
                    load_model, load_problems, new_cache, pass_at_k)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    """Unbiased, against enumeration; the published tables' bootstrap reads .393 where this reads .5 (D10)."""
    rng = np.random.default_rng(0)
    for n, c, k in ((8, 3, 4), (10, 1, 5), (6, 6, 1), (6, 0, 3)):
        right = np.array([1] * c + [0] * (n - c))
        draws = [rng.permutation(right)[:k].any() for _ in range(4000)]
        assert abs(pass_at_k(n, c, k) - np.mean(draws)) < .03
    assert pass_at_k(32, 1, 16) == .5 and pass_at_k(32, 1, 32) == 1.
    assert abs(1 - (1 - 1 / 32) ** 16 - .398) < 1e-3                # what drawing with replacement would give


@pytest.mark.parametrize("text,answer", [
    ("so \\boxed{15}", "15"), ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("#### 1,234\n", "1,234"),
    ("\\boxed{3}</think>the end", None), ("<think>\\boxed{3}</think> \\boxed{4}", "4"), ("\\boxed{7", None),
    ("it is 7", None), ("", None), ("\\boxed{}", None)])
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize("pred,gold,equal", [
    ("15", "15", True), ("15.0", "15", True), ("1,234", "1234", True), ("$18", "18", True), ("1/2", "0.5", True),
    ("15", "5", False), ("5", "15", False), ("", "", False), ("x", "x", True), ("1e400", "1", False),
    ("9" * 4000, "9" * 3999, False), ("1/0", "1", False), ("2**9", "512", False), ("inf", "1", False)])
def test_answers_equal(pred, gold, equal):
    """Equality, never a substring (pytorch/rl PR3542; tiny-grpo); text is compared, never evaluated."""
    assert answers_equal(pred, gold) is equal


HOSTILE = [text * n for text, n in (
    ("9**9**9**9", 1), ("1", 10 ** 5), ("\\boxed{", 10 ** 5), ("{", 10 ** 5), ("1/", 10 ** 5), ("1,", 10 ** 5),
    ("\\frac{", 10 ** 5), ("(", 10 ** 5), ("#### ", 10 ** 5), ("####" + " " * 10 ** 5, 1), ("1e999999999", 1),
    ("\\$", 10 ** 5), ("-", 10 ** 5), ("0." + "3" * 10 ** 5, 1), ("x^x^x=0", 1), ("factorial(10**9)", 1))]


def test_hostile_answers_take_no_time_off_the_main_thread():
    """No symbolic algebra to hang in (Math-Verify issue65; verl PR5839; simpleRL issue95), so no alarm, which only the
    main thread could set (trl PR5281; compose-rl issue38)."""
    texts = [t for text in HOSTILE for t in (text, f"\\boxed{{{text}}}")]

    def check():
        resource.setrlimit(resource.RLIMIT_CPU, (5, 5))         # seconds, past which it is killed
        with ThreadPoolExecutor(1) as pool:
            found = [*pool.map(check_answer, texts, ["1"] * len(texts)),
                     *pool.map(answers_equal, texts, [text + "0" for text in texts])]
        assert len(found) == 4 * len(HOSTILE) and not any(found)
    assert os.waitpid(in_child(check), 0)[1] == 0


def test_check_answer_takes_any_of_a_list():
    assert check_answer("\\boxed{2}", ["1", "2"]) and not check_answer("\\boxed{3}", ["1", "2"])
    assert not check_answer("no box", "no box")


def test_load_model_names_every_end_and_silences_dropout():
    """Layer checkpointing needs train(), in which no dropout may act."""
    model, tokenizer, eos_ids, V = load_model(f"{TINY}/learner")
    assert eos_ids.tolist() == [tokenizer.eos_token_id] and V == len(tokenizer)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model.train()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_load_model_with_many_ends_a_padded_head_and_dropout(tmp_path):
    """All EOS ids of tokenizer, config and generation config (trl PR7039; compose-rl PR31), no id past the tokenizer's
    last (vllm issue13175)."""
    tokenizer = AutoTokenizer.from_pretrained(f"{TINY}/learner")
    model = random_model(vocab=128, attention_dropout=.5)
    model.config.eos_token_id, model.generation_config.eos_token_id = [0, 7], [7, 9, 127]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _, eos_ids, V = load_model(str(tmp_path))
    assert eos_ids.tolist() == [0, 7, 9] and V == len(tokenizer) < 128      # id 127 is past the tokenizer's last
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model.train()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_growing_cache_is_dynamic_cache():
    model, ids = random_model(), torch.randint(0, 31, (3, 40))
    caches = [DynamicCache(), new_cache(40)]
    with torch.no_grad():
        for part in (ids[:, :20], ids[:, 20:21], ids[:, 21:39]):
            a, b = (model(input_ids=part, cache=c, use_cache=True).logits for c in caches)
            torch.testing.assert_close(a, b)
        for c in caches:
            c.batch_select_indices(torch.tensor([2, 0, 0, 1]))
        a, b = (model(input_ids=ids[[2, 0, 0, 1], 39:], cache=c, use_cache=True).logits for c in caches)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(a[0, 0], model(input_ids=ids[2:3]).logits[0, -1])


def test_prompts_have_one_bos(tmp_path):
    """The template, if there is one, is used (theLMbook) and writes the BOS itself; encoding its text must not add
    another (open-r1 PR462; vllm PR27515; tiny-grpo)."""
    tokenizer = AutoTokenizer.from_pretrained(f"{TINY}/learner")
    assert encode_prompt(tokenizer, "Tom has 3 pens.") == tokenizer("Tom has 3 pens.\n").input_ids
    assert encode_prompt(tokenizer, "Tom has 3 pens.", chat_template="none") == tokenizer("Tom has 3 pens.").input_ids
    from tokenizers.processors import TemplateProcessing
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)])
    tokenizer.chat_template = "<s>{% for m in messages %}{{ m['role'] + m['content'] + '\n' }}{% endfor %}"
    for template in ("auto", "none"):
        ids = encode_prompt(tokenizer, "{x} \\boxed{}", "{question} in {{braces}}", "be brief", template)
        assert ids.count(tokenizer.bos_token_id) == 1


def test_field_names_of_public_sets(tmp_path):
    rows = [dict(question="q", answer="5"), dict(problem="q", solution="so \\boxed{\\frac12}"), dict(question="q", answer=7),
            dict(prompt=[{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], answer=["1", "2"]),
            dict(question="q", answer="text #### 1,000"), dict(question="q", final_answer=2.5, answer="")]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    got = load_problems(str(path))
    assert [p["question"] for p in got] == ["q"] * 6
    assert [p["answer"] for p in got] == ["5", "\\frac12", "7", ["1", "2"], "1,000", "2.5"]
    path.write_text(json.dumps(rows))                                       # one JSON array
    assert load_problems(str(path)) == got


def test_choices_are_lettered_in_an_order_fixed_by_the_id(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(dict(id=i, question="which?", answer=a, choices=["red", "blue", "green"])) + "\n"
                            for i, a in ((7, "blue"), (7, "B"), (8, "blue"), (11, "blue"))))
    got = load_problems(str(path))
    assert got[0] == got[1] and len({p["question"] for p in got}) > 1
    assert all(f"({p['answer']}) blue" in p["question"] for p in got)


def test_shared_sets_load(shared):
    """Every public set beside the checkout: as many problems as lines, every gold readable."""
    for name in sorted(os.listdir(shared)):
        if name.endswith(".jsonl") and not name.startswith("gold"):
            with open(os.path.join(shared, name)) as f:
                assert len(load_problems(os.path.join(shared, name))) == sum(1 for _ in f)
    for p in load_problems(os.path.join(shared, "gsm8k_test.jsonl")):
        assert check_answer(f"so the answer is \\boxed{{{p['answer']}}}", p["answer"])


def test_batches_cover_every_epoch_once():
    problems = list(range(10))
    seen = [i for step in range(1, 11) for i in batch_of(problems, 3, step, seed=1)]
    assert [sorted(seen[i:i + 10]) for i in (0, 10, 20)] == [problems] * 3
    assert seen[:10] != seen[10:20] and batch_of(problems, 3, 4, 1) == seen[9:12]


def test_every_purpose_has_its_own_draws():
    """Shifting the seed up by 32 bits gave every seed the same run: torch reads only the low ones."""
    seen = {tuple(draws(seed, step, stream, 2).tolist()) for seed in range(4) for step in range(50) for stream in range(7)}
    assert len(seen) == 4 * 50 * 7 and torch.equal(draws(1, 2, 3, 4), draws(1, 2, 3, 4))
    means = torch.stack([draws(seed, 1, 0, 1000) for seed in range(20)])
    assert abs(means.mean() - .5) < .02 and torch.corrcoef(means).fill_diagonal_(0).abs().max() < .15


def test_learning_rate():
    assert [learning_rate(s, 10, 1., 4, "constant") for s in (1, 2, 5, 10)] == [.2, .4, 1., 1.]
    assert learning_rate(10, 10, 1., 0, "linear") == pytest.approx(.1)
    assert learning_rate(6, 10, 1., 0, "cosine") == pytest.approx(.5)
    assert all(0 < learning_rate(s, 10, 1., 2, "cosine") <= 1 for s in range(1, 11))


def test_random_text_never_breaks_the_checker():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choice("\\boxed{}1234567890/.,$#- \n") for _ in range(rng.randint(0, 60)))
        assert check_answer(text, text) in (True, False) and not math.isnan(check_answer(text, "1"))
