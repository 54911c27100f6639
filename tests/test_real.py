"""SmolLM2-135M-Instruct, a real model on real input."""
import json
import os

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo_sg
import ngrpo
import s2l_po
import ta_grpo

pytestmark = [pytest.mark.real, pytest.mark.slow]
BOX = "{question}\nLet's think step by step and output the final answer within \\boxed{{}}."


def trained(script, tmp_path, smollm, shared, *flags):
    """(step lines, output folder) of a short run on GSM8K; sampler and trainer agree to rounding."""
    out, data = str(tmp_path / "run"), os.path.join(shared, "gsm8k_test.jsonl")
    script.main(["--model", smollm, "--data", data, "--eval_data", data, "--prompt_format", BOX, "--eval_problems", "2",
                 "--eval_samples", "2", "--ks", "1", "--lr", "1e-6", "--temperature", ".7", "--save_every", "0", "--out", out,
                 *flags])
    with open(out + "/metrics.jsonl") as f:
        steps = [r for r in map(json.loads, f) if r["kind"] == "step"]
    for r in steps:
        assert r["logp_gap"] < 2e-5 and r["logp_gap_max"] < 1e-3
    return steps, out


def test_two_steps_on_gsm8k(tmp_path, smollm, shared):
    """Mixed share near rho, blends close to the anchor (the paper: mean cosine .9985 on its model; .95 would be the
    double softmax of D2), and the export is an ordinary model."""
    steps, out = trained(ngrpo, tmp_path, smollm, shared, "--steps", "2", "--prompts", "3", "--group", "4",
                         "--max_new_tokens", "96", "--kl_coef", ".001", "--minibatches", "3")
    assert len(steps) == 2 and all(.05 < r["mixed_share"] < .16 and r["mix_cosine"] > .99 for r in steps)
    model = AutoModelForCausalLM.from_pretrained(out + "/model")
    tokenizer = AutoTokenizer.from_pretrained(out + "/model")
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert "Paris" in tokenizer.decode(model.generate(ids, max_new_tokens=8, do_sample=False)[0])


SHORT = ("--steps", "1", "--prompts", "2", "--group", "4", "--max_new_tokens", "32", "--kl_coef", ".001")


def test_a_step_of_grpo_sg(tmp_path, smollm, shared):
    """Selected logits of a real model are where the paper's constants tell tokens apart."""
    [r], _ = trained(grpo_sg, tmp_path, smollm, shared, *SHORT)
    assert 5 < r["logit"] < 40 and .9 <= r["weight_min"] < r["weight"] < r["weight_max"] <= 1.4


def test_a_step_of_s2l_po(tmp_path, smollm, shared):
    """The model is its own explorer, frozen: on its rows too the learner finds what was drawn as likely as the sampler."""
    [r], _ = trained(s2l_po, tmp_path, smollm, shared, *SHORT, "--explorer", smollm, "--schedule", "constant",
                     "--constant_count", "2", "--explorer_temperature", ".7")
    assert r["explorer_count"] == 2 and r["explorer_tokens"] > 0 < r["learner_tokens"]
    assert r["explorer_logp_gap"] < 2e-5


def test_a_step_of_ta_grpo(tmp_path, smollm, shared):
    """Two questions, one of which has a rephrasing: pools of 8 and of 4 rows."""
    data = str(tmp_path / "two.jsonl")
    with open(data, "w") as f:
        for question, rephrasings in (
                ("Ann has 3 pens and buys 4. How many has she?", ["Ann buys 4 pens; she had 3 before. How many now?"]),
                ("What is 6 times 7?", [])):
            f.write(json.dumps(dict(question=question, answer="7" if rephrasings else "42",
                                    rephrasings=[dict(text=t) for t in rephrasings])) + "\n")
    [r], _ = trained(ta_grpo, tmp_path, smollm, shared, *SHORT, "--data", data, "--probe", "2")
    assert r["phrasings"] == 1.5
