"""S2L-PO's schedule, ratios and bookkeeping against numpy float64 and loops, and plain GRPO where it is off."""
import doctest
import hashlib
import itertools
import json
import math
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TINY, random_model
from test_saving import SMALL, alike, lines
from transformers import AutoModelForCausalLM, AutoTokenizer

import common
import s2l_po
from s2l_po import advantages, denominator, explorer_count, join, nucleus, policy_loss, rollout, sample, vocab_logps

EXPLORER, LEARNER = f"{TINY}/explore/explorer", f"{TINY}/explore/learner"


def steps_of(out):
    return [r for r in lines(out) if r["kind"] == "step"]


def watched(tmp_path, name, *flags):
    """A run whose calls are kept: of rollout (keywords, model, result), of update (arguments, result), and the models
    as loaded, each with a digest of its weights before and after."""
    seen = SimpleNamespace(rollouts=[], updates=[], models=[], out=str(tmp_path / name))
    real = {k: getattr(s2l_po, k) for k in ("rollout", "update", "load_model")}

    def digest(model):
        return hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())).hexdigest()

    def load(*a):
        loaded = real["load_model"](*a)
        seen.models.append(SimpleNamespace(model=loaded[0], before=digest(loaded[0]), tokenizer=loaded[1], calls=[]))
        return loaded
    with pytest.MonkeyPatch.context() as m:
        m.setattr(s2l_po, "load_model", load)
        m.setattr(s2l_po, "rollout", lambda model, **k: seen.rollouts.append((k, model, real["rollout"](model, **k)))
                  or seen.rollouts[-1][2])
        m.setattr(s2l_po, "update", lambda *a: seen.updates.append((a, real["update"](*a))) or seen.updates[-1][1])
        s2l_po.main(["--out", seen.out, *SMALL, *flags])
    for x in seen.models:
        x.after = digest(x.model)
    return seen


def test_docstring_example():
    assert doctest.testmod(s2l_po).failed == 0 and doctest.testmod(s2l_po).attempted == 2


def test_presets():
    """The paper's own: Qwen3-8B-Base and 1.7B, 16 steps of 1,024 prompts in minibatches of 16, G 16, N 8 by default."""
    cfg = {p: common.parse_config(s2l_po.Config, s2l_po.PRESETS, ["--preset", p, "--device", "cpu"])[0] for p in s2l_po.PRESETS}
    paper, one = cfg["paper"], cfg["one_gpu"]
    assert (paper.model, paper.explorer) == ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-1.7B-Base") and "DAPO-Math-17" in paper.data
    assert (paper.steps, paper.prompts, paper.group, paper.prompts // paper.minibatches) == (16, 1024, 16, 16)
    assert (one.model, one.explorer) == ("Qwen/Qwen3-1.7B-Base", "Qwen/Qwen3-0.6B-Base")
    assert {c.schedule for c in cfg.values()} == {"linear"} and os.path.samefile(cfg["tiny"].model, LEARNER)


# --- the schedule -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("N,G,wanted", [
    (8, 16, [16, 14, 12, 10, 7, 5, 3, 0]), (4, 8, [8, 6, 3, 0]), (5, 16, [16, 12, 8, 4, 0]), (5, 8, [8, 6, 4, 2, 0]),
    (8, 8, [8, 7, 6, 5, 4, 3, 2, 0]), (1, 8, [8]), (0, 8, []), (2, 4, [4, 0])])
def test_tables_of_the_schedule(N, G, wanted):
    assert [explorer_count(i, G, "linear", N) for i in range(1, N + 4)] == wanted + [0] * 3


def test_the_schedule_is_exact():
    """Algorithm 1 in fractions of integers: from all to exactly none, never rising; floats miss 16 of these cases."""
    wrong = 0
    for N, G in itertools.product(range(2, 200), (2, 4, 8, 12, 16, 32, 64)):
        counts = [explorer_count(i, G, "linear", N) for i in range(1, N + 2)]
        exact = [min(c for c in range(G + 1) if c * (N - 1) >= (N - i) * G) for i in range(1, N + 1)]      # least c >= alpha G
        assert counts == exact + [0] and counts[0] == G and counts[N - 1] == 0
        assert all(a >= b for a, b in itertools.pairwise(counts))
        wrong += any(math.ceil((1 - (i - 1) / (N - 1)) * G) != counts[i - 1] for i in range(1, N + 1))
    assert wrong == 16 and explorer_count(12, 12, "linear", 13) == 1 and math.ceil((1 - 11 / 12) * 12) == 2


def test_the_other_schedules():
    for N, G in ((8, 16), (24, 8), (5, 4), (1, 8)):
        step = [explorer_count(i, G, "step", N) for i in range(1, 50)]
        assert step == [G] * (N // 2) + [0] * (49 - N // 2)
        assert abs(sum(step) - sum(explorer_count(i, G, "linear", N) for i in range(1, 50))) <= max(G, N / 2)
        assert {explorer_count(i, G, "constant", N, 3) for i in range(1, 50)} == {3}
        assert {explorer_count(i, G, "off", N, 3) for i in range(1, 50)} == {0}


# --- ratios and loss ----------------------------------------------------------------------------------------
def oracle(logits, ids, own, sampled, foreign, A, ratio, low=.2, high=.2, dual=0.):
    """-sum over tokens of the clipped surrogate and its gradient at the logits, token by token in float64."""
    loss, grad = 0., np.zeros_like(logits)
    for t, (z, y) in enumerate(zip(logits, ids)):
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        below = sampled[t] if ratio == "behaviour" and foreign[t] else own[t]
        r, w = p[y] / np.exp(below), 1.
        if ratio == "tis" and foreign[t]:
            w = min(np.exp(own[t]) / np.exp(sampled[t]), 2.)
        clipped = min(max(r, 1 - low), 1 + high)
        value, slope = (r * A[t], r * A[t]) if r * A[t] <= clipped * A[t] else (clipped * A[t], 0.)
        if dual and A[t] < 0 and value < dual * A[t]:
            value, slope = dual * A[t], 0.
        loss -= w * value
        grad[t] -= w * slope * (np.eye(len(z))[y] - p)
    return loss, grad


def case(seed=0, n=60, V=7):
    rng = np.random.default_rng(seed)
    logits, ids, A = rng.normal(0, 2, (n, V)), rng.integers(V, size=n), rng.choice([-1.2, .8], n)
    logp = (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[np.arange(n), ids]
    return logits, ids, logp + rng.normal(0, .2, n), logp + rng.normal(0, 1.5, n), rng.random(n) < .5, A


@pytest.mark.parametrize("dual", [0., 3.])
@pytest.mark.parametrize("ratio", ["recompute", "tis", "behaviour"])
def test_ratios_against_numpy(ratio, dual):
    logits, ids, own, sampled, foreign, A = case()
    z = torch.tensor(logits, requires_grad=True)
    logp = z.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
    old, weight = denominator(torch.tensor(own)[:, None], torch.tensor(sampled)[:, None], torch.tensor(foreign)[:, None], ratio)
    assert not old.requires_grad and not weight.requires_grad
    loss, clip = policy_loss(logp, old, torch.tensor(A), torch.ones(len(A), 1), .2, .2, dual)
    (loss * weight).sum().backward()
    wanted, grad = oracle(logits, ids, own, sampled, foreign, A, ratio, dual=dual)
    assert (loss * weight).sum().item() == pytest.approx(wanted, abs=1e-9)
    np.testing.assert_allclose(z.grad.numpy(), grad, atol=1e-9)
    assert clip.any() and not clip.all() and ((z.grad == 0).all(1) == clip[:, 0]).all()
    if ratio == "behaviour":                            # there, and only there, the dual clip has work here
        assert (oracle(logits, ids, own, sampled, foreign, A, ratio, dual=3.)[0] < oracle(
            logits, ids, own, sampled, foreign, A, ratio)[0] - 1)


@pytest.mark.parametrize("A,r,wanted", [(1., 2., -1.2), (1., .5, -.5), (-1., .5, .8), (-1., 2., 2.), (-1., 5., 3.)])
def test_truth_table_of_the_dual_clip(A, r, wanted):
    logp, one = torch.tensor([[math.log(r)]], requires_grad=True), torch.ones(1, 1)
    loss, clip = policy_loss(logp, torch.zeros(1, 1), torch.tensor([A]), one, .2, .2, 3.)
    loss.sum().backward()
    assert loss.item() == pytest.approx(wanted) and clip.item() == (logp.grad.item() == 0)
    bare = policy_loss(logp, torch.zeros(1, 1), torch.tensor([A]), one, .2, .2)[0].item()
    assert bare == pytest.approx(5. if r == 5 else wanted)


def test_recompute_ignores_what_the_explorer_thought():
    """Any log-probs of the explorer give the same ratio there; in the other two only its own rows see them."""
    logits, ids, own, sampled, foreign, A = (torch.tensor(x) for x in case(1))
    own, sampled, foreign = own[:, None], sampled[:, None], foreign[:, None]
    fuzzed = sampled + torch.randn_like(sampled).abs()
    for ratio in ("recompute", "tis", "behaviour"):
        a, b = denominator(own, sampled, foreign, ratio), denominator(own, fuzzed, foreign, ratio)
        moved = (a[0] != b[0]) | (a[1] != b[1])
        assert not moved.any() if ratio == "recompute" else moved[foreign].any() and not moved[~foreign].any()
        assert (a[1] <= 2).all() and torch.equal(a[0][~foreign], own[~foreign]) and (a[1][~foreign] == 1).all()
    assert denominator(own, own - 9, foreign, "tis")[1][foreign].unique().tolist() == [2]


def test_first_update_is_weighted_likelihood():
    """Ratio 1 on all rows, whoever wrote them: nothing clips, the loss is -A, its gradient -A grad log pi."""
    logp, A = torch.randn(6, 5, requires_grad=True), torch.tensor([1., -2, .5, 3, -1, .1])
    old, weight = denominator(logp.detach(), torch.randn(6, 5), torch.tensor([1, 1, 1, 0, 0, 0])[:, None] > 0, "recompute")
    loss, clip = policy_loss(logp, old, A, torch.ones(6, 5), .2, .2, 3.)
    (loss * weight).sum().backward()
    assert not clip.any() and torch.equal(loss, -A[:, None].expand(6, 5)) and torch.equal(logp.grad, -A[:, None].expand(6, 5))


def test_one_normalisation_of_both_sources():
    """Section 3's numbers; who wrote a row, its place, the rewards' scale do not matter; dead groups give exactly 0."""
    w, s = [1., 0, 0, 0], [1., 1, 0, 1]
    A = advantages(torch.tensor([w + s], dtype=torch.float64))
    torch.testing.assert_close(A.abs(), torch.full_like(A, .9354126), atol=2e-6, rtol=0)
    alone = advantages(torch.tensor([w, s], dtype=torch.float64))
    wanted = torch.tensor([[1.499997] + [-.499999] * 3, [.499999, .499999, -1.499997, .499999]], dtype=torch.float64)
    torch.testing.assert_close(alone, wanted, atol=2e-6, rtol=0)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    r = torch.rand(3, 8, dtype=torch.float64)
    torch.testing.assert_close(advantages(r[:, order]), advantages(r)[:, order])
    torch.testing.assert_close(advantages(5 * r - 2), advantages(r), atol=1e-4, rtol=0)
    assert (advantages(torch.full((2, 8), .7)) == 0).all()


def test_share_of_dead_groups():
    """p_w^Gw p_s^Gs + (1 - p_w)^Gw (1 - p_s)^Gs, at which weaker explorers make more of them."""
    g = torch.Generator().manual_seed(0)
    for Gw, wanted in ((16, .440), (0, .185), (7, None)):
        p = torch.tensor([.05] * Gw + [.1] * (16 - Gw))
        formula = p.prod().item() + (1 - p).prod().item()
        assert wanted is None or formula == pytest.approx(wanted, abs=1e-3)
        dead = advantages((torch.rand(20_000, 16, generator=g) < p).double()).eq(0).all(1).double().mean().item()
        assert dead == pytest.approx(formula, abs=.015)


# --- what is sampled is what is recorded --------------------------------------------------------------------
def oracle_logp(logits, temperature, top_p):
    """Log-probs of the tempered nucleus in float64: likeliest ids until their mass reaches top_p, then renormalised."""
    p = np.exp(logits / temperature - (logits / temperature).max())
    p /= p.sum()
    kept, mass = np.zeros(len(p), bool), 0.
    for i in np.argsort(-p):
        kept[i], mass = True, mass + p[i]
        if mass >= top_p:
            break
    return np.log(np.where(kept, p / p[kept].sum(), 0), where=kept, out=np.full(len(p), -np.inf))


def test_nucleus_is_what_sample_draws_from():
    logp = (2 * torch.randn(300, 11, generator=torch.Generator().manual_seed(0))).log_softmax(-1)
    u = torch.rand(300, generator=torch.Generator().manual_seed(1))
    for top_p in (.3, .95):
        wanted = torch.tensor(np.stack([oracle_logp(z.double().numpy(), 1., top_p) for z in logp]))
        got = nucleus(logp, top_p)
        torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=0)
        assert torch.equal(sample(got, u), sample(logp, u, top_p))          # as sample itself would have cut
    assert nucleus(logp, 1.) is nucleus(logp, 0.) is logp


@pytest.mark.parametrize("temperature,top_p", [(1., 1.), (.7, .95), (1.4, .5)])
def test_rollout_records_the_distribution_it_samples(setup, temperature, top_p):
    s = setup()
    tokens, logps, lengths = rollout(s.model, s.head, s.prompts, s.u, temperature, s.eos, s.V, top_p, max_rows=5)
    for i, n in enumerate(lengths.tolist()):
        ids = torch.tensor(s.prompts[i // s.G] + tokens[i, :n].tolist())
        with torch.no_grad():
            logits = s.model(input_ids=ids[None]).logits[0, -n - 1:-1, :s.V].double().numpy()
        wanted = [oracle_logp(z, temperature, top_p)[y] for z, y in zip(logits, tokens[i, :n].tolist())]
        np.testing.assert_allclose(logps[i, :n].numpy(), wanted, atol=2e-5)
    assert lengths.float().std() > 0


def test_score_gives_the_models_log_probs():
    """One row at a time, unpadded, in float64."""
    model, rows = random_model(dtype=torch.float64), [[5, 7, 9, 3, 4], [8, 2, 11], [1, 6]]
    lengths = torch.tensor([3, 1, 1])
    sequences = [torch.tensor(r) for r in rows]
    logp, entropy, mask = s2l_po.score(model, sequences, lengths, [2, 0, 1], 29, .7)
    for k, i in enumerate((2, 0, 1)):
        n = lengths[i].item()
        p = (model(torch.tensor([rows[i]])).logits[0, -n - 1:-1, :29] / .7).log_softmax(-1)
        torch.testing.assert_close(logp[k, :n], p[range(n), rows[i][-n:]], atol=1e-6, rtol=0)
        torch.testing.assert_close(entropy[k, :n], -(p.exp() * p).sum(-1), atol=1e-6, rtol=0)
    assert (logp[~mask] == 0).all() and mask.sum(1).tolist() == [1, 3, 1]


def test_join_keeps_each_row_in_its_group():
    g, B, parts, groups = torch.Generator().manual_seed(0), 3, [], [[] for _ in range(3)]
    for count, T in ((2, 5), (3, 4)):
        lengths = torch.randint(1, T + 1, (B * count,), generator=g)
        lengths[0] = T
        tokens = torch.randint(1, 99, (B * count, T), generator=g) * (torch.arange(T) < lengths[:, None])
        parts.append((tokens, tokens / -7., lengths))
        for i in range(B * count):
            groups[i // count].append(tokens[i, :lengths[i]].tolist())
    tokens, logps, lengths = join(parts, B)
    assert [t[:n].tolist() for t, n in zip(tokens, lengths)] == sum(groups, []) and tokens.shape == (15, 5)
    assert torch.equal(logps, tokens / -7.) and all(torch.equal(a, b) for a, b in zip(join(parts[:1], B), parts[0]))


# --- whole runs ---------------------------------------------------------------------------------------------
def test_off_needs_no_explorer(tmp_path):
    run = watched(tmp_path, "a", "--schedule", "off", "--explorer", "no such folder", "--steps", "1")
    (how, model, _), = run.rollouts[1:-1]               # between the evaluations
    assert len(run.models) == 1 and model is run.models[0].model
    assert torch.equal(how["u"], common.draws(1, 1, 0, how["u"].shape))


@pytest.fixture(scope="module")
def annealed(tmp_path_factory):
    """Four steps of four rows, the first of them the explorer's alone, the last the learner's: 4, 2, 0, 0."""
    return watched(tmp_path_factory.mktemp("s2l"), "a", "--steps", "4", "--anneal_steps", "3", "--minibatches", "2",
                   "--inner_epochs", "2", "--explorer_temperature", ".7", "--explorer_top_p", ".95", "--kl_coef", ".01")


def test_the_explorer_never_changes_and_rests_when_it_has_no_rows(annealed):
    learner, explorer = annealed.models
    assert explorer.before == explorer.after and learner.before != learner.after
    assert not any(p.requires_grad or p.grad is not None for p in explorer.model.parameters())
    who = [model is explorer.model for _, model, _ in annealed.rollouts]
    assert who == [False, True, True, False, False, False, False]       # evaluation, 1, 2 and 2, 3, 4, evaluation
    optimizer = annealed.updates[0][0][3]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in learner.model.parameters()}
    assert [r["explorer_count"] for r in steps_of(annealed.out)] == [4, 2, 0, 0]


def test_rows_keep_their_own_uniforms(annealed):
    """The learner's rows read stream 0 at their places, the explorer's stream 6; both get the learner's prompt ids."""
    problems = common.load_problems(f"{TINY}/explore/train.jsonl")
    for step, calls in ((1, annealed.rollouts[1:2]), (2, annealed.rollouts[2:4]), (3, annealed.rollouts[4:5])):
        batch = common.batch_of(problems, 4, step, 1)
        prompts = [common.encode_prompt(annealed.models[0].tokenizer, p["question"]) for p in batch]
        for how, model, _ in calls:
            foreign = model is annealed.models[1].model
            u = common.draws(1, step, 6 if foreign else 0, (16, 48)).view(4, 4, 48)
            w = [4, 2, 0][step - 1]
            assert torch.equal(how["u"].view(4, -1, 48), u[:, :w] if foreign else u[:, w:]) and how["prompts"] == prompts
            assert (how["temperature"], how.get("top_p", 1)) == ((.7, .95) if foreign else (1, 1))


def test_ids_reach_the_learner_untouched(annealed):
    for step, rolled in ((0, annealed.rollouts[1:2]), (1, annealed.rollouts[2:4])):
        (_, _, reference, _, sequences, lengths, sampled, foreign, A, _), _ = annealed.updates[step]
        wanted = [[] for _ in range(4)]
        for how, _, (tokens, logps, n) in rolled:
            for i in range(len(n)):
                b = i // (len(n) // 4)
                wanted[b].append((how["prompts"][b] + tokens[i, :n[i]].tolist(), logps[i, :n[i]]))
        for i, (ids, logps) in enumerate(sum(wanted, [])):
            assert sequences[i].tolist() == ids and torch.equal(sampled[i, :lengths[i]], logps)
        assert foreign.view(4, 4).tolist() == [[True] * 4 if step == 0 else [True, True, False, False]] * 4
        start = common.load_model(LEARNER)[0].state_dict()              # the reference is the initial learner, still
        assert all(torch.equal(v, start[k]) for k, v in reference.state_dict().items())


def test_every_schedule_makes_as_many_updates(annealed):
    assert {len(met["grad_norm"]) for _, met in annealed.updates} == {4}


def test_the_log_by_source(annealed):
    """Reward, dead groups, tokens and FLOPs by loops over the rows; token figures where there are tokens."""
    sizes = [sum(p.numel() for p in m.model.parameters()) for m in annealed.models[::-1]]
    for step, row in enumerate(steps_of(annealed.out)):
        (_, _, _, _, sequences, lengths, _, foreign, A, _), met = annealed.updates[step]
        text = [annealed.models[0].tokenizer.decode(s[-n:], skip_special_tokens=True) for s, n in zip(sequences, lengths)]
        gold = [p["answer"] for p in common.batch_of(common.load_problems(f"{TINY}/explore/train.jsonl"), 4, step + 1, 1)]
        for source, size, its in (("explorer", sizes[0], True), ("learner", sizes[1], False)):
            mine = [i for i in range(16) if bool(foreign[i]) == its]
            right = {i: float(common.check_answer(text[i], gold[i // 4])) for i in mine}
            tokens, read = sum(int(lengths[i]) for i in mine), 0
            for b in range(4):                          # a prompt once a source, then each completion
                rows = [i for i in mine if i // 4 == b]
                read += sum(len(sequences[i]) - (len(sequences[i]) - int(lengths[i])) * (i != rows[0]) for i in rows)
            assert row[f"{source}_tokens"] == tokens and row[f"{source}_flops"] == 2 * size * read
            if mine:
                assert row[f"{source}_reward"] == pytest.approx(sum(right.values()) / len(mine))
                dead = [len({right[i] for i in mine if i // 4 == b}) == 1 for b in range(4)]
                assert row[f"{source}_dead"] == sum(dead) / 4
            for name in ("entropy", "clip_frac", "logp_gap"):
                assert (row[f"{source}_{name}"] is None) == (not mine)
    first, second, third, _ = steps_of(annealed.out)
    assert first["explorer_logp_gap"] > .1 and second["explorer_logp_gap"] > .1 and first["logp_gap"] is None
    assert second["logp_gap"] < 1e-5 and third["logp_gap_max"] < 1e-4 and first["explorer_flops"] > 0


def test_positive_drops_the_explorers_bad_rows_alone(tmp_path):
    flags = ["--steps", "1", "--schedule", "constant", "--constant_count", "2", "--group", "4"]
    (a, b) = (watched(tmp_path, n, *flags, "--explorer_rows", n).updates[0][0] for n in ("all", "positive"))
    A, B, foreign = a[8], b[8], a[7]
    bad = foreign & (A < 0)
    assert bad.any() and (A[~foreign] < 0).any()
    assert (B[bad] == 0).all() and torch.equal(B[~bad], A[~bad])
    one, two = (steps_of(str(tmp_path / n))[0] for n in ("all", "positive"))
    assert one["dead"] == two["dead"] and one["explorer_reward"] == two["explorer_reward"]


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """One step with the learner itself, frozen, as the explorer: off-policy without small, once for each ratio."""
    folder = tmp_path_factory.mktemp("twice")
    flags = ["--steps", "1", "--schedule", "constant", "--constant_count", "2", "--explorer", LEARNER]
    return {ratio: watched(folder, ratio, *flags, "--ratio", ratio) for ratio in ("recompute", "tis", "behaviour")}


def test_with_a_copy_of_the_learner_all_ratios_agree(twice):
    """At its first step every denominator is the same, up to rounding: weights and ratios are 1."""
    weights = [torch.load(run.out + "/state.pt", weights_only=True)["model"] for run in twice.values()]
    start = common.load_model(LEARNER)[0].state_dict()
    assert any(not torch.equal(v, start[k]) for k, v in weights[0].items())
    grads = [run.updates[0][1]["grad_norm"].item() for run in twice.values()]
    assert grads == pytest.approx([grads[0]] * 3, rel=1e-4)
    for run in twice.values():
        row, = steps_of(run.out)
        assert row["explorer_logp_gap"] < 1e-5 and row["logp_gap"] < 1e-5 and row["explorer_clip_frac"] == 0


def test_a_copy_earns_what_the_learner_earns(twice):
    """The same policy on other uniforms: rewards differ by chance alone, each row's chance being that of its prompt."""
    run, u = twice["recompute"], common.draws(7, 1, 6, (64 * 8, 48))
    problems = common.load_problems(f"{TINY}/explore/test.jsonl")[:64]
    tokenizer, rates = run.models[0].tokenizer, []
    how = run.rollouts[1][0] | dict(prompts=[common.encode_prompt(tokenizer, p["question"]) for p in problems])
    for net, u in ((common.load_model(LEARNER)[0], u), (run.models[1].model, common.draws(7, 1, 0, u.shape))):
        tokens, _, lengths = rollout(net, **how | dict(u=u, head=net.get_output_embeddings()))
        texts = common.decode(tokenizer, tokens, lengths)
        rates.append(sum(common.check_answer(t, problems[i // 8]["answer"]) for i, t in enumerate(texts)) / len(texts))
    assert abs(rates[0] - rates[1]) < .08 and .15 < rates[0] < .4


def test_ratios_differ_with_another_explorer(tmp_path):
    norms = [steps_of(watched(tmp_path, r, "--steps", "1", "--ratio", r, "--schedule", "constant").out)[0]
             for r in ("recompute", "tis", "behaviour")]
    assert len({r["explorer_logp_gap"] for r in norms}) == 1 and norms[0]["explorer_logp_gap"] > .1     # of the learner's own
    assert len({r["grad_norm"] for r in norms}) == 3 and norms[2]["explorer_clip_frac"] > norms[0]["explorer_clip_frac"] == 0


def other_explorer(tmp_path, change):
    folder = str(tmp_path / "explorer")
    shutil.copytree(EXPLORER, folder)
    change(folder)
    return folder


def swap(folder):
    with open(folder + "/tokenizer.json") as f:
        data = json.load(f)
    vocab = data["model"]["vocab"]
    a, b = list(vocab)[-2:]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    with open(folder + "/tokenizer.json", "w") as f:
        json.dump(data, f)


def shorten(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    random_model(vocab=len(tokenizer) - 1, eos_token_id=tokenizer.eos_token_id).save_pretrained(folder)


@pytest.mark.parametrize("change", [swap, shorten])
def test_other_token_ids_are_refused_before_anything_is_trained(tmp_path, capsys, change):
    folder = other_explorer(tmp_path, change)
    with pytest.raises(SystemExit) as stop:
        s2l_po.main(["--explorer", folder, "--out", str(tmp_path / "a"), *SMALL])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and folder in said and "token ids" in said and not os.path.exists(tmp_path / "a")


def test_an_eos_of_either_ends_a_row(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(EXPLORER)
    other = tokenizer.get_vocab()[";"]

    def change(folder):
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, other]
        model.save_pretrained(folder)
    run = watched(tmp_path, "a", "--explorer", other_explorer(tmp_path, change), "--steps", "1", "--schedule", "constant")
    ended = [0, 0]
    for how, model, (tokens, _, lengths) in run.rollouts:
        assert sorted(how["eos_ids"].tolist()) == sorted([tokenizer.eos_token_id, other])
        assert all((t[:n - 1] != other).all() for t, n in zip(tokens, lengths))
        ended[model is run.models[1].model] += (tokens == other).any().item()
    assert all(ended)


def test_prompts_fit_the_explorers_positions_too(tmp_path, capsys):
    """Of the training problems alone: it is never evaluated."""
    def change(folder):
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.config.max_position_embeddings = 48 + 30
        model.save_pretrained(folder)
    run = watched(tmp_path, "a", "--explorer", other_explorer(tmp_path, change), "--steps", "1")
    assert capsys.readouterr().out.count("prompts longer than 30 tokens dropped") == 1
    assert [max(map(len, how["prompts"])) <= 30 for how, _, _ in run.rollouts] == [False, True, False]


@pytest.mark.parametrize("flags,reason", [
    (["--explorer_temperature", "0"], "--explorer_temperature"), (["--explorer_top_p", "0"], "--explorer_top_p"),
    (["--constant_count", "9"], "--constant_count"), (["--dual_clip", ".5"], "--dual_clip"),
    (["--explorer", "no/such"], "no/such")])
def test_settings_that_cannot_be_are_refused(tmp_path, capsys, flags, reason):
    with pytest.raises(SystemExit) as stop:
        s2l_po.main(["--out", str(tmp_path / "a"), *flags])
    assert stop.value.code == 2 and reason in capsys.readouterr().err


def test_switches_run(tmp_path):
    """Explorer only, token-level heat, the abrupt switch, bfloat16; the evaluation keeps its own temperature."""
    for i, flags in enumerate((["--schedule", "constant", "--constant_count", "4"], ["--temperature", "1.5", "--schedule", "off"],
                               ["--schedule", "step", "--anneal_steps", "2", "--ratio", "tis", "--dual_clip", "3"],
                               ["--compute_dtype", "bfloat16", "--ratio", "behaviour", "--anneal_steps", "3"])):
        run = watched(tmp_path, str(i), "--steps", "2", *flags)
        assert len(steps_of(run.out)) == 2
        assert run.rollouts[0][0]["temperature"] == run.rollouts[-1][0]["temperature"] == 1
        if i == 1:
            assert run.rollouts[1][0]["temperature"] == 1.5
    assert [r["explorer_count"] for r in steps_of(str(tmp_path / "0"))] == [4, 4]
    assert [r["explorer_count"] for r in steps_of(str(tmp_path / "2"))] == [4, 0]
    assert {p.dtype for p in run.models[1].model.parameters()} == {torch.bfloat16}
    assert {how["head"].weight.dtype for how, _, _ in run.rollouts} == {torch.float32}
    assert all(r["logp_gap"] is None or r["logp_gap"] < .05 for r in steps_of(run.out))


# --- going on -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uncut run of four steps whose explorer has 4, 2, 0, 0 rows of four, and its folder at each checkpoint."""
    folder, real = str(tmp_path_factory.mktemp("whole")), s2l_po.save_checkpoint

    def save(out, state):
        real(out, state)
        shutil.copytree(out, f"{folder}/at{state['step']}")
    with pytest.MonkeyPatch.context() as m:
        m.setattr(s2l_po, "save_checkpoint", save)
        s2l_po.main(["--steps", "4", "--out", f"{folder}/a", "--anneal_steps", "3", "--save_every", "1", "--minibatches", "2",
                     "--kl_coef", ".01", "--ratio", "behaviour", *SMALL])
    return folder


@pytest.mark.parametrize("step", [1, 2, 3])
def test_it_goes_on_bit_for_bit(whole, tmp_path, step):
    """With the explorer still to come, in its last step behind it, and without it."""
    s2l_po.main(["--resume", f"{whole}/at{step}", "--out", str(tmp_path / "b"), "--save_every", "0"])
    assert alike(f"{whole}/a", str(tmp_path / "b"))


def test_after_the_anneal_it_is_plain_grpo(whole, tmp_path):
    """From step N on the run is the one plain GRPO makes of its state, without an explorer."""
    shutil.copytree(f"{whole}/at2", tmp_path / "b")
    state = torch.load(tmp_path / "b" / "state.pt", weights_only=True)
    state["config"] |= dict(schedule="off", explorer="gone")
    torch.save(state, tmp_path / "b" / "state.pt")
    s2l_po.main(["--resume", str(tmp_path / "b")])
    assert alike(f"{whole}/a", str(tmp_path / "b"))


def test_more_steps_do_not_move_the_schedule(tmp_path):
    """N is steps // 2 of the run as it was begun."""
    out = str(tmp_path / "a")
    s2l_po.main(["--steps", "4", "--out", out, *SMALL])
    s2l_po.main(["--resume", out, "--steps", "6"])
    assert [r["explorer_count"] for r in steps_of(out)] == [4, 0, 0, 0, 0, 0]
    with pytest.raises(SystemExit):
        s2l_po.main(["--resume", out, "--steps", "6", "--anneal_steps", "3"])


# --- section 7 of the paper, by enumeration -----------------------------------------------------------------
def test_score_identity():
    """Drawn from the policy that is differentiated, grad log pi has mean 0 at each step, and the squared norm of a row's
    gradient is the sum of its tokens'; drawn from another policy it is more."""
    g, V, L = torch.Generator().manual_seed(0), 3, 5
    W = torch.randn(V, V, generator=g, dtype=torch.float64, requires_grad=True)        # logits after each of V tokens
    other = W.detach() + torch.randn(V, V, generator=g, dtype=torch.float64)
    logp = vocab_logps(torch.eye(V, dtype=torch.float64), SimpleNamespace(weight=W.T, bias=None), V, 1.)
    u = {(a, b): torch.autograd.grad(logp[a, b], W, retain_graph=True)[0].flatten() for a in range(V) for b in range(V)}
    R = []
    for q in (logp.detach(), other.T.log_softmax(-1)):
        mean = [sum(q[a, b].exp() * u[a, b] for b in range(V)).abs().max().item() for a in range(V)]
        whole = parts = 0.
        for row in itertools.product(range(V), repeat=L):
            pairs = list(zip((0, *row), row))
            p = math.exp(sum(q[a, b].item() for a, b in pairs))
            whole += p * sum(u[x] for x in pairs).pow(2).sum().item()
            parts += p * sum(u[x].pow(2).sum().item() for x in pairs)
        R.append((max(mean), whole / parts))
    assert R[0][0] < 1e-12 and R[0][1] == pytest.approx(1) and R[1][0] > .05 and R[1][1] > 1.1


# --- it learns ----------------------------------------------------------------------------------------------
def learn(tmp_path, *flags):
    out = str(tmp_path / "run")
    s2l_po.main(["--out", out, *flags])
    before, *_, after = (r["pass@1"] for r in lines(out) if r["kind"] == "eval")
    return before, after


@pytest.mark.slow
def test_it_learns_from_the_explorer(tmp_path):
    """A quarter of the demo, most of whose rows are still the explorer's."""
    before, after = learn(tmp_path, "--steps", "12", "--anneal_steps", "24", "--eval_problems", "60", "--eval_samples", "4",
                          "--ks", "1", "--save_every", "0")
    assert after - before > .1


@pytest.mark.slow
def test_the_demo(tmp_path):
    """`python s2l_po.py` as it is; with seeds 1, 2, 3 it ended at .73, .76, .74, plain GRPO at .57 (seed 1)."""
    before, after = learn(tmp_path)
    assert before < .3 and after > .66
