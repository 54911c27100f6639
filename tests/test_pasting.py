"""What the README offers to paste: functions that run alone with torch, and hooks that run in TRL where it is there."""
import ast
import importlib.util
import math
import os
import re

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch.utils.checkpoint import checkpoint

import grpo_sg
import ngrpo
import s2l_po
import ta_grpo

README = open(os.path.join(ROOT, "README.md"), encoding="utf-8").read()
rng = torch.Generator().manual_seed(0)


def rand(*shape):
    return torch.randn(*shape, generator=rng)


HEAD, LOGP, MASK = torch.nn.Linear(8, 12), rand(3, 5), torch.arange(5) < torch.tensor([[5], [3], [1]])
EMBED, Z = torch.nn.Embedding(12, 8), rand(3, 12).log_softmax(-1)
CALLS = {                                               # function: (script, functions it calls, arguments)
    "vocab_logps": (ngrpo, (), (rand(4, 8), HEAD, 10, .7)),
    "sample": (ngrpo, (), (Z, torch.rand(3, generator=rng))),
    "token_logps": (ngrpo, ("vocab_logps",), (rand(4, 8), torch.tensor([1, 2, 3, 4]), HEAD, 10, .7)),
    "nearest": (ngrpo, (), (F.normalize(rand(12, 8), dim=1), torch.tensor([3, 5]), 3)),
    "mixture": (ngrpo, ("nearest",), lambda: (
        Z, EMBED, torch.full((12, 3), -1), F.normalize(EMBED.weight.data, dim=1), "neighbour", 3, "cosine", None)),
    "mix": (ngrpo, (), (EMBED, torch.tensor([[1, 2]]), torch.tensor([[.3, .7]]))),
    "advantages": (ngrpo, (), (torch.tensor([[1., 0, 0], [1, 1, 1]]),)),
    "policy_loss": (ngrpo, (), (LOGP, LOGP + .3 * rand(3, 5), rand(3), MASK, .2, .2)),
    "k3": (ngrpo, (), (LOGP, rand(3, 5))),
    "reduce": (ngrpo, (), (torch.tensor([5, 3, 1, 4]), 2, "group")),
    "selected_logit": (grpo_sg, (), (rand(4, 8), torch.tensor([1, 2, 3, 4]), HEAD)),
    "sharpness_weight": (grpo_sg, (), (9 * rand(3, 5),)),
    "token_weights": (grpo_sg, ("sharpness_weight",), ("reverse", 9 * rand(3, 5), LOGP, LOGP, (2., .25, 9., .9, 1.4))),
    "explorer_count": (s2l_po, (), (3, 16, "linear", 8)),
    "join": (s2l_po, (), ([(torch.ones(4, 3), rand(4, 3), torch.tensor([3, 1, 2, 3])),
                           (torch.ones(2, 5), rand(2, 5), torch.tensor([5, 4]))], 2)),
    "denominator": (s2l_po, (), (LOGP, rand(3, 5), torch.tensor([[True], [False], [True]]), "tis")),
    "pool_advantages": (ta_grpo, ("advantages",), (torch.tensor([1., 0, 1, 1, 0, 0]), [4, 2]))}


def flat(value):
    return [x for v in value for x in flat(v)] if isinstance(value, (tuple, list)) else [value]


@pytest.mark.parametrize("name", CALLS)
def test_functions_run_alone(name):
    """Its source, and that of those it is said to need, in an empty module with torch: the same result."""
    script, needs, args = CALLS[name]
    with open(script.__file__, encoding="utf-8") as f:
        text = f.read()
    parts = {node.name: ast.get_source_segment(text, node) for node in ast.parse(text).body
             if isinstance(node, ast.FunctionDef)}
    alone = dict(torch=torch, F=F, checkpoint=checkpoint, math=math)
    for part in (*needs, name):
        exec(parts[part], alone)                        # our own source, as a reader would paste it
    call = args if callable(args) else lambda: args
    one, two = alone[name](*call()), getattr(script, name)(*call())
    for a, b in zip(flat(one), flat(two), strict=True):
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b


def test_the_readme_offers_what_is_tested():
    offered = README.split("## Taking a piece of it")[1].split("\n## ")[0]
    assert set(CALLS) <= set(re.findall(r"`(\w+)`", offered))


# --- in TRL -------------------------------------------------------------------------------------------------
needs_trl = pytest.mark.skipif(not all(map(importlib.util.find_spec, ("trl", "datasets"))), reason="no TRL here")


def hook(name):
    """A class of the README, as it stands there."""
    [block] = [b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if f"class {name}(" in b]
    space = {}
    exec(block, space)
    return space[name]


def trained(tmp_path, name, folder, data, rewards, **settings):
    """Two steps of a hooked GRPOTrainer on a tiny model: (trainer, weights before)."""
    from datasets import Dataset
    from trl import GRPOConfig

    import common
    model, tokenizer, eos_ids, _ = common.load_model(os.path.join(ROOT, "tiny", folder))
    tokenizer.padding_side = "left"
    before = [p.detach().clone() for p in model.parameters()]
    problems = common.load_problems(os.path.join(ROOT, "tiny", data))[:8]
    rows = [dict(prompt=p["question"] + "\n", answer=p["answer"],
                 rephrasings=[r["text"] + "\n" for r in p["rephrasings"]]) for p in problems]
    config = GRPOConfig(str(tmp_path), use_cpu=True, max_steps=2, max_completion_length=32, beta=0., bf16=False,
                        per_device_train_batch_size=16, learning_rate=1e-3, report_to="none", save_strategy="no",
                        logging_strategy="no", disable_tqdm=True, gradient_checkpointing=False, warmup_steps=0, lr_scheduler_type="constant",
                        generation_kwargs=dict(eos_token_id=eos_ids.tolist()), **settings)
    trainer = hook(name)(model, rewards, config, Dataset.from_list(rows), processing_class=tokenizer)
    trainer.eos_token_ids = eos_ids.tolist()
    return trainer, before


def by_length(completions, **_):
    return [float(len(text) % 3 == 0) for text in completions]      # any spread will do


@needs_trl
def test_sharpness_weights_in_trl(tmp_path):
    """The hook's loss and gradient are those of grpo_sg's own functions, on the rows that TRL sampled."""
    trainer, before = trained(tmp_path, "SGTrainer", "learner", "easy_train.jsonl", by_length, num_generations=8,
                              epsilon=.2, epsilon_high=.24, loss_type="grpo")
    seen, real = [], trainer._compute_loss

    def spy(model, inputs):
        kept = {k: v.clone() if torch.is_tensor(v) else v for k, v in inputs.items()}
        loss = real(model, inputs)
        gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        seen.append((kept, loss.detach(), gradient))
        if len(seen) == 1:                              # the weights are still the first ones
            ids, mask = (torch.cat([kept["prompt_" + k], kept["completion_" + k]], 1) for k in ("ids", "mask"))
            y, m = kept["completion_ids"], kept["completion_mask"].bool()
            logits = model(input_ids=ids, attention_mask=mask).logits[:, -y.shape[1] - 1:-1]
            logp = logits.log_softmax(-1).gather(2, y[..., None])[..., 0]
            w = grpo_sg.sharpness_weight(logits.gather(2, y[..., None])[..., 0])
            mine, _ = grpo_sg.policy_loss(logp, logp.detach(), kept["advantages"], m, .2, .24, w)
            mine = ((mine * m).sum(1) / m.sum(1)).mean()
            torch.testing.assert_close(loss.detach(), mine.detach())
            for a, b in zip(gradient, torch.autograd.grad(mine, list(model.parameters())), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
            assert w[m].std() > .01 and loss.abs() > 1e-4       # with w = 1 the first loss is 0: weights do act
        return loss
    trainer._compute_loss = spy
    trainer.train()
    assert len(seen) == 2 and any((a != b).any() for a, b in zip(before, trainer.model.parameters()))


@needs_trl
def test_pooled_rephrasings_in_trl(tmp_path):
    """Sampled from rephrasings, normalised as one pool, scored given the question."""
    asked, golds = [], []

    def graded(prompts, completions, answer, **_):
        asked.append(prompts)
        golds.append([float(len(text) % 3 == 0) for text in completions])
        return golds[-1]
    trainer, before = trained(tmp_path, "TATrainer", "rephrase/learner", "rephrase/train.jsonl", graded,
                              num_generations=16, loss_type="dapo")
    batches, real = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: batches.append((inputs, real(inputs))) or batches[-1][1]
    trainer.train()
    for prompts, rewards, (inputs, batch) in zip(asked, golds, batches, strict=True):
        row = inputs[0]
        assert prompts == [p for p in (row["prompt"], *row["rephrasings"]) for _ in range(4)]
        wanted = ta_grpo.pool_advantages(torch.tensor(rewards), [16])
        torch.testing.assert_close(batch["advantages"].cpu(), wanted, rtol=1e-3, atol=1e-3)
        for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"]):
            assert trainer.processing_class.decode(ids[mask.bool()]) == row["prompt"]
        assert "old_per_token_logps" not in batch
    assert len(batches) == 2 and any((a != b).any() for a, b in zip(before, trainer.model.parameters()))
