"""TA-GRPO's pools and anchoring against plain.py, numpy float64, a table of three responses, and plain GRPO."""
import doctest
import json
import math
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import plain
import pytest
import torch
from conftest import ROOT, TINY
from test_saving import alike, lines
from test_train import SGD

import common
import ta_grpo
from ta_grpo import advantages, anchored, lexical_distance, policy_loss, pool_advantages

sys.path.insert(0, os.path.join(ROOT, "bench"))
import rephrase  # noqa: E402

WORLD = f"{TINY}/rephrase"
RATE = .002
FEW = ["--prompts", "3", "--group", "3", "--eval_problems", "6", "--eval_samples", "2", "--ks", "1", "--probe", "2",
       "--max_new_tokens", "32"]


@pytest.fixture(autouse=True)
def few_problems(tmp_path, monkeypatch):
    """The first twelve questions, so that a run does not begin with encoding 4800 prompts."""
    real = common.load_problems
    monkeypatch.setattr(ta_grpo, "load_problems", lambda path: real(path)[:12])


def oracle_advantages(rewards, sizes):
    """One normalisation over each pool, in numpy."""
    out = []
    for r in np.split(np.asarray(rewards, dtype=np.float64), np.cumsum(sizes)[:-1]):
        out += list(np.zeros(len(r)) if r.min() == r.max() else (r - r.mean()) / (r.std(ddof=1) + 1e-6))
    return np.array(out)


# --- advantages ---------------------------------------------------------------------------------------------
def test_docstring_example():
    assert doctest.testmod(ta_grpo).failed == 0 and doctest.testmod(ta_grpo).attempted > 2


def test_pools_are_normalised_as_one():
    """O3, O5: zero sum, unit scale; permuting rows permutes A; scaling leaves, mirroring negates it; others do not matter."""
    rng, sizes = np.random.default_rng(0), [8, 4, 16, 4, 12]
    r = torch.tensor(rng.integers(0, 2, sum(sizes)), dtype=torch.float64)
    r[8:12] = 1
    A = pool_advantages(r, sizes)
    np.testing.assert_allclose(A, oracle_advantages(r, sizes), atol=1e-12)
    for pool, rewards in zip(A.split(sizes), r.split(sizes)):
        s, M = rewards.std(), len(pool)
        assert abs(pool.sum()) < 1e-9 and pool.square().sum().item() == pytest.approx(((M - 1) * (s / (s + 1e-6)) ** 2).item())
    assert (A[8:12] == 0).all() and (A[:8] != 0).all()
    order = torch.tensor(rng.permutation(8))
    torch.testing.assert_close(pool_advantages(torch.cat([r[:8][order], r[8:]]), sizes)[:8], A[:8][order])
    torch.testing.assert_close(pool_advantages(5 * r + 2, sizes), A, atol=1e-5, rtol=0)
    torch.testing.assert_close(pool_advantages(1 - r, sizes), -A)
    assert torch.equal(pool_advantages(torch.cat([r[:8], 1 - r[8:]]), sizes)[:8], A[:8])
    assert (pool_advantages(torch.full((6,), .3), [6]) == 0).all()      # whose float32 mean is not .3


def test_golden_advantages():
    """O4, and T5: K of M right."""
    r = torch.tensor([1., 1, 1, 1, 1, 0, 0, 1], dtype=torch.float64)
    A = pool_advantages(r, [8])
    assert A.tolist() == pytest.approx([.540061] * 5 + [-1.620182] * 2 + [.540061], abs=1e-6)
    assert A.view(2, 4).mean(1).tolist() == pytest.approx([.540061, -.540061], abs=1e-6)
    assert pool_advantages(r, 4).tolist() == pytest.approx([0] * 4 + [.866024, -.866024, -.866024, .866024], abs=1e-6)
    for M, K in ((8, 3), (32, 1), (12, 11)):
        A = pool_advantages((torch.arange(M) < K).double(), [M])
        scale = math.sqrt((M - 1) / M)
        assert A[0].item() == pytest.approx(scale * math.sqrt((M - K) / K), rel=1e-4)
        assert A[-1].item() == pytest.approx(-scale * math.sqrt(K / (M - K)), rel=1e-4)


def test_pooling_offsets_a_phrasing():
    """T3, T4: the variance of a pool is that within phrasings and that between them, whose means A inherits."""
    r = torch.tensor(np.random.default_rng(1).random((4, 8)) < np.array([[.9], [.5], [.2], [.1]])).double()
    A, p = pool_advantages(r.flatten(), [32]).view(4, 8), r.mean(1)
    torch.testing.assert_close(A.mean(1), (p - r.mean()) / (r.std() + 1e-6))
    variance = r.var(correction=0).item()
    assert variance == pytest.approx(((p * (1 - p)).mean() + p.var(correction=0)).item())
    assert variance == pytest.approx((r.mean() * (1 - r.mean())).item())
    assert pool_advantages(r.flatten(), 8).view(4, 8).mean(1).abs().max() < 1e-9


def test_chance_of_a_dead_pool():
    """T1, T2 and O10: a pool is dead less often than G rows; than as many rows of the question, only on an average of p."""
    def dead(ps, G=8):
        return np.prod(np.array(ps) ** G) + np.prod((1 - np.array(ps)) ** G)
    assert dead([.98]) == pytest.approx(.850763, abs=1e-6) and dead([.98] * 4) == pytest.approx(.523883, abs=1e-6)
    assert dead([.98, .9, .7, .95]) == pytest.approx(.0140062, abs=1e-7)
    assert dead([.5, 1, 1, 1]) == pytest.approx(.00390625) and dead([.5]) == pytest.approx(.0078125)
    assert dead([.5] * 4) == pytest.approx(4.66e-10, rel=1e-2)
    rng = np.random.default_rng(2)
    for ps in rng.random((50, 4)):
        assert dead(ps) <= dead(ps[:1]) and dead(ps) <= dead([ps.mean()] * 4) + 1e-15
    r = torch.tensor(rng.random((4000, 4, 2)) < np.array([[.9], [.8], [.95], [.7]])).double()
    A = pool_advantages(r.flatten(), [8] * 4000).view(4000, 8)
    wanted = dead([.9, .8, .95, .7], 2)
    assert abs((A == 0).all(1).double().mean().item() - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / 4000)


def test_pass_at_k_golden():
    for case, wanted in (((128, 1, 32), .25), ((128, 3, 32), .58145857), ((8, 2, 4), .78571429), ((8, 0, 4), 0)):
        assert common.pass_at_k(*case) == pytest.approx(wanted, abs=1e-8)


# --- a table: two prompts, three responses of one token -----------------------------------------------------
class Table(torch.nn.Module):
    """Prompts [3] and [4] have the logits of rows 0 and 1 of a (2, 3) table."""

    def __init__(self, logits):
        super().__init__()
        self.head = torch.nn.Linear(2, 3, bias=False, dtype=torch.float64)
        self.head.weight.data = torch.tensor(logits, dtype=torch.float64).T.clone()

    def base_model(self, input_ids, use_cache):
        return SimpleNamespace(last_hidden_state=torch.stack([input_ids == 3, input_ids == 4], -1).double())

    def get_output_embeddings(self):
        return self.head


def on_the_table(monkeypatch, anchor, logits=((0, 0, 0), (1, 0, -1))):
    """Loss, gradients of both rows of the table and ratios of one update."""
    model, seen, real = Table(logits), [], ta_grpo.policy_loss
    logps = torch.tensor(logits, dtype=torch.float64).log_softmax(1)
    rows = [dict(prompt=[3], asked=[3 + n], tokens=torch.tensor([o]), logps=logps[n, o][None])
            for n, o in ((0, 0), (0, 1), (1, 0), (1, 2))]
    cfg = SimpleNamespace(minibatches=1, inner_epochs=1, micro_tokens=99, group=2, aggregation="token", anchor=anchor,
                          clip_low=.2, clip_high=.2, kl_coef=0., temperature=1., compute_dtype="float32", grad_clip=1e9)
    monkeypatch.setattr(ta_grpo, "policy_loss", lambda logp, was, *a: seen.append((logp - was).exp().detach()) or seen.append(
        real(logp, was, *a)) or seen[-1])
    SGD.grads = []
    A = pool_advantages(torch.tensor([1., 1, 1, 0], dtype=torch.float64), [4])
    sequences, lengths, sampled, moved = anchored(rows, anchor)
    ta_grpo.update(cfg, model, None, SGD(model.parameters(), 0, 0, 0), sequences, lengths, sampled, moved, [4], A, 3)
    monkeypatch.undo()
    return seen[1][0].mean().item(), SGD.grads[0][0].T, seen[0][:, 0].tolist()


@pytest.mark.parametrize("anchor,loss,q0,q1,ratios", [
    ("original", 0, (-.25, -.125, .375), (0, 0, 0), (1, 1, 1, 1)),
    ("sampled", 0, (-.04167, -.04167, .08333), (-.29131, -.06118, .35249), (1, 1, 1, 1)),
    ("cross", 1.075781, (-.54623, -.48359, 1.02982), (0, 0, 0), (1, 1, .50107, 3.70245))])
def test_golden_table(monkeypatch, anchor, loss, q0, q1, ratios):
    """O8, and its finite differences: in ours only the numerator moves."""
    got = on_the_table(monkeypatch, anchor)
    assert got[0] == pytest.approx(loss, abs=1e-5)
    np.testing.assert_allclose(got[1], [q0, q1], atol=1e-5)
    assert got[2] == pytest.approx(ratios, abs=1e-5)
    table, rows = np.array([[0., 0, 0], [1, 0, -1]]), ((0, 0), (0, 1), (1, 0), (1, 2))
    logp = lambda t: t - np.log(np.exp(t).sum(1, keepdims=True))        # noqa: E731

    def surrogate(t):
        total = 0
        for (n, o), A in zip(rows, oracle_advantages([1, 1, 1, 0], [4])):
            given, below = (n if anchor == "sampled" else 0), (0 if anchor == "original" else n)
            r = np.exp(logp(t)[given, o] - logp(table)[below, o])
            total -= min(r * A, np.clip(r, .8, 1.2) * A) / 4
        return total
    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[place] = 1e-6
        assert got[1][place].item() == pytest.approx((surrogate(table + step) - surrogate(table - step)) / 2e-6, abs=1e-5)


def test_anchoring_bias_is_bounded_by_total_variation():
    """T6: what a mean under q_n differs by from one under q_0."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        p, q, f = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5)), rng.normal(size=5)
        assert abs((p - q) @ f) <= 2 * np.abs(f).max() * np.abs(p - q).sum() / 2 + 1e-12


# --- a step of the loop against plain.py --------------------------------------------------------------------
class Slow(SGD):
    """Steps that do not blow the learner up, but take ratios past the clip."""

    def step(self):
        SGD.grads.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p -= RATE * p.grad


def step(monkeypatch, tmp_path, name, script=ta_grpo, edit=None, counts=None, easy=False, **settings):
    """One step of train() in float64; returns the gradients of its updates, the pools rolled and the config. easy: the first
    rephrasing and the question change places, for rows of the question alone are nearly all wrong."""
    settings = dict(dict(prompts=3, group=4, steps=1, grad_clip=1e9, max_new_tokens=32, seed=2, probe=0, warmup=0), **settings)
    model, tokenizer, eos_ids, V = common.load_model(f"{WORLD}/learner", "cpu", torch.float64)
    cfg, _ = common.parse_config(script.Config, script.PRESETS, ["--device", "cpu"])
    vars(cfg).update(settings)
    problems = common.load_problems(f"{WORLD}/train.jsonl")[:settings["prompts"] + 1]
    for p in problems if easy else []:
        p["question"], p["rephrasings"][0]["text"] = p["rephrasings"][0]["text"], p["question"]
    for p, n in zip(problems, counts or []):
        p["rephrasings"] = p["rephrasings"][:n]
    [(_, problems)] = common.encode_problems(cfg, model, tokenizer, [("train", problems)])
    script.add_phrasings(cfg, model, tokenizer, problems)
    rolled, roll, bind = [], script.roll_pools, script.anchored
    monkeypatch.setattr(script, "roll_pools", lambda *a, **k: rolled.append(roll(*a, **k)) or rolled[-1])
    monkeypatch.setattr(script, "anchored", lambda rows, a: bind([edit(row) for row in rows] if edit else rows, a))
    monkeypatch.setattr(torch.optim, "AdamW", Slow)
    SGD.grads = []
    os.makedirs(tmp_path / name)
    script.train(cfg, model, tokenizer, eos_ids, V, problems, [], str(tmp_path / name), None)
    monkeypatch.undo()
    return SGD.grads, [pool for fresh in rolled for pool in fresh], cfg


def oracle_step(pools, cfg):
    """Gradients of the updates, row by row without cache, padding or micro-batches."""
    model, _, _, V = common.load_model(f"{WORLD}/learner", "cpu", torch.float64)

    def logps(row, prompt):
        return plain.row_logps(model, prompt, row["tokens"].tolist(), cfg.temperature, V)
    with torch.no_grad():
        for pool in pools:
            unit = [len(pool)] if cfg.pool == "joint" else [cfg.group] * (len(pool) // cfg.group)
            for row, A in zip(pool, oracle_advantages([row["reward"] for row in pool], unit)):
                row["given"] = row["asked"] if cfg.anchor == "sampled" else row["prompt"]
                row["ref"] = logps(row, row["given"])
                row["A"], row["old"] = A, logps(row, row["asked"]) if cfg.anchor == "cross" else row["ref"]
    grads, size = [], len(pools) // cfg.minibatches
    for part in [pools[i:i + size] for i in range(0, len(pools), size)] * cfg.inner_epochs:
        rows, loss = [row for pool in part for row in pool], 0.
        for row in rows:
            logp = logps(row, row["given"])
            r, d = (logp - row["old"]).exp(), row["ref"] - logp
            terms = -torch.minimum(r * row["A"], r.clamp(.8, 1.2) * row["A"]) + cfg.kl_coef * (d.exp() - d - 1)
            loss = loss + terms.sum() / sum(len(row["tokens"]) for row in rows)
        model.zero_grad()
        loss.backward()
        if cfg.kl_coef or any(row["A"] for row in rows):
            grads.append([p.grad.clone() for p in model.parameters()])
            with torch.no_grad():
                for p in model.parameters():
                    p -= RATE * p.grad
    return grads


def apart(got, wanted):
    """Largest difference of any gradient, or infinity if the updates are not as many."""
    if len(got) != len(wanted):
        return math.inf
    return max((g - w).abs().max().item() for a, b in zip(got, wanted) for g, w in zip(a, b))


def largest(grads):
    return max(g.abs().max().item() for update in grads for g in update)


FULL = dict(counts=[1, 3, 2, 3], kl_coef=.2, minibatches=3)


@pytest.mark.parametrize("settings", [
    dict(counts=[3, 0, 2, 3]), FULL | dict(inner_epochs=2), FULL | dict(anchor="sampled"), FULL | dict(anchor="cross"),
    dict(pool="per_phrasing", counts=[1, 2, 1, 2]),
    dict(kl_coef=.2, minibatches=3, matched=True, micro_tokens=150, temperature=.8, easy=True)])
def test_a_step_is_the_formulas(monkeypatch, tmp_path, settings):
    """O6, O9, O12 and (1) to (4): ratios, KL and old log-probs given q_0, token ids reused, pools whole, in padded batches."""
    got, pools, cfg = step(monkeypatch, tmp_path, "a", **settings)
    wanted = oracle_step(pools, cfg)
    assert 0 < len(got) and apart(got, wanted) < 1e-6 and largest(got) > 1e-3
    if cfg.inner_epochs == 1 and cfg.minibatches == 1:
        assert [r["clip_frac"] for r in lines(tmp_path / "a")] == [0]
    elif cfg.inner_epochs == 2:
        assert lines(tmp_path / "a")[0]["clip_frac"] > 0


ASKED = ("        met = update(", '        update.asked = anchored(batch, "sampled")[0]\n        met = update(')
FAULTS = dict(
    old_from_sampler=[("was, away = old[rows] if len(parts) > 1 else logp.detach(),", "was, away = sampled[rows],")],
    std_per_phrasing=[("advantages(pool[None])[0] for",
                       "(pool - pool.mean()) / (pool.view(-1, 4).std(1).repeat_interleave(4) + 1e-6) for")],
    numerator_under_q_n=[ASKED, ("entropy, mask = score(model, sequences,", "entropy, mask = score(model, update.asked,")],
    ddof=[("rewards.std(1, keepdim=True)", "rewards.std(1, keepdim=True, correction=0)")],
    kl_under_q_n=[ASKED, ("= score(net, sequences,", "= score(net, update.asked if net is reference else sequences,")],
    pool_split=[("parts = [torch.cat([pools[q] for q in part])", "parts = [part"),
                ("for part in torch.arange(len(sizes)).chunk", "for part in torch.arange(len(A)).chunk")],
    key_from_row_number=[("units = sizes if", "units = [16] * (len(batch) // 16) + [len(batch) % 16] if")])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(monkeypatch, tmp_path, fault):
    """The list of section 8: each, put into the script, is seen by the test above."""
    with open(os.path.join(ROOT, "ta_grpo.py")) as f:
        text = f.read()
    for old, new in FAULTS[fault]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    broken = ModuleType("broken")
    broken.__file__ = ta_grpo.__file__
    monkeypatch.setitem(sys.modules, "broken", broken)
    exec(compile(text, "broken", "exec"), vars(broken))
    with monkeypatch.context() as m:
        got, pools, cfg = step(m, tmp_path, "a", script=broken, **FULL)
    assert apart(got, oracle_step(pools, cfg)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ["original", "sampled", "cross"])
def test_other_prompts_after_the_rollout(monkeypatch, tmp_path, anchor):
    """O7: anchored to the question, loss and gradients do not know the rephrasings; anchored to those, they do."""
    def forget(row):
        return row if row["asked"] == row["prompt"] else row | dict(asked=[7, 9, 5, 5])
    how = dict(kl_coef=.1, minibatches=3, anchor=anchor)
    a, b = (step(monkeypatch, tmp_path, str(i), edit=e, **how)[0] for i, e in enumerate((None, forget)))
    assert (apart(a, b) == 0) == (anchor != "sampled")


def test_no_rephrasings_is_grpo_whatever_the_anchor(monkeypatch, tmp_path):
    """O1, bit for bit; that it is also ngrpo.py's plain GRPO stands in test_twins.py."""
    how = dict(num_rephrasings=0, kl_coef=.1, minibatches=3, group=8, easy=True)
    first, *others = (step(monkeypatch, tmp_path, a + p, anchor=a, pool=p, **how)[0] for a, p in (
        ("original", "joint"), ("sampled", "per_phrasing"), ("cross", "joint")))
    assert largest(first) > 1e-3 and all(apart(first, other) == 0 for other in others)


@pytest.mark.slow
def test_copies_are_a_larger_group(monkeypatch, tmp_path):
    """O2: rephrasings that are the question itself: any anchor is the same, and it is GRPO with a group of (N+1) G."""
    how = dict(kl_coef=.1, minibatches=3, easy=True)
    first, *others = (step(monkeypatch, tmp_path, a, anchor=a, matched=True, **how)[0] for a in ("original", "sampled", "cross"))
    larger = step(monkeypatch, tmp_path, "larger", num_rephrasings=0, **how | dict(group=16))[0]
    assert largest(first) > 1e-3 and all(apart(first, other) == 0 for other in others) and apart(first, larger) < 1e-7


def test_clip_of_a_second_update():
    """O12: no gradient for A > 0 above 1 + eps, nor for A < 0 below 1 - eps."""
    logp = torch.tensor([[.3, .1, -.3, -.1]]).repeat(2, 1).requires_grad_()
    loss, clipped = policy_loss(logp, torch.zeros(2, 4), torch.tensor([1., -1.]), torch.ones(2, 4), .2, .2)
    loss.sum().backward()
    assert (logp.grad == 0).tolist() == clipped.tolist() == [[True, False, False, False], [False, False, True, False]]


# --- pools --------------------------------------------------------------------------------------------------
def test_smaller_pools(monkeypatch, tmp_path, capsys):
    """(N_q + 1) G rows, counted; what is too long for the prompt is no rephrasing, and the next one takes its place."""
    _, pools, cfg = step(monkeypatch, tmp_path, "a", counts=[0, 1, 3, 2], num_rephrasings=2)
    assert "questions by number of phrasings: {1: 1, 2: 1, 3: 2}" in capsys.readouterr().out
    assert sorted(map(len, pools)) == sorted(4 * len(pool[0]["phrasings"]) for pool in pools) and len({*map(len, pools)}) > 1
    assert all(row["asked"] == row["phrasings"][i // 4] for pool in pools for i, row in enumerate(pool))
    assert all(pool[0]["asked"] == pool[0]["prompt"] for pool in pools)
    log, = lines(tmp_path / "a")
    assert log["phrasings"] == pytest.approx(sum(map(len, pools)) / 12)
    model, tokenizer, *_ = common.load_model(f"{WORLD}/learner")
    problems = common.load_problems(f"{WORLD}/train.jsonl")[:1]
    problems[0]["rephrasings"].insert(0, dict(text="pens " * 600))
    vars(cfg).update(max_prompt_tokens=100)
    common.encode_problems(cfg, model, tokenizer, [("x", problems)])
    ta_grpo.add_phrasings(cfg, model, tokenizer, problems)
    assert "1 prompts longer than 80 tokens dropped" in capsys.readouterr().out.replace("100", "80")
    assert problems[0]["phrasings"] == [problems[0]["prompt"]] + [
        common.encode_prompt(tokenizer, r["text"]) for r in problems[0]["rephrasings"][1:3]]


def test_no_rephrasings_at_all_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ta_grpo, "load_model", lambda *a: pytest.fail("model loaded"))
    (tmp_path / "bare.jsonl").write_text('{"question": "q", "answer": "1"}')
    with pytest.raises(SystemExit) as stop:
        ta_grpo.main(["--data", str(tmp_path / "bare.jsonl"), "--out", str(tmp_path)])
    assert stop.value.code == 2 and "no question has rephrasings" in capsys.readouterr().err


@pytest.mark.parametrize("tries", [1, 3, 20])
def test_dynamic_sampling(monkeypatch, tmp_path, tries):
    """O11: kept are exactly the pools with spread, as many as B, none of them twice; the others are in no denominator."""
    how = dict(num_rephrasings=1, group=2, dynamic_sampling=tries, seed=5)
    got, pools, cfg = step(monkeypatch, tmp_path, "a", **how)
    spread = [pool for pool in pools if len({row["reward"] for row in pool}) > 1]
    log, = lines(tmp_path / "a")
    assert log["rollouts"] == len(pools) / 3 <= tries and 0 < len(spread) < len(pools) and log["dead"] == 0
    assert log["rollouts"] == tries or len(spread) >= 3
    assert tries < 20 or log["rollouts"] < 20                   # no more than it takes
    assert apart(got, oracle_step(spread[:3], cfg)) < 1e-6
    if tries == 1:                                              # off: dead pools have no loss, but their tokens count
        off, same, cfg = step(monkeypatch, tmp_path, "b", **how | dict(dynamic_sampling=0))
        share = sum(len(r["tokens"]) for pool in spread for r in pool) / sum(len(r["tokens"]) for pool in same for r in pool)
        assert apart(off, [[share * g for g in got[0]]]) < 1e-7 and 0 < share < 1


def test_nothing_alive_is_no_error(tmp_path, monkeypatch):
    """One token is no answer: every pool is dead, whatever is tried, and each try has draws of its own."""
    purposes, real = [], ta_grpo.roll_pools
    monkeypatch.setattr(ta_grpo, "roll_pools", lambda *a, **k: purposes.append(a[4]) or real(*a, **k))
    ta_grpo.main(["--steps", "2", "--dynamic_sampling", "2", "--out", str(tmp_path / "a"), *FEW, "--max_new_tokens", "1"])
    log = next(r for r in lines(tmp_path / "a") if r["kind"] == "step")
    assert log["dead"] == 1 and log["rollouts"] == 2 and log["grad_norm"] is None
    assert [p for p in purposes if p[2] == 0] == [(1, n, 0) for n in (1, 2, 3, 4)]


# --- diagnostics --------------------------------------------------------------------------------------------
def test_lexical_distance():
    """Same rows 0, no common n-gram 1, one of three in common 2/3; short rows are one n-gram."""
    assert lexical_distance([[1, 2, 3, 4]] * 3) == 0 and lexical_distance([[1, 2, 3], [4, 5, 6]]) == 1
    assert lexical_distance([[1, 2, 3, 4], [1, 2, 3, 5]]).item() == pytest.approx(2 / 3)
    assert lexical_distance([[1, 2], [1, 2], [2]]).item() == pytest.approx(2 / 3)


def test_probe_by_hand(monkeypatch):
    """Shares over own, pooled and matched rows; gaps and effective shares against plain.py; 0 and 1 for the question."""
    model, tokenizer, eos_ids, V = common.load_model(f"{WORLD}/learner")
    cfg, _ = common.parse_config(ta_grpo.Config, ta_grpo.PRESETS, ["--device", "cpu", "--group", "3", "--temperature", ".9"])
    problems = common.load_problems(f"{WORLD}/train.jsonl")[:4]
    problems[1]["rephrasings"] = problems[1]["rephrasings"][:1]
    common.encode_problems(cfg, model, tokenizer, [("x", problems)])
    ta_grpo.add_phrasings(cfg, model, tokenizer, problems)
    seen, real = [], ta_grpo.roll_pools
    monkeypatch.setattr(ta_grpo, "roll_pools", lambda *a, **k: seen.extend(real(*a, **k)) or seen)
    table = ta_grpo.probe(cfg, model, model, tokenizer, problems, V, head=model.get_output_embeddings(), eos_ids=eos_ids)
    shares, gaps = {}, {}
    for p, pool in zip(problems, seen, strict=True):
        N = len(p["rephrasings"])
        assert [row["asked"] for row in pool[::3]] == p["phrasings"] + [p["prompt"]] * N
        r = np.array([row["reward"] for row in pool])
        for name, rows in (("own", r[:3]), ("pool", r[:3 * N + 3]), ("matched", np.append(r[:3], r[3 * N + 3:]))):
            assert len(rows) == (3 if name == "own" else 3 * N + 3)
            shares.setdefault("zero@" + name, []).append((rows == 0).all())
            shares.setdefault("one@" + name, []).append((rows == 1).all())
        for i, row in enumerate(pool[:3 * N + 3]):
            with torch.no_grad():
                a, b = (plain.row_logps(model, q, row["tokens"].tolist(), .9, V) for q in (row["prompt"], row["asked"]))
            gaps.setdefault(i // 3, []).append((a - b).double().numpy())
    assert {k: table[k] for k in shares} == pytest.approx({k: np.mean(v) for k, v in shares.items()})
    for n, g in gaps.items():
        flat, w = np.concatenate(g), np.exp([x.sum() for x in g])
        assert table["anchor_gap"][n] == pytest.approx(flat.mean(), abs=1e-5)
        assert table["anchor_gap_95"][n] == pytest.approx(np.quantile(np.abs(flat), .95), abs=1e-4)
        assert table["anchor_ess"][n] == pytest.approx(w.sum() ** 2 / (w ** 2).sum() / len(w), rel=1e-3)
    assert len(gaps) == 4 == len(table["anchor_ess"]) and abs(table["anchor_gap"][0]) < 1e-5 < abs(table["anchor_gap"][1])
    assert table["lexical_distance"].item() == pytest.approx(np.mean([lexical_distance(
        [row["tokens"].tolist() for row in pool[:3]]).item() for pool in seen]))


def test_probe_disturbs_nothing(tmp_path):
    for name, flags in (("a", ["--probe", "0"]), ("b", ["--probe", "3", "--eval_every", "1"])):
        ta_grpo.main(["--steps", "2", "--out", str(tmp_path / name), *FEW, *flags])
    a, b = ([r for r in lines(tmp_path / n) if r["kind"] == "step"] for n in "ab")
    assert a == b and sum(r["kind"] == "eval" and r["data"] == "probe" for r in lines(tmp_path / "b")) == 3


def test_logp_gap_is_rounding(tmp_path):
    """Rows scored after another prompt than they were sampled from are not taken for a bug of the sampler."""
    for anchor in ("original", "sampled", "cross"):
        ta_grpo.main(["--steps", "1", "--anchor", anchor, "--out", str(tmp_path / anchor), *FEW])
        log = next(r for r in lines(tmp_path / anchor) if r["kind"] == "step")
        assert 0 < log["logp_gap_max"] < 1e-3 and (log["clip_frac"] > 0) == (anchor == "cross")


@pytest.mark.slow
def test_resumed_it_is_the_run_that_was_not_stopped(tmp_path):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    flags = ["--minibatches", "3", "--kl_coef", ".01", "--dynamic_sampling", "2", "--eval_every", "1", *FEW]
    ta_grpo.main(["--steps", "3", "--out", a, *flags])
    ta_grpo.main(["--steps", "2", "--out", b, *flags])
    ta_grpo.main(["--resume", b, "--steps", "3"])
    assert alike(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("flags,low,high", [([], .4, 1), (["--matched", "True"], 0, .3), (["--anchor", "sampled"], 0, .2)])
def test_the_demo(tmp_path, flags, low, high):
    """Held out, on the original phrasing: anchored pools learn, as many rows of the question and v1's ratio do not."""
    ta_grpo.main(["--out", str(tmp_path / "a"), *flags])
    first, *_, last = (r["pass@1"] for r in lines(tmp_path / "a") if r.get("pass@1") is not None)
    assert first < .05 and low <= last <= high


# --- bench/rephrase.py --------------------------------------------------------------------------------------
TOM = "Tom has 12 boxes of 4 pens. He gives away twenty-one pens. How many pens are left?"
EQ = "If $2x + 3y = 12$ and $x = 3$, what is $y$?"
HOUSE = "A house costs $80,000 and repairs cost $1,500.50. What is the sum?"


@pytest.mark.parametrize("question,answer,text,reason", [
    (TOM, "27", "Tom owns 12 boxes with 4 pens each and gives 21 pens away. How many does he keep?", ""),
    (TOM, "27", "After giving away twenty one pens from his twelve boxes of four pens, how many pens are left to Tom?", ""),
    (TOM, "27", "Given: 12 boxes, 4 pens in each; 21 pens given away. Find: the pens left.", ""),
    (TOM, "27", "", "empty"), (TOM, "27", " \n ?! ", "empty"), (TOM, "27", TOM, "same"),
    (TOM, "27", TOM.lower().replace(".", " ,") + "\n", "same"),
    (TOM, "27", "Tom has 4 boxes of 12 pens and loses 21. How many stay?", "same as kept"),
    (TOM, "27", "Tom has 12 boxes of 4 pens, gives away twenty-one, and keeps 27. How many are left?", "leak"),
    (TOM, "27", "Tom has 12 boxes of 4 pens. He gives 21 pens away, so 12 * 4 - 21 = 27. How many are left?", "leak"),
    (TOM, "27", "Tom has 12 boxes of 4 pens, 12 * 4 = 48 in all, and gives away 21 pens. How many are left?", "worked"),
    (TOM, "27", "Tom has 12 boxes of 4 pens and gives away 21 pens. Therefore how many are left?", "worked"),
    (TOM, "27", "Tom has 12 boxes of 4 pens and gives away 21 pens. What is left? \\boxed{?}", "worked"),
    (TOM, "27", "Tom has 12 boxes of 4 pens. He gives some pens away. How many pens are left?", "numbers"),
    (TOM, "27", "Tom has 12 boxes of 4 pens. He gives away 22 pens. How many pens are left?", "numbers"),
    (TOM, "27", "Tom has 12 boxes of 4 pens and 4 more. He gives away 21 pens. How many pens are left?", "numbers"),
    (TOM, "27", "Tom has twice 12 boxes of 4 pens. He gives away 21 pens. How many pens are left?", "numbers"),
    (TOM, "27", "Tom has 12 boxes of 4 pens. He gives away 21 pens, x of them blue. How many pens are left?", "variables"),
    (TOM, "27", "12 boxes, 4 pens, 21?", "length"),
    (TOM, "27", "12 boxes of 4 pens are Tom's. He gives 21 pens away to his friends.", "asks"),
    (TOM, "27", "Tom, " + "a very kind, generous boy, " * 9 + "has 12 boxes of 4 pens, gives 21 away. How many stay?", "length"),
    (EQ, "2", "What is $y$, given that $x = 3$ and $2x + 3y = 12$?", ""),
    (EQ, "2", "Given $x = 3$ and $2x + 3y = 12$, find the value of $y$.", ""),
    (EQ, "2", "What is $b$, given that $a = 3$ and $2a + 3b = 12$?", "variables"),
    (EQ, "2", "What is $y$, given that $x = 3$ and $2x + 3y = 12?", "latex"),
    (EQ, "y=2", "What is $y$, given that $x = 3$ and $2x + 3y = 12$ and y=2?", "leak"),
    (EQ, "2", "What is $y$, given that $x = 3$ and ${2x + 3y = 12$?", "latex"),
    (EQ, "2", "What is $y$, given that $x = 3$ and $2x + 3y = 12$? It is $y = 4 - 2$.", "leak"),
    (EQ, "2", "What is $y$, given that $x = 3$, hence $2x = 6$, and $2x + 3y = 12$?", "worked"),
    (HOUSE, "81500.5", "What do a house of $80000 and repairs of $1500.50 cost together?", ""),
    (HOUSE, "81500.5", "What do a house of $80,000 and repairs of $1,500 cost together?", "numbers"),
    (HOUSE, "81500.5", "A house is $80,000, repairs are $1,500.50, in all 81,500.5. What is the sum?", "leak"),
    (HOUSE, ["81500.5", "eighty"], "A house costs $80,000 (eighty thousand), repairs $1,500.50. What is the sum?", "leak")])
def test_filters(question, answer, text, reason):
    kept = [text] if reason == "same as kept" else []
    assert rephrase.verdict(question, text, answer, kept) == reason.removesuffix(" as kept")


def test_numbers():
    assert rephrase.numbers("1,200 pens, twenty-one, 3.5 and 3.") == rephrase.numbers("21 and 3, 3.50, 1200")
    assert rephrase.numbers("twice a hundred") != rephrase.numbers("a hundred") and rephrase.numbers("someone, often") == []


def run_rephrase(monkeypatch, tmp_path, say, problems=3, last=0):
    """main() with a model that says `say(i)` in its i-th completion and ends it with the id `last`."""
    count = []
    monkeypatch.setattr(rephrase, "decode", lambda tokenizer, tokens, lengths: [
        count.append(1) or say(len(count) - 1) for _ in range(len(tokens))])
    monkeypatch.setattr(rephrase, "rollout", lambda model, head, prompts, u, **k: (
        torch.full((len(u), 1), last), None, torch.ones(len(u), dtype=torch.long)))
    out = str(tmp_path / "out.jsonl")
    with open(tmp_path / "bare.jsonl", "w") as f:
        f.writelines(json.dumps(p | dict(rephrasings=[])) + "\n" for p in common.load_problems(f"{TINY}/easy_test.jsonl")[:3])
    reasons = rephrase.main([str(tmp_path / "bare.jsonl"), out, "--model", f"{TINY}/learner", "--questions", str(problems),
                             "--tries", "2", "--chunk", "2"])
    return reasons, common.load_problems(out)


def test_records_say_where_they_come_from(monkeypatch, tmp_path):
    questions = [p["question"] for p in common.load_problems(f"{TINY}/easy_test.jsonl")[:3]]

    def say(i):                                 # six completions a question: two of each kind
        return '"' + "Please: " * (i % 6 + 1) + questions[i // 6] + '"' if i % 6 != 1 else "I cannot."
    reasons, made = run_rephrase(monkeypatch, tmp_path, say)
    assert reasons == dict(kept=9)                              # the first of each kind is enough
    r = made[1]["rephrasings"]
    assert [x["kind"] for x in r] == list(rephrase.KINDS) and r[0]["text"] == "Please: " + questions[1]
    assert all(x["source"] == f"model {TINY}/learner" and len(x["prompt"]) == 12 and x["date"] for x in r)
    with pytest.raises(SystemExit):                             # a file is not written over
        rephrase.main([f"{TINY}/easy_test.jsonl", str(tmp_path / "out.jsonl"), "--model", "x"])


def test_rejects_are_counted(monkeypatch, tmp_path):
    reasons, made = run_rephrase(monkeypatch, tmp_path, lambda i: "So be it." if i % 2 else "", problems=2)
    assert reasons["empty"] == 6 and sum(reasons.values()) == 12 and not any(p["rephrasings"] for p in made)
    os.remove(tmp_path / "out.jsonl")
    assert run_rephrase(monkeypatch, tmp_path, lambda i: "How many?", problems=1, last=5)[0] == dict(cut=6)


def test_the_tiny_learner_cannot_rephrase(tmp_path, capsys):
    """End to end, with a model that only calculates: nothing is kept, every reject has its reason."""
    out = str(tmp_path / "out.jsonl")
    rephrase.main([f"{WORLD}/test.jsonl", out, "--model", f"{WORLD}/learner", "--questions", "2", "--tries", "1", "--number", "4",
                   "--max_new_tokens", "24"])
    assert all(len(p["rephrasings"]) == 3 for p in common.load_problems(out)) and "rephrasings: {" in capsys.readouterr().out


@pytest.mark.real
@pytest.mark.slow
def test_five_questions_of_gsm8k(tmp_path, smollm, shared):
    """SmolLM2-135M is too small to do it well; what it keeps must pass the filters, and train."""
    out = str(tmp_path / "out.jsonl")
    reasons = rephrase.main([os.path.join(shared, "gsm8k_test.jsonl"), out, "--model", smollm, "--questions", "5", "--tries", "2",
                             "--max_new_tokens", "120"])
    made = common.load_problems(out)
    with open(out) as f:
        assert len(made) == 5 == len([json.loads(line) for line in f]) and 0 < sum(reasons.values()) <= 30
    for p in made:
        assert all(rephrase.verdict(p["question"], r["text"], p["answer"]) == "" for r in p["rephrasings"])
