"""GRPO-SG's weights and shaped ratio against numpy float64, the paper's identities, and plain GRPO."""
import doctest
import math

import numpy as np
import pytest
import torch
from conftest import random_model
from test_saving import SMALL, alike, lines
from test_train import SGD, one_step

import grpo_sg
from grpo_sg import policy_loss, selected_logit, sharpness_weight, token_weights

PAPER = dict(alpha=2., mu=.25, tau=9., low=.9, high=1.4)


def oracle_weight(h, alpha=2., mu=.25, tau=9., low=.9, high=1.4):
    return np.clip(alpha * (1 / (1 + np.exp(-np.asarray(h, dtype=np.float64) / tau)) - mu), low, high)


def oracle_loss(logits, ids, old, A, w, eps_low, eps_high, place="ratio"):
    """-sum min(R A, clip(R) A), and its gradient with respect to the logits (n, V), in float64."""
    z = logits - logits.max(-1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    pi = p[np.arange(len(ids)), ids]
    r = pi / np.exp(old)
    R = r * w if place == "ratio" else r
    plain, clipped = R * A, np.clip(R, 1 - eps_low, 1 + eps_high) * A
    outer = 1. if place == "ratio" else w
    gate = plain <= clipped
    gamma = w * r * A * gate                            # Lemma 3.4
    return -(np.minimum(plain, clipped) * outer).sum(), -gamma[:, None] * (np.eye(p.shape[1])[ids] - p), gamma, pi


def case(seed=0, n=40, V=7, spread=6.):
    rng = np.random.default_rng(seed)
    logits = rng.normal(10, spread, (n, V))
    ids, A = rng.integers(V, size=n), rng.choice([-1.2, .8], n)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    old = logp[np.arange(n), ids] + rng.normal(0, .2, n)
    return logits, ids, old, A


def ours(logits, ids, old, A, place="ratio", weight=None):
    z = torch.tensor(logits, requires_grad=True)
    h = z.gather(1, torch.tensor(ids)[:, None])[:, 0]
    w = sharpness_weight(h).double() if weight is None else torch.tensor(weight)
    logp = z.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
    loss, clipped = policy_loss(logp, torch.tensor(old)[:, None], torch.tensor(A), torch.ones(len(ids), 1), .2, .24,
                                w[:, None], place)
    loss.sum().backward()
    return loss.sum().item(), z.grad.numpy(), w.numpy(), clipped[:, 0].numpy()


def test_docstring_example():
    assert doctest.testmod(grpo_sg).failed == 0 and doctest.testmod(grpo_sg).attempted > 4


def test_weight_is_equation_20():
    h = torch.linspace(-60, 60, 2001, dtype=torch.float64)
    w = sharpness_weight(h)
    np.testing.assert_allclose(w.numpy(), oracle_weight(h.numpy()), atol=1e-6)
    assert (w.diff() >= 0).all() and w.min() == pytest.approx(.9) and w.max() == pytest.approx(1.4)
    inside = (h > 7.63) & (h < 26.49)
    assert (w[inside].diff() > 0).all()
    assert sharpness_weight(torch.tensor([-math.inf, math.inf])).tolist() == pytest.approx([.9, 1.4])


@pytest.mark.parametrize("w,h", [(.9, 9 * math.log(7 / 3)), (1., 9 * math.log(3)), (1.1, 12.477), (1.2, 15.611), (1.24, 17.109),
                                 (1.3, 19.775), (1.4, 9 * math.log(19))])
def test_anchor_points(w, h):
    assert sharpness_weight(torch.tensor(h)).item() == pytest.approx(w, abs=1e-3)


def test_extreme_tau():
    h = torch.tensor([-3., -.1, .1, 3.])
    assert sharpness_weight(h, tau=1e6).tolist() == pytest.approx([.9] * 4)             # 2 (.5 - .25) = .5, below L
    assert sharpness_weight(h, tau=1e-6).tolist() == pytest.approx([.9, .9, 1.4, 1.4])  # a step


def test_a_probability_or_log_probability_is_not_a_logit():
    """Negative control: with either in h's place every weight is L and the method is off up to a factor."""
    p = torch.rand(1000)
    assert (sharpness_weight(p) == sharpness_weight(p.log())).all() and sharpness_weight(p).unique().tolist() == pytest.approx([.9])


@pytest.mark.parametrize("place", ["ratio", "surrogate"])
def test_loss_and_gradient_against_numpy(place):
    logits, ids, old, A = case()
    w = oracle_weight(logits[np.arange(len(ids)), ids])
    loss, grad, mine, clipped = ours(logits, ids, old, A, place)
    wanted, wanted_grad, _, _ = oracle_loss(logits, ids, old, A, w, .2, .24, place)
    assert loss == pytest.approx(wanted, abs=1e-5)
    np.testing.assert_allclose(grad, wanted_grad, atol=1e-5)
    assert clipped.any() and not clipped.all()


def test_constant_weight_is_grpo_with_other_thresholds():
    """min(c r A, clip(c r) A) = c min(r A, clip(r, lo / c, hi / c) A); c = 1 is GRPO to the bit."""
    logits, ids, old, A = case(1)
    logp = torch.tensor(logits).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
    one = torch.ones_like(logp)
    a = policy_loss(logp, torch.tensor(old)[:, None], torch.tensor(A), one, .2, .24, one)[0]
    r = (logp - torch.tensor(old)[:, None]).exp()
    plain = -torch.min(r * torch.tensor(A)[:, None], r.clamp(.8, 1.24) * torch.tensor(A)[:, None])
    assert torch.equal(a, plain)
    for c in (.5, 1.13, 2.):
        b = policy_loss(logp, torch.tensor(old)[:, None], torch.tensor(A), one, .2, .24, c * one)[0]
        other = -c * torch.min(r * torch.tensor(A)[:, None], r.clamp(.8 / c, 1.24 / c) * torch.tensor(A)[:, None])
        torch.testing.assert_close(b, other)


def test_weight_has_no_gradient():
    """Autograd equals finite differences with w held fixed, and differs from those that let it follow."""
    logits, ids, old, A = case(2, n=6, spread=2.)
    h = logits[np.arange(6), ids]
    assert ((h > 7.7) & (h < 26)).sum() >= 3
    w = oracle_weight(h)
    old = old * 0 + (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[np.arange(6), ids]     # r = 1: no kink near
    grad = ours(logits, ids, old, A)[1]
    assert not sharpness_weight(torch.tensor(h, requires_grad=True)).requires_grad
    fixed, moving = np.zeros_like(logits), np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        for sign in (1, -1):
            z = logits.copy()
            z[place] += sign * 1e-5
            fixed[place] += sign * oracle_loss(z, ids, old, A, w, .2, .24)[0] / 2e-5
            moving[place] += sign * oracle_loss(z, ids, old, A, oracle_weight(z[np.arange(6), ids]), .2, .24)[0] / 2e-5
    np.testing.assert_allclose(grad, fixed, atol=1e-4)
    assert np.abs(grad - moving).max() > 1e-2


def test_gate_of_the_first_update():
    """At r = 1 a good answer's token with w > 1.24 gets nothing, any other w A (onehot - p); with U = 1.2 none is gated."""
    for A, h, passes in ((.8, 17.2, False), (.8, 17.0, True), (-.8, 17.2, True), (-.8, 30., True)):
        logits = np.array([[h, h - 1., h - 2.]])
        old = np.array([-np.log(np.exp(logits - h).sum())])
        _, grad, w, clipped = ours(logits, np.array([0]), old, np.array([A]))
        p = np.exp(logits - h) / np.exp(logits - h).sum()
        np.testing.assert_allclose(grad, -w * A * (np.eye(3)[:1] - p) * passes, atol=1e-6)
        assert clipped[0] != passes
        assert sharpness_weight(torch.tensor(h), high=1.2).item() <= 1.24


def test_identities_at_the_logits():
    """3.3: the gradient sums to 0, its L1 norm is 2 |gamma| (1 - pi), Linf |gamma| (1 - pi), L2 in between."""
    logits, ids, old, A = case(3, V=9, spread=4.)
    grad, w = ours(logits, ids, old, A)[1:3]
    _, _, gamma, pi = oracle_loss(logits, ids, old, A, w.astype(np.float64), .2, .24)
    size, V = np.abs(gamma) * (1 - pi), logits.shape[1]
    np.testing.assert_allclose(grad.sum(1), 0, atol=1e-9)
    np.testing.assert_allclose(np.abs(grad).sum(1), 2 * size, atol=1e-6)
    np.testing.assert_allclose(np.abs(grad).max(1), size, atol=1e-6)
    l2 = np.linalg.norm(grad, axis=1)
    assert (l2 >= math.sqrt(V / (V - 1)) * size - 1e-6).all() and (l2 <= math.sqrt(2) * size + 1e-6).all()
    assert (size > .05).any()


def test_linear_head_and_triangle_bound():
    """3.4 for one linear layer: the weight's gradient has norm |e_k - p| |a|; 3.6: a sum's is at most the norms' sum."""
    g = torch.Generator().manual_seed(0)
    W, a = torch.randn(6, 4, generator=g, dtype=torch.float64, requires_grad=True), torch.randn(5, 4, generator=g, dtype=torch.float64)
    logp, ids = (a @ W.T).log_softmax(-1), torch.tensor([0, 3, 5, 1, 1])
    norms = []
    for t in range(5):
        grad, = torch.autograd.grad(logp[t, ids[t]], W, retain_graph=True)
        e = torch.nn.functional.one_hot(ids[t], 6) - logp[t].exp()
        assert grad.norm().item() == pytest.approx((e.norm() * a[t].norm()).item())
        norms.append(grad.norm().item())
    whole, = torch.autograd.grad(sum(logp[t, ids[t]] for t in range(5)), W)
    assert whole.norm().item() <= sum(norms)


def test_shifting_the_logits_moves_the_weight_alone():
    """A constant added to all logits of a position changes no probability, but the method sees it."""
    logits, ids, old, A = case(4, n=10)
    w = np.full(10, 1.1)
    assert ours(logits, ids, old, A, weight=w)[0] == pytest.approx(ours(logits + 5, ids, old, A, weight=w)[0])
    assert np.abs(ours(logits, ids, old, A)[2] - ours(logits + 5, ids, old, A)[2]).max() > .05


def test_kl_is_unweighted_and_the_inner_form_would_not_vanish():
    """12: k3 and w k3 are 0 at pi = ref; with w inside its ratio it would be w - 1 - log w > 0."""
    logp, w = torch.tensor([-1., -2.]), torch.tensor([.9, 1.3])
    assert (w * grpo_sg.k3(logp, logp)).tolist() == [0, 0]
    assert (grpo_sg.k3(logp, logp + w.log()) > 0).all()


@pytest.mark.parametrize("bias", [False, True])
def test_selected_logit_is_the_heads(bias):
    """The raw logit, whatever the temperature, in the head's float32 though the states are bfloat16."""
    head = torch.nn.Linear(8, 20, bias=bias)
    hidden, ids = torch.randn(5, 8), torch.tensor([3, 19, 0, 3, 7])
    h = selected_logit(hidden, ids, head)
    torch.testing.assert_close(h, head(hidden).gather(1, ids[:, None])[:, 0])
    assert not h.requires_grad and selected_logit(hidden.bfloat16(), ids, head).dtype == torch.float32


def test_score_gives_the_models_logits():
    model, rows = random_model(), [[5, 7, 9, 3, 4], [8, 2, 11]]
    lengths = torch.tensor([3, 1])
    logp, _, h, mask = grpo_sg.score(model, [torch.tensor(r) for r in rows], lengths, [0, 1], 29, .7)
    for i, (row, n) in enumerate(zip(rows, lengths.tolist())):
        z = model(torch.tensor([row])).logits[0, -n - 1:-1]
        torch.testing.assert_close(h[i, :n], z[range(n), row[-n:]], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logp[i, :n], (z[:, :29] / .7).log_softmax(-1)[range(n), row[-n:]], atol=1e-4, rtol=1e-4)
    assert not h.requires_grad and (h[~mask] == 0).all()


def test_baselines_weights():
    """13, 14: reverse is 2 - w; AR 0 is GRPO and 1 a factor pi; Lopti's two passes share the tokens out; none is 1."""
    h, old, entropy = torch.tensor([[3., 12., 30.]]), torch.tensor([[.1, .4, .9]]).log(), torch.tensor([[2., 1., .1]])
    how = dict(h=h, old=old, entropy=entropy, sg=tuple(PAPER.values()))
    assert (token_weights("sg", **how) + token_weights("reverse", **how)).tolist() == [[2, 2, 2]]
    assert token_weights("none", **how).tolist() == [[1, 1, 1]]
    assert token_weights("ar", **how, ar_alpha=0.).tolist() == [[1, 1, 1]]
    torch.testing.assert_close(token_weights("ar", **how, ar_alpha=1.), old.exp())
    torch.testing.assert_close(token_weights("ar", **how), .2 * old.exp() + .8)
    early, late = (token_weights("lopti", **how, eta=.5, late=x) for x in (False, True))
    assert early.tolist() == [[1, 1, 0]] and late.tolist() == [[0, 0, 1]]
    assert token_weights("lopti", **how, eta=0.).sum() == 0 and token_weights("lopti", **how, eta=2., late=True).sum() == 0
    assert token_weights("top_entropy", **how, least_entropy=1.).tolist() == [[1, 1, 0]]


class Frozen(SGD):
    def step(self):
        SGD.grads.append([p.grad.clone() for group in self.param_groups for p in group["params"]])


def gradients(monkeypatch, tmp_path, name, **settings):
    """Gradients of the updates of one step in float64, the weights staying where they are."""
    return one_step(monkeypatch, tmp_path, torch.float64, name, script=grpo_sg, optimizer=Frozen, **settings)[0]


def test_unit_weights_are_grpo(monkeypatch, tmp_path):
    """1: L = U = 1 multiplies by 1, which is exact."""
    a, b = (gradients(monkeypatch, tmp_path, w, weighting=w, weight_low=1., weight_high=1., kl_coef=.1) for w in ("sg", "none"))
    assert all(torch.equal(x, y) for x, y in zip(a[0], b[0]))
    c = gradients(monkeypatch, tmp_path, "c", weighting="sg", kl_coef=.1)
    assert any((x - y).abs().max() > 1e-4 for x, y in zip(a[0], c[0]))


def test_two_passes_of_lopti_make_up_grpo(monkeypatch, tmp_path):
    """14: with the weights held still the passes' gradients add up, the KL's too; they share old log-probs."""
    whole, = gradients(monkeypatch, tmp_path, "a", weighting="none", kl_coef=.2)
    first, second = gradients(monkeypatch, tmp_path, "b", weighting="lopti", kl_coef=.2)
    for w, x, y in zip(whole, first, second):
        torch.testing.assert_close(x + y, w, atol=1e-8, rtol=0)        # Llama's norms are float32 even here
    assert all(max(g.abs().max() for g in grads) > 1e-3 for grads in (first, second))
    assert len(gradients(monkeypatch, tmp_path, "c", weighting="lopti", lopti_eta=0.)) == 1     # no token, no momentum


@pytest.mark.parametrize("settings", [dict(weighting="ar", ar_alpha=0.), dict(weighting="top_entropy", top_share=1.),
                                      dict(weighting="sg", weight_low=1., weight_high=1., weight_place="surrogate")])
def test_baselines_that_are_off_are_grpo(monkeypatch, tmp_path, settings):
    a, b = (gradients(monkeypatch, tmp_path, n, **s) for n, s in (("a", dict(weighting="none")), ("b", settings)))
    for x, y in zip(a[0], b[0]):
        torch.testing.assert_close(x, y, atol=1e-12, rtol=1e-9)


def test_the_log_of_a_step(tmp_path, monkeypatch):
    """15: in a rollout's first update the clip holds what the gate holds, no more; top_entropy trains ceil(share n)."""
    kept, real = [], grpo_sg.update
    monkeypatch.setattr(grpo_sg, "update", lambda *a: kept.append((a, real(*a))) or kept[-1][1])
    for name in ("sg", "none", "top_entropy"):
        grpo_sg.main(["--steps", "1", "--weighting", name, "--out", str(tmp_path / name), *SMALL])
    sg, none, top = (next(r for r in lines(tmp_path / n) if r["kind"] == "step") for n in ("sg", "none", "top_entropy"))
    assert sg["clip_frac"] == sg["gated"] > 0 and none["clip_frac"] == none["gated"] == 0
    assert .8999 < sg["weight_min"] < sg["weight"] < sg["weight_max"] < 1.4001 and sg["rare"] <= sg["rare_95"]
    assert none["weight"] == 1 and 0 < top["weight"] < 1
    args, (weights, met) = kept[2]
    lengths, A = args[5], args[7]
    n = int(lengths.sum())                              # all tokens of the update are ranked, dead rows' too
    assert 0 < met["weight"].sum() <= math.ceil(.2 * n) and ((weights == 0) | (weights == 1)).all()
    assert (A == 0).any() or met["weight"].sum() == math.ceil(.2 * n)


def test_edges_and_switches_run(tmp_path):
    for i, flags in enumerate((["--weighting", "lopti", "--minibatches", "2", "--inner_epochs", "2"], ["--weighting", "reverse"],
                               ["--weighting", "top_entropy", "--minibatches", "2"], ["--max_new_tokens", "1"])):
        grpo_sg.main(["--steps", "2", "--out", str(tmp_path / str(i)), *SMALL, *flags])
        assert len([r for r in lines(tmp_path / str(i)) if r["kind"] == "step"]) == 2


@pytest.mark.slow
def test_it_learns_with_weights(tmp_path):
    grpo_sg.main(["--steps", "10", "--out", str(tmp_path / "a"), "--eval_problems", "60", "--eval_samples", "4", "--ks", "1"])
    before, after = (r["pass@1"] for r in lines(tmp_path / "a") if r["kind"] == "eval")
    assert after - before > .2


def test_it_goes_on_bit_for_bit(tmp_path):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    grpo_sg.main(["--steps", "3", "--out", a, *SMALL])
    grpo_sg.main(["--steps", "2", "--out", b, *SMALL])
    grpo_sg.main(["--resume", b, "--steps", "3"])
    assert alike(a, b)
