"""SmolLM2-135M-Instruct, a real model on real input."""
import json
import os

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo_sg
import ngrpo

pytestmark = pytest.mark.real
BOX = "{question}\nLet's think step by step and output the final answer within \\boxed{{}}."


@pytest.mark.slow
@pytest.mark.parametrize("script", [ngrpo, grpo_sg], ids=lambda s: s.__name__)
def test_two_steps_on_gsm8k(tmp_path, smollm, shared, script):
    """Sampler and trainer agree to rounding, and the export is an ordinary model. N-GRPO: mixed share near rho, blends
    close to the anchor (the paper: mean cosine .9985 on its model; .95 would be the double softmax of D2). GRPO-SG:
    selected logits of a real model are where its constants can tell them apart."""
    out = str(tmp_path / "run")
    script.main(["--model", smollm, "--data", os.path.join(shared, "gsm8k_test.jsonl"), "--eval_data",
                os.path.join(shared, "gsm8k_test.jsonl"), "--prompt_format", BOX, "--steps", "2", "--prompts", "3",
                "--group", "4", "--max_new_tokens", "96", "--eval_problems", "2", "--eval_samples", "2", "--ks", "1",
                "--lr", "1e-6", "--temperature", ".7", "--kl_coef", ".001", "--minibatches", "3",
                "--out", out])
    with open(out + "/metrics.jsonl") as f:
        steps = [r for r in map(json.loads, f) if r["kind"] == "step"]
    assert len(steps) == 2
    for r in steps:
        assert r["logp_gap"] < 2e-5 and r["logp_gap_max"] < 1e-3
        if script is ngrpo:
            assert .05 < r["mixed_share"] < .16 and r["mix_cosine"] > .99
        else:
            assert 5 < r["logit"] < 40 and .9 <= r["weight_min"] < r["weight"] < r["weight_max"] <= 1.4
    model = AutoModelForCausalLM.from_pretrained(out + "/model")
    tokenizer = AutoTokenizer.from_pretrained(out + "/model")
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert "Paris" in tokenizer.decode(model.generate(ids, max_new_tokens=8, do_sample=False)[0])

