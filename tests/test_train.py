"""The loop as it stands, end to end on the tiny learner: its gradients against plain.py, invariance, edges."""
import os

import plain
import pytest
import torch

import common
import ngrpo
from conftest import TINY
from test_saving import SMALL, lines

ALIKE = {torch.float32: dict(atol=1e-5, rtol=1e-5), torch.float64: dict(atol=1e-12, rtol=1e-9)}


class SGD(torch.optim.SGD):
    """In AdamW's place: keeps every gradient, and moves enough that a second pass has ratios away from 1."""
    grads = []

    def __init__(self, params, lr, weight_decay, fused):
        super().__init__(params, lr=.02)

    def step(self):
        for group in self.param_groups:
            group["lr"] = .02
            SGD.grads.append([p.grad.clone() for p in group["params"]])
        super().step()


def one_step(monkeypatch, tmp_path, dtype=torch.float32, name="a", **settings):
    """One step of train(); returns the gradients of its updates and what rollout returned."""
    settings = dict(dict(prompts=4, group=4, steps=1, eval_data=[], grad_clip=1e9, mix_rate=0., max_new_tokens=30,
                         seed=3), **settings)
    model, tokenizer, eos_ids, V = common.load_model(f"{TINY}/learner", "cpu", dtype)
    cfg, _ = common.parse_config(ngrpo.Config, ngrpo.PRESETS, ["--device", "cpu"])
    vars(cfg).update(settings)
    problems = common.load_problems(f"{TINY}/easy_train.jsonl")
    [(_, problems)] = common.encode_problems(cfg, model, tokenizer, [("train", problems)])
    rolled, real = [], ngrpo.rollout
    monkeypatch.setattr(ngrpo, "rollout", lambda *a, **k: rolled.append((k, real(*a, **k))) or rolled[-1][1])
    monkeypatch.setattr(torch.optim, "AdamW", SGD)
    SGD.grads = []
    os.makedirs(tmp_path / name)
    ngrpo.train(cfg, model, tokenizer, eos_ids, V, problems, [], str(tmp_path / name), None)
    monkeypatch.undo()
    (how, out), = rolled
    return SGD.grads, how, out, cfg, problems


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [
    dict(), dict(aggregation="token", temperature=.8), dict(aggregation="group", micro_tokens=150),
    dict(minibatches=2, kl_coef=.3, inner_epochs=2), dict(minibatches=2, aggregation="token", micro_tokens=100)])
def test_method_off_is_plain_grpo(monkeypatch, tmp_path, dtype, settings):
    """Same tokens, and the same gradient in each update, as forty lines without cache, padding or micro-batches."""
    grads, how, (tokens, _, lengths, _), cfg, problems = one_step(monkeypatch, tmp_path, dtype, **settings)
    model, tokenizer, eos_ids, V = common.load_model(f"{TINY}/learner", "cpu", dtype)
    completions = []
    with torch.no_grad():
        for i, u in enumerate(how["u"]):
            ids, _ = plain.sample_row(model, how["prompts"][i // 4], u, cfg.temperature, eos_ids.tolist(), V)
            assert ids == tokens[i, :lengths[i]].tolist()
            completions.append(ids)
        batch = common.batch_of(problems, 4, 1, 3)
        assert [p["prompt"] for p in batch] == how["prompts"]
        texts = [tokenizer.decode([t for t in c if t not in eos_ids]) for c in completions]
        rewards = torch.tensor([float(common.check_answer(t, batch[i // 4]["answer"])) for i, t in enumerate(texts)])
        old = [plain.row_logps(model, how["prompts"][i // 4], c, cfg.temperature, V) for i, c in enumerate(completions)]
    assert 0 < rewards.mean() < 1
    updates = []
    half = 16 // cfg.minibatches
    for part in [range(i, i + half) for i in range(0, 16, half)] * cfg.inner_epochs:
        loss = plain.grpo_loss(model, how["prompts"][part[0] // 4:][:half // 4], [completions[i] for i in part],
                               rewards[list(part)], cfg.temperature, V, 4, old=[old[i] for i in part],
                               ref=[old[i] for i in part], kl_coef=cfg.kl_coef, aggregation=cfg.aggregation)
        model.zero_grad()
        loss.backward()
        if loss.requires_grad and any(p.grad.abs().max() > 0 for p in model.parameters()):
            updates.append([p.grad.clone() for p in model.parameters()])
            with torch.no_grad():
                for p in model.parameters():
                    p -= .02 * p.grad
    assert len(grads) == len(updates) > 0
    for got, wanted in zip(grads, updates):
        for g, w in zip(got, wanted):
            torch.testing.assert_close(g, w, **ALIKE[dtype])
    assert max(g.abs().max() for g in grads[0]) > 1e-3


@pytest.mark.parametrize("settings", [dict(micro_tokens=60), dict(micro_tokens=333), dict(grad_checkpoint=True),
                                      dict(max_rows=5), dict(mix_rate=.3, micro_tokens=60)])
def test_gradient_does_not_depend_on_how_it_is_cut(monkeypatch, tmp_path, settings):
    """Micro-batches, row cap and recomputation change memory, not the gradient (trl issue3021; verl issue3741)."""
    whole = {k: v for k, v in settings.items() if k == "mix_rate"}
    a = one_step(monkeypatch, tmp_path, torch.float64, **whole)[0]
    b = one_step(monkeypatch, tmp_path, torch.float64, "b", **settings)[0]
    for g, w in zip(a[0], b[0]):
        torch.testing.assert_close(g, w, **ALIKE[torch.float64])


def test_padding_a_row_leaves_its_gradient(monkeypatch, tmp_path):
    """Token masks are by position: an EOS id inside a prompt is attended to, and one that ends a row is trained."""
    model, tokenizer, eos_ids, V = common.load_model(f"{TINY}/learner")
    eos = int(eos_ids[0])
    prompts, tokens = [[5, eos, 9], [4, 8, 9, 10, 11, eos, 13]], torch.tensor([[3, eos, 0, 0], [3, 9, 9, eos]])
    lengths = torch.tensor([2, 4])
    sequences = [torch.tensor(p + tokens[i, :lengths[i]].tolist()) for i, p in enumerate(prompts)]
    none = {k: torch.zeros(0, dtype=torch.long) for k in ("row", "step", "candidates", "weight", "noise")}
    logp, _, mask = ngrpo.score(model, sequences, lengths, [0, 1], none, V, 1.)
    for i in (0, 1):
        wanted = plain.row_logps(model, prompts[i], tokens[i, :lengths[i]].tolist(), 1., V)
        torch.testing.assert_close(logp[i][mask[i]], wanted, atol=1e-5, rtol=0)
    grad = torch.autograd.grad(logp[0, 1], model.get_input_embeddings().weight)[0]
    assert grad[eos].abs().max() > 0                    # the final EOS is trained (nanochat, tiny-grpo)


def test_evaluation_does_not_disturb_training(tmp_path):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    ngrpo.main(["--steps", "3", "--out", a, *SMALL])
    ngrpo.main(["--steps", "3", "--out", b, "--eval_every", "1", *SMALL])
    assert [r for r in lines(a) if r["kind"] == "step"] == [r for r in lines(b) if r["kind"] == "step"]


def test_exported_model_loads_anywhere(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    out = str(tmp_path / "a")
    ngrpo.main(["--steps", "1", "--out", out, *SMALL])
    model = AutoModelForCausalLM.from_pretrained(out + "/model")
    tokenizer = AutoTokenizer.from_pretrained(out + "/model")
    ids = tokenizer("Tom has 4 boxes of 6 pens. Tom finds 5. How many pens does Tom have?\n", return_tensors="pt")
    assert "boxed" in tokenizer.decode(model.generate(ids.input_ids, max_new_tokens=40, do_sample=False)[0])
    weights = torch.load(out + "/state.pt", weights_only=True)["model"]
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def test_bfloat16_copy_rolls_out(tmp_path):
    """The path a GPU takes: bfloat16 autocast and a bfloat16 copy. Its gap to the trainer is rounding, and logged."""
    out = str(tmp_path / "a")
    ngrpo.main(["--steps", "2", "--out", out, "--compute_dtype", "bfloat16", *SMALL])
    gaps = [r["logp_gap"] for r in lines(out) if r["kind"] == "step"]
    assert all(1e-5 < g < .05 for g in gaps)


@pytest.mark.parametrize("settings", [["--group", "2"], ["--prompts", "1"], ["--max_new_tokens", "1"],
                                      ["--mixer", "soft"], ["--mixer", "gaussian", "--mix_at_eval", "True"],
                                      ["--objective", "gspo"], ["--mix_rate", "1"], ["--eval_temperature", "0"],
                                      ["--lr_schedule", "cosine", "--mix_metric", "l1", "--mix_label", "sampled"]])
def test_edges_and_switches_run(tmp_path, settings):
    """One prompt, one token, all rows truncated, every group dead: none of it is an error."""
    ngrpo.main(["--steps", "2", "--out", str(tmp_path / "a"), *SMALL, *settings])
    steps = [r for r in lines(tmp_path / "a") if r["kind"] == "step"]
    assert len(steps) == 2
    if "--max_new_tokens" in settings:
        assert steps[0]["truncated"] == steps[0]["dead"] == 1 and steps[0]["grad_norm"] is None
