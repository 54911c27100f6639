"""Models, prompts, problems and run folders."""
import json
import os

import numpy as np
import pytest
import torch
from conftest import TINY, random_model
from transformers import AutoTokenizer, DynamicCache

from common import (batch_of, check_answer, draws, encode_prompt, learning_rate, load_model, load_problems, new_cache,
                    pass_at_k)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    """Unbiased, against enumeration; the published tables' bootstrap reads .393 where this reads .5 (D10)."""
    rng = np.random.default_rng(0)
    for n, c, k in ((8, 3, 4), (10, 1, 5), (6, 6, 1), (6, 0, 3)):
        right = np.array([1] * c + [0] * (n - c))
        draws = [rng.permutation(right)[:k].any() for _ in range(4000)]
        assert abs(pass_at_k(n, c, k) - np.mean(draws)) < .03
    assert pass_at_k(32, 1, 16) == .5 and pass_at_k(32, 1, 32) == 1.
    assert abs(1 - (1 - 1 / 32) ** 16 - .398) < 1e-3                # what drawing with replacement would give


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


def test_the_end_of_a_turn_ends_a_completion(tmp_path):
    """A base model with a chat template writes <|im_end|> without naming it as an end; without a template it is a word."""
    tokenizer = AutoTokenizer.from_pretrained(f"{TINY}/learner")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    model, end = random_model(vocab=len(tokenizer)), tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.save_pretrained(tmp_path)
    for template, named in (("{{ messages[0]['content'] }}<|im_end|>", True), (None, False)):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path)
        if not template and (tmp_path / "chat_template.jinja").exists():
            (tmp_path / "chat_template.jinja").unlink()
        assert (end in load_model(str(tmp_path))[2].tolist()) == named


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
