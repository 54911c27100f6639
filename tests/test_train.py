"""The loop as it stands, end to end on the tiny learner: its gradients against plain.py, invariance, edges."""
import json
import os

import plain
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaMLP

import common
import ngrpo
from conftest import TINY
from test_saving import SMALL, lines

ALIKE = {torch.float32: dict(atol=1e-5, rtol=1e-5), torch.float64: dict(atol=1e-12, rtol=1e-9)}


def figures(folder):
    """The numbers of each line that do not tell the time."""
    return [{k: v for k, v in r.items() if isinstance(v, (int, float))} for r in lines(folder)]


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


def one_step(monkeypatch, tmp_path, dtype=torch.float32, name="a", questions=None, ends=(), script=ngrpo,
             optimizer=SGD, **settings):
    """One step of train(); returns the gradients of its updates and what rollout returned. Of all problems it sees
    the first `questions`; `ends` are more ids that end a row. How evaluation samples must not matter."""
    settings = dict(dict(prompts=4, group=4, steps=1, eval_data=[], grad_clip=1e9, mix_rate=0., max_new_tokens=30,
                         seed=3, eval_temperature=.1, eval_top_p=.3), **settings)
    model, tokenizer, eos_ids, V = common.load_model(f"{TINY}/learner", "cpu", dtype)
    cfg, _ = common.parse_config(script.Config, script.PRESETS, ["--device", "cpu"])
    vars(cfg).update(settings)
    problems = common.load_problems(f"{TINY}/easy_train.jsonl")
    [(_, problems)] = common.encode_problems(cfg, model, tokenizer, [("train", problems[:questions])])
    eos_ids = torch.cat([eos_ids, torch.tensor(ends, dtype=torch.long)])
    rolled, real = [], script.rollout
    monkeypatch.setattr(script, "rollout", lambda *a, **k: rolled.append((k, real(*a, **k))) or rolled[-1][1])
    monkeypatch.setattr(torch.optim, "AdamW", optimizer)
    SGD.grads = []
    os.makedirs(tmp_path / name)
    script.train(cfg, model, tokenizer, eos_ids, V, problems, [], str(tmp_path / name), None)
    monkeypatch.undo()
    (how, out), = rolled
    return SGD.grads, how, out, cfg, problems


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [
    dict(), dict(aggregation="token", temperature=.8, max_new_tokens=23),
    dict(aggregation="group", micro_tokens=150, questions=2),
    dict(minibatches=2, kl_coef=.3, inner_epochs=2), dict(minibatches=2, aggregation="token", micro_tokens=100)])
def test_method_off_is_plain_grpo(monkeypatch, tmp_path, dtype, settings):
    """Same tokens, and the same gradient in each update, as forty lines without cache, padding or micro-batches: with
    truncated rows in both sums (trl issue6369, PR6439), dead groups in denominators (trl PR6365) and KL (trl PR5640),
    one question twice (GRPO-Zero, by text; nanoGRPO, in another order), old log-probs from before the first of several
    updates (minimind issue775, DanceGRPO issue114), one rollout for all of them (rasbt), the evaluation's temperature
    and top-p left out of it (trl issue6789; simple_GRPO, minimind), KL once (verl issue211)."""
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
    """Micro-batches, down to one row of a group (trl issue3017), row cap and recomputation change memory: not the
    gradient (nanochat, rlhf-book; trl issue3021; verl issue3741, issue7200), nor what is logged (GRPO-Zero)."""
    whole = {k: v for k, v in settings.items() if k == "mix_rate"}
    a = one_step(monkeypatch, tmp_path, torch.float64, **whole)[0]
    b = one_step(monkeypatch, tmp_path, torch.float64, "b", **settings)[0]
    for g, w in zip(a[0], b[0]):
        torch.testing.assert_close(g, w, **ALIKE[torch.float64])
    [one], [two] = figures(tmp_path / "a"), figures(tmp_path / "b")
    assert one == pytest.approx(two, rel=1e-6, abs=1e-9)


def test_padding_a_row_leaves_its_gradient(monkeypatch, tmp_path):
    """Token masks are by position: an EOS id inside a prompt is attended to, and one that ends a row is trained
    (nanochat, tiny-grpo; trl PR4970; unsloth-zoo PR832; MemGen PR33)."""
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
    assert grad[eos].abs().max() > 0                    # the final EOS is trained


def test_logged_figures_are_what_they_say(monkeypatch, tmp_path):
    """By hand, row by row: entropy over tokens once (nano-aha), truncated with two ends (trl PR7039, PR3248), memory
    (trl issue2927) and speed (trl issue2610) in every line."""
    model, tokenizer, eos_ids, V = common.load_model(f"{TINY}/learner")
    ends = [int(eos_ids[0]), tokenizer.convert_tokens_to_ids("}")]
    grads, how, (tokens, _, lengths, _), cfg, problems = one_step(
        monkeypatch, tmp_path, ends=ends[1:], max_new_tokens=22, temperature=.8, seed=4)
    batch, entropies = common.batch_of(problems, 4, 1, 4), []
    rows = [tokens[i, :n].tolist() for i, n in enumerate(lengths.tolist())]
    right = [common.check_answer(tokenizer.decode(row), batch[i // 4]["answer"]) for i, row in enumerate(rows)]
    dead = [len(set(right[i:i + 4])) == 1 for i in range(0, 16, 4)]
    for i, row in enumerate(rows):
        if not dead[i // 4]:
            logits = model(input_ids=torch.tensor([how["prompts"][i // 4] + row])).logits[0, -len(row) - 1:-1, :V]
            entropies += torch.distributions.Categorical(logits=logits / .8).entropy().tolist()
    truncated = [row[-1] not in ends for row in rows]
    got, = lines(tmp_path / "a", drop=())
    assert 0 < sum(truncated) < sum(len(row) == 22 for row in rows)     # one ends where it would have been cut
    wanted = dict(entropy=sum(entropies) / len(entropies), truncated=sum(truncated) / 16, dead=sum(dead) / 4,
                  length=sum(map(len, rows)) / 16, reward=sum(right) / 16, clip_frac=0., kl=0., skipped=0,
                  grad_norm=sum(g.square().sum().item() for g in grads[0]) ** .5)
    assert {k: got[k] for k in wanted} == pytest.approx(wanted, rel=1e-4)
    assert 0 < got["dead"] < 1 and got["reward"] == got["correct"] and min(got["peak_gib"], got["tokens_per_s"]) > 0


def test_layer_checkpointing_stays_out_of_the_rollout(monkeypatch, tmp_path):
    """Rollouts are in eval mode, as in train mode a checkpointed layer drops its cache (trl issue3683; transformers
    issue36051); updates are in train mode, where it is computed again; and two steps come to the same."""
    modes, layers, real = {"rollout": set(), "score": set()}, [], LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda *a: layers.append(1) or real(*a))
    for name in modes:
        monkeypatch.setattr(ngrpo, name, lambda model, *a, name=name, real=getattr(ngrpo, name), **k: (
            modes[name].add(model.training) or real(model, *a, **k)))
    for switch in ("True", "False"):
        ngrpo.main(["--steps", "2", "--out", str(tmp_path / switch), "--grad_checkpoint", switch, *SMALL])
        layers.append(0)
    assert sum(layers[:layers.index(0)]) > sum(layers[layers.index(0):])
    assert modes == {"rollout": {False}, "score": {True}}
    for one, two in zip(figures(tmp_path / "True"), figures(tmp_path / "False")):
        assert one == pytest.approx(two, rel=1e-3, abs=1e-3)


def test_reference_never_changes(tmp_path):
    """No KL to itself before the first update, some after it (theLMbook issue8): no copy is taken later."""
    ngrpo.main(["--steps", "2", "--out", str(tmp_path / "a"), "--kl_coef", ".1", "--lr", "1e-3", *SMALL])
    first, second = (r["kl"] for r in lines(tmp_path / "a") if r["kind"] == "step")
    assert first < 1e-9 < 1e-6 < second


def test_prompt_is_shown_as_the_model_sees_it(tmp_path, capsys):
    """A model prompted without its template is seen at a glance (theLMbook), on the screen and in the log."""
    ngrpo.main(["--steps", "0", "--out", str(tmp_path / "a"), "--eval_problems", "1", *SMALL[6:]])
    shown = common.load_problems(f"{TINY}/easy_train.jsonl")[0]["question"] + "\n"      # the template ends a turn so
    with open(tmp_path / "a" / "metrics.jsonl") as f:
        assert json.loads(f.readline())["prompt"] == shown and f"first prompt: {shown!r}" in capsys.readouterr().out


@pytest.mark.slow
def test_evaluation_does_not_disturb_training(tmp_path):
    """Held out, from draws of its own, and not what is optimised (trl PR5790, issue3018)."""
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
    """The path a GPU takes: bfloat16 autocast and a bfloat16 copy. Its gap to the trainer is rounding, and logged
    (unsloth issue4502); what is trained stays float32 (AReaL PR1634)."""
    out = str(tmp_path / "a")
    ngrpo.main(["--steps", "2", "--out", out, "--compute_dtype", "bfloat16", *SMALL])
    gaps = [r["logp_gap"] for r in lines(out) if r["kind"] == "step"]
    assert all(1e-5 < g < .05 for g in gaps)
    state = torch.load(out + "/state.pt", weights_only=True)
    kept = [*state["model"].values(), *(v for s in state["optimizer"]["state"].values() for v in s.values())]
    assert {v.dtype for v in kept} == {torch.float32}


@pytest.mark.parametrize("settings", [["--group", "2"], ["--prompts", "1"], ["--max_new_tokens", "1"],
                                      ["--mixer", "soft"], ["--mixer", "gaussian", "--mix_at_eval", "True"],
                                      ["--objective", "gspo"], ["--mix_rate", "1"], ["--eval_temperature", "0"],
                                      ["--lr_schedule", "cosine", "--mix_metric", "l1", "--mix_label", "sampled"]])
def test_edges_and_switches_run(tmp_path, settings):
    """One prompt, one token, all rows truncated, every group dead: none of it is an error (ms-swift issue3980)."""
    ngrpo.main(["--steps", "2", "--out", str(tmp_path / "a"), *SMALL, *settings])
    steps = [r for r in lines(tmp_path / "a") if r["kind"] == "step"]
    assert len(steps) == 2
    if "--max_new_tokens" in settings:
        assert steps[0]["truncated"] == steps[0]["dead"] == 1 and steps[0]["grad_norm"] is None
