"""N-GRPO against oracles written from the paper: numpy in float64, brute force, full recomputation."""
import doctest
import functools
import itertools
import math
from types import SimpleNamespace

import numpy as np
import plain
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ngrpo
from common import micro_batches
from ngrpo import (advantages, evaluate, k3, mix, mixture, nearest, policy_loss, reduce, rollout, sample,
                   score, token_logps, vocab_logps)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def brute_nearest(E, anchor, k, metric):
    """Double loop in float64; ties to the lower id."""
    E = np.asarray(E, np.float64)
    far = {"cosine": lambda a, b: -(a @ b) / np.sqrt((a @ a) * (b @ b)), "l2": lambda a, b: np.sqrt(((a - b) ** 2).sum()),
           "l1": lambda a, b: np.abs(a - b).sum()}[metric]
    others = sorted((far(E[anchor], E[j]), j) for j in range(len(E)) if j != anchor)
    return [anchor] + [j for _, j in others[:k - 1]]


def mixing(s, rate_gate=True, k=3, metric="cosine", **more):
    table = s.model.get_input_embeddings().weight.detach()[:s.V]
    table = torch.nn.functional.normalize(table, dim=1) if metric == "cosine" else table
    return dict(gate=s.gate if rate_gate else None, near=torch.full((s.V, k), -1), table=table, mix_k=k,
                mix_metric=metric, **more)


def run(s, temperature=.8, **more):
    return rollout(s.model, s.head, s.prompts, s.u, temperature, s.eos, s.V, **more)


def sequences_of(s, tokens, lengths):
    return [torch.tensor(s.prompts[i // s.G] + tokens[i, :n].tolist()) for i, n in enumerate(lengths.tolist())]


def rescored(s, out, temperature=.8, rows=None, mixed=None):
    tokens, _, lengths, records = out
    rows = list(range(len(tokens))) if rows is None else rows
    return score(s.model, sequences_of(s, tokens, lengths), lengths, rows, records if mixed is None else mixed, s.V,
                 temperature)


def by_hand(s, tokens, lengths, mixed, temperature=.8):
    """Log-probs by one unpadded forward a row, its inputs built token by token from the records."""
    E = s.model.get_input_embeddings().weight.detach()
    out = []
    for i, n in enumerate(lengths.tolist()):
        prompt = s.prompts[i // s.G]
        x = [E[j] for j in prompt + tokens[i, :n].tolist()]
        for j in (mixed["row"] == i).nonzero()[:, 0].tolist():
            x[len(prompt) + mixed["step"][j]] = sum(
                w * E[c] for w, c in zip(mixed["weight"][j], mixed["candidates"][j])) + mixed["noise"][j]
        logits = s.model(inputs_embeds=torch.stack(x)[None]).logits[0, len(prompt) - 1:-1, :s.V]
        out.append((logits / temperature).log_softmax(-1).gather(1, tokens[i, :n, None])[:, 0].detach())
    return out


def test_docstring_example():
    """The numbers in the docstring are what its lines print (nano-aha's were not)."""
    assert doctest.testmod(ngrpo).failed == 0 and doctest.testmod(ngrpo).attempted >= 5


# --- the mixture: weights, candidates, geometry (oracles 1, 2, 5, 6, 7) ---

def test_weights_are_the_policy_restricted_to_the_candidates(setup):
    """A second softmax, of probabilities, is the release's slip (D2): it would cap the anchor's weight at .576."""
    s = setup()
    tokens, _, lengths, mixed = run(s, **mixing(s))
    assert len(mixed["row"]) > 10
    for j in range(len(mixed["row"])):
        row, step = int(mixed["row"][j]), int(mixed["step"][j])
        before = {k: v[(mixed["row"] == row) & (mixed["step"] < step)] for k, v in mixed.items()}
        z = last_logits(s, row, tokens[row, :step], before)
        p, C = softmax(z / .8), mixed["candidates"][j].numpy()
        assert C[0] == z.argmax()                                                       # Eq. 6
        np.testing.assert_allclose(mixed["weight"][j], p[C] / p[C].sum(), atol=1e-5)      # Eq. 9
        a = mixed["weight"][j].numpy()
        assert a.min() >= 0 and abs(a.sum() - 1) < 1e-6 and a[0] == a.max() >= 1 / 3
        assert int(tokens[row, step]) == C[0]                                           # the anchor is the token


def last_logits(s, row, tokens, mixed):
    """Logits after a history with mixed inputs, one unpadded forward, float64."""
    E, prompt = s.model.get_input_embeddings().weight.detach(), s.prompts[row // s.G]
    x = [E[j] for j in prompt + tokens.tolist()]
    for j in range(len(mixed["row"])):
        x[len(prompt) + mixed["step"][j]] = sum(w * E[c] for w, c in zip(mixed["weight"][j], mixed["candidates"][j]))
    return s.model(inputs_embeds=torch.stack(x)[None]).logits[0, -1, :s.V].detach().double().numpy()


@pytest.mark.parametrize("metric", ["cosine", "l2", "l1"])
def test_neighbours_match_brute_force(metric):
    E = torch.randn(40, 7, generator=torch.Generator().manual_seed(1)) * torch.linspace(.2, 3, 40)[:, None]
    table = torch.nn.functional.normalize(E, dim=1) if metric == "cosine" else E
    got = nearest(table, torch.arange(40), 4, metric)
    assert got.tolist() == [brute_nearest(E, i, 4, metric) for i in range(40)]
    near = torch.full((40, 4), -1)                  # on demand, in odd portions, with repetitions
    for part in ([3, 3, 17], [17, 0, 39], [5]):
        logp = torch.nn.functional.one_hot(torch.tensor(part), 40).float()
        assert mixture(logp, None, near, table, "neighbour", 4, metric, None)[1].tolist() == got[part].tolist()
    assert (near[:, 0] >= 0).sum() == 5


def test_neighbour_geometry():
    E = torch.randn(30, 6, generator=torch.Generator().manual_seed(2))
    unit, ids = torch.nn.functional.normalize(E, dim=1), torch.arange(30)
    scaled = E * torch.rand(30, 1, generator=torch.Generator().manual_seed(3)).add(.1) * 5
    assert torch.equal(nearest(torch.nn.functional.normalize(scaled, dim=1), ids, 5), nearest(unit, ids, 5))
    assert not torch.equal(nearest(scaled, ids, 5, "l2"), nearest(E, ids, 5, "l2"))
    assert torch.equal(nearest(unit, ids, 5, "l2"), nearest(unit, ids, 5))          # on unit rows the orders coincide
    order = torch.randperm(30, generator=torch.Generator().manual_seed(4))          # a renamed vocabulary
    assert torch.equal(order[nearest(unit[order], ids, 5)], nearest(unit, order, 5))
    zero = E.clone()
    zero[3] = 0                                                                     # an untrained row does no harm
    assert nearest(torch.nn.functional.normalize(zero, dim=1), ids, 5)[:, 0].tolist() == ids.tolist()


def test_mixture_is_convex_and_one_candidate_is_exact():
    E = torch.nn.Embedding(20, 8)
    candidates = torch.tensor([[3, 5, 9], [1, 0, 19]])
    weight = torch.tensor([[.6, .3, .1], [.5, .25, .25]])
    np.testing.assert_allclose(mix(E, candidates, weight).detach().numpy(), np.einsum(
        "mk,mkd->md", weight.double().numpy(), E.weight.detach().double().numpy()[candidates.numpy()]), atol=1e-6)
    assert (mix(E, candidates, weight).norm(dim=1) <= E(candidates).norm(dim=2).amax(1)).all()
    assert torch.equal(mix(E, candidates[:, :1], torch.ones(2, 1)), E(candidates[:, 0]))
    assert torch.equal(mix(E, candidates, torch.tensor([[1., 0., 0.]] * 2)), E(candidates[:, 0]))


def test_all_steps_mixed_with_one_candidate_is_greedy(setup):
    s = setup()
    tokens, _, lengths, _ = rollout(s.model, s.head, s.prompts, s.u, 1., s.eos, s.V, **dict(
        mixing(s, k=1), gate=torch.ones_like(s.u, dtype=torch.bool)))
    for i in range(len(s.u)):
        ids = list(s.prompts[i // s.G])
        for t in range(int(lengths[i])):
            ids.append(int(s.model(input_ids=torch.tensor([ids])).logits[0, -1, :s.V].argmax()))
        assert ids[len(s.prompts[i // s.G]):] == tokens[i, :lengths[i]].tolist()
        assert lengths[i] == s.u.shape[1] or ids[-1] in (2, 6)


def test_all_steps_mixed_makes_a_group_identical(setup):
    """With rho 1 nothing is drawn, whatever the seed: equal rewards, no advantage, no gradient (oracle 4)."""
    s = setup()
    s.gate = torch.ones_like(s.u, dtype=torch.bool)
    tokens, _, lengths, _ = run(s, **mixing(s))
    assert (tokens.view(3, 4, -1) == tokens.view(3, 4, -1)[:, :1]).all()
    s.u = 1 - s.u
    assert torch.equal(run(s, **mixing(s))[0], tokens)


@pytest.mark.parametrize("temperature", [.02, 1e4])
def test_weights_at_extreme_temperatures(setup, temperature):
    s = setup()
    mixed = run(s, temperature=temperature, **mixing(s))[3]
    w = mixed["weight"].sort(dim=1, descending=True).values
    wanted = torch.tensor([1., 0, 0]) if temperature < 1 else torch.full((3,), 1 / 3)
    assert (w - wanted).abs().median(0).values.max() < 1e-3


def test_logits_may_be_shifted_and_scaled_with_temperature(setup):
    s = setup(dtype=torch.float64)
    first = run(s, temperature=.8, **mixing(s))
    with torch.no_grad():
        head = torch.nn.Linear(16, 31, bias=True, dtype=torch.float64)
        head.weight.copy_(s.head.weight * 2)
        head.bias.fill_(7.)
    second = rollout(s.model, head, s.prompts, s.u, 1.6, s.eos, s.V, **mixing(s))
    assert torch.equal(first[0], second[0]) and torch.equal(first[3]["candidates"], second[3]["candidates"])
    torch.testing.assert_close(first[1], second[1], atol=1e-9, rtol=0)
    torch.testing.assert_close(first[3]["weight"], second[3]["weight"], atol=1e-9, rtol=0)


# --- rollout: sampling, gates, bookkeeping (oracles 3, 12, 13) ---

def test_sample_is_the_inverse_cdf():
    logp = torch.randn(500, 13, generator=torch.Generator().manual_seed(0)).mul(3).log_softmax(-1)
    u = torch.rand(500, generator=torch.Generator().manual_seed(1))
    p = logp.double().exp().numpy()
    wanted = [next(j for j in range(13) if p[i, :j + 1].sum() / p[i].sum() > u[i].item()) for i in range(500)]
    assert sample(logp, u).tolist() == wanted
    assert torch.equal(sample(logp, u, top_p=0), logp.argmax(-1))
    edge = torch.tensor([[-math.inf, 0., -math.inf]] * 2)                   # an impossible id is never drawn
    assert sample(edge, torch.tensor([0., 1 - 2 ** -24])).tolist() == [1, 1]


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    logp = torch.tensor([[.5, .3, .15, .05]]).log().repeat(1000, 1)
    u = torch.linspace(0, .9999, 1000)
    for p, kept in ((.4, [0]), (.49, [0]), (.51, [0, 1]), (.9, [0, 1, 2]), (.96, [0, 1, 2, 3])):
        got = sample(logp, u, p)
        assert sorted(set(got.tolist())) == kept
        if len(kept) > 1:
            assert abs((got == 0).float().mean().item() - .5 / sum([.5, .3, .15, .05][:len(kept)])) < .01


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_method_off_is_plain_sampling(setup, kind, dtype, tolerance):
    """Same tokens and log-probs as full recomputation: mixed prompt lengths (trl PR2708; nanoGRPO), EOS inside a prompt
    (trl PR4970; tiny-grpo), two EOS ids (trl PR7039; compose-rl PR31), T not 1, rows that end at different steps, a
    generation config that nothing may heed (ms-swift PR3135; trl PR3494; transformers use_model_defaults; nanochat,
    minimind). GPT-2 has absolute positions (trl issue6800, trlx PR509)."""
    s = setup(kind, dtype)
    s.model.generation_config.update(do_sample=True, temperature=.1, top_k=1, top_p=.1, repetition_penalty=9.)
    for more in (dict(), dict(max_rows=3), dict(gate=torch.zeros_like(s.gate))):
        tokens, logps, lengths, mixed = run(s, **(mixing(s) | more if "gate" in more else more))
        assert len(mixed["row"]) == 0 and len(set(lengths.tolist())) > 2
        for i in range(len(tokens)):
            ids, lp = plain.sample_row(s.model, s.prompts[i // s.G], s.u[i], .8, (2, 6), s.V)
            assert tokens[i, :lengths[i]].tolist() == ids and not tokens[i, lengths[i]:].any()
            np.testing.assert_allclose(logps[i, :lengths[i]], lp, atol=tolerance)


def test_ids_past_the_tokenizer_are_never_sampled(setup):
    """A head padded beyond the last id (vllm issue13175, OpenRLHF issue1117): the rest is what is drawn and scored."""
    s = setup()
    s.V = 9
    tokens, logps, lengths, _ = run(s)
    assert tokens.max() < 9
    torch.testing.assert_close(rescored(s, run(s))[0], logps, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rate", [.1, .5])
def test_gate_and_records(setup, rate):
    """The mixed share lies within binomial bounds, records belong to their own row and none follows its end."""
    s = setup(G=40, T=20)
    s.gate = torch.rand(s.u.shape, generator=torch.Generator().manual_seed(9)) < rate
    tokens, _, lengths, mixed = run(s, **mixing(s))
    seen = {(int(r), int(t)) for r, t in zip(mixed["row"], mixed["step"])}
    assert len(seen) == len(mixed["row"])
    wanted = {(i, t) for i in range(len(tokens)) for t in range(int(lengths[i]) - 1) if s.gate[i, t]}
    assert seen == wanted
    n = int(lengths.sum()) - len(tokens)                # nothing is read after a row's last token
    assert abs(len(seen) - rate * n) < 4 * math.sqrt(n * rate * (1 - rate))
    assert all(int(tokens[r, t]) == int(c[0]) for r, t, c in zip(mixed["row"], mixed["step"], mixed["candidates"]))


def test_rows_do_not_depend_on_their_company(setup):
    """Compaction, row cap and batch split change no row: a release defect trained rows on foreign records. Rows that
    have ended do leave the batch (trl issue2610)."""
    s, sizes = setup(dtype=torch.float64), []
    hook = s.model.base_model.register_forward_pre_hook(
        lambda _, args, how: sizes.append(len(how["inputs_embeds"])), with_kwargs=True)
    whole = run(s, **mixing(s))
    hook.remove()
    assert sizes[:2] == [3, 12] and sizes[1:] == sorted(sizes[1:], reverse=True) and sizes[-1] < 6
    for cap in (1, 3, 5):
        part = run(s, max_rows=cap, **mixing(s))
        assert torch.equal(whole[0], part[0]) and torch.equal(whole[2], part[2])
        key = lambda m: sorted(zip(m["row"].tolist(), m["step"].tolist(), map(tuple, m["candidates"].tolist())))
        assert key(whole[3]) == key(part[3])
        torch.testing.assert_close(whole[1], part[1], atol=1e-11, rtol=0)
    shuffled = SimpleNamespace(**vars(s))
    shuffled.prompts, order = s.prompts[::-1], torch.arange(12).view(3, 4).flip(0).flatten()
    shuffled.u, shuffled.gate = s.u[order], s.gate[order]
    assert torch.equal(run(shuffled, **mixing(shuffled))[2], whole[2][order])


def test_drawing_for_the_gate_disturbs_no_sampling(setup):
    """Rows sample the same tokens with and without mixing up to and including their first mixed step's past."""
    s = setup()
    off, on = run(s)[0], run(s, **mixing(s))[0]
    for i in range(len(off)):
        first = int(s.gate[i].float().argmax()) if s.gate[i].any() else s.u.shape[1]
        same = min(first, off.shape[1], on.shape[1])
        assert torch.equal(off[i, :same], on[i, :same])


def test_labels_of_mixed_steps(setup):
    """--mix_label sampled emits the drawn token and still reads the anchor's mixture, as the release does (D1)."""
    s = setup()
    tokens, _, _, mixed = run(s, **mixing(s, mix_label="sampled"))
    label = tokens[mixed["row"], mixed["step"]]
    assert (label != mixed["candidates"][:, 0]).any()
    first = {int(r): j for j, r in reversed(list(enumerate(mixed["row"].tolist())))}
    off = run(s)[0]
    assert all(label[j] == off[r, mixed["step"][j]] for r, j in first.items())


# --- reconstruction (oracle 8) ---

@pytest.mark.parametrize("kind", ["llama", "gpt2", "eager"])
@pytest.mark.parametrize("mixer", [None, "neighbour", "soft", "gaussian"])
def test_training_forward_matches_the_rollout(setup, kind, mixer):
    """Sampler and trainer agree to 1e-4 under left and right padding, EOS in a prompt, T .8 and mixed inputs, and
    both agree with one unpadded forward a row (trl PR2708, PR4970, issue4159; open-instruct PR1678; tiny-grpo,
    simple_GRPO, minimind, beyond-nanogpt). The last EOS is one of the tokens (unsloth-zoo PR832; nanochat)."""
    s = setup(kind)
    out = run(s, **(mixing(s, mixer=mixer) if mixer else {}))
    logp, entropy, mask = rescored(s, out)
    tokens, sampled, lengths, mixed = out
    assert mask.sum(1).tolist() == lengths.tolist()                        # the EOS that ended a row is counted
    torch.testing.assert_close(logp, sampled, atol=1e-4, rtol=0)
    for i, wanted in enumerate(by_hand(s, tokens, lengths, mixed)):
        torch.testing.assert_close(logp[i, :lengths[i]], wanted, atol=1e-4, rtol=0)
    if mixer:                                                               # negative controls
        bare = {k: v[:0] for k, v in mixed.items()}
        assert (rescored(s, out, mixed=bare)[0] - sampled).abs().max() > .01
        for shift in (-1, 1):
            moved = {k: v[(mixed["step"] + shift >= 0) & (mixed["step"] + shift < lengths[mixed["row"]])]
                     for k, v in mixed.items()}
            moved["step"] = moved["step"] + shift
            assert (rescored(s, out, mixed=moved)[0] - sampled).abs().max() > .01


def test_padding_and_company_do_not_reach_a_rows_log_probs(setup, monkeypatch):
    """Any subset, in any order, gives the same row, padded to its own longest (trl PR3495); what lies in the padding
    does not matter (trl PR6654)."""
    s, widths = setup(dtype=torch.float64), []
    out = run(s, **mixing(s))
    logp = rescored(s, out)[0]
    for rows in ([7], [11, 0, 5], list(range(12))[::-1]):
        torch.testing.assert_close(rescored(s, out, rows=rows)[0], logp[rows], atol=1e-12, rtol=0)
    monkeypatch.setattr(ngrpo, "pad_sequence", functools.partial(ngrpo.pad_sequence, padding_value=7))
    s.model.base_model.register_forward_pre_hook(
        lambda _, args, how: widths.append(how["inputs_embeds"].shape[1]), with_kwargs=True)
    for rows in (list(range(12)), [0, 9]):
        torch.testing.assert_close(rescored(s, out, rows=rows)[0], logp[rows], atol=1e-12, rtol=0)
        assert widths[-1] == max(len(s.prompts[r // s.G]) + int(out[2][r]) for r in rows)
    assert widths[0] > widths[1]


def test_noise_is_recorded(setup):
    s = setup()
    mixed = run(s, **mixing(s, mixer="gaussian"))[3]
    size = (mixed["noise"].square().mean(1) / s.model.get_input_embeddings().weight[mixed["candidates"][:, 0]]
            .square().mean(1)).sqrt()
    assert abs(size.mean().item() - .33) < .05 and mixed["candidates"].shape[1] == 1


def test_entropy_and_chunks():
    hidden, head = torch.randn(50, 8), torch.nn.Linear(8, 21, bias=False)
    targets = torch.randint(0, 19, (50,))
    logp, entropy = token_logps(hidden, targets, head, 19, .7)
    p = softmax((hidden @ head.weight.T).detach().double().numpy()[:, :19] / .7)
    np.testing.assert_allclose(entropy, -(p * np.log(p)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(logp.detach(), np.log(p[np.arange(50), targets]), atol=1e-5)
    small = token_logps(hidden, targets, head, 19, .7, chunk_logits=40)
    torch.testing.assert_close(list(small)[0], logp)


def test_no_tensor_holds_the_logits_of_all_tokens(setup, monkeypatch):
    """Not of a prompt, and of completions neither made nor kept beyond a chunk, here 20 of 114 tokens, that backward
    makes again (trl issue3678, PR2773; OpenRLHF PR718)."""
    made, kept, V = [], [], 2000
    s, lengths = setup(vocab=V), torch.arange(4, 16)
    monkeypatch.setattr(ngrpo, "token_logps", functools.partial(token_logps, chunk_logits=20 * V))

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **kwargs or {})
            made.extend(v.numel() for v in tree_leaves(out) if torch.is_tensor(v))
            return out
    with Watch(), torch.autograd.graph.saved_tensors_hooks(lambda v: kept.append(v.numel()) or v, lambda v: v):
        logp, _, mask = score(s.model, [torch.arange(n + 2) for n in lengths], lengths, list(range(12)),
                              dict(row=torch.zeros(0, dtype=torch.long)), V, 1.)
        assert max(made) == 20 * V > max(kept)
        logp.sum().backward()
    assert max(made) == 20 * V and mask.sum() == 114 and s.head.weight.grad.abs().max() > 0


def test_head_is_float32_under_autocast():
    """A bfloat16 head is off by hundredths (trl PR2669; open-instruct PR1387; flow_grpo issue204)."""
    hidden, head = torch.randn(64, 32) * 4, torch.nn.Linear(32, 50, bias=False)
    wanted = (hidden @ head.weight.T).log_softmax(-1)
    with torch.autocast("cpu", torch.bfloat16):
        assert (vocab_logps(hidden, head, 50, 1.) - wanted).abs().max() < 1e-4
        assert (head(hidden).float().log_softmax(-1) - wanted).abs().max() > 1e-2


# --- advantages, loss, aggregation (oracles 9, 10, 11, 14, 15, 16) ---

def test_advantages_closed_forms():
    """By hand; no spread is exactly 0, no NaN (RLinf issue273), no tiny std that blows rounding up (NeMo-RL PR4161)."""
    r = torch.tensor([[1., 0, 0, 0], [1., 1, 0, 0], [.35, .35, .35, .35], [0., 0, 0, 0]])
    wanted = torch.tensor([[1.5, -.5, -.5, -.5], [.8660254, .8660254, -.8660254, -.8660254], [0.] * 4, [0.] * 4])
    torch.testing.assert_close(advantages(r), wanted, atol=1e-5, rtol=0)
    for value, n in ((.3, 6), (.7, 12)):                # float32 means of these are off
        assert advantages(torch.full((1, n), value)).abs().max() == 0
    assert torch.equal(advantages(torch.tensor([[1., 0.]])).sign(), torch.tensor([[1., -1.]]))


def test_advantages_stay_within_a_group():
    """Neither over the batch (grpo-flat issue2; d1 issue19; flow_grpo issue46) nor by text: one question asked twice is
    two groups (GRPO-Zero)."""
    both = advantages(torch.tensor([[1., 0, 0, 0], [1., 1, 1, 0]]))
    assert torch.equal(both[0], advantages(torch.tensor([[1., 0, 0, 0]]))[0])
    assert abs(both.sum()) < 1e-5


@pytest.mark.parametrize("ratio", [.5, .79, .81, 1., 1.19, 1.21, 2.])
@pytest.mark.parametrize("A", [-1.5, 1.5])
def test_clip_table(ratio, A):
    """Every sign of A and side of the clip, value and gradient: for A < 0 the other side is held (rasbt
    reasoning-from-scratch PR240; trl PR6078)."""
    logp = torch.tensor([[math.log(ratio)]], requires_grad=True)
    loss, clipped = policy_loss(logp, torch.zeros(1, 1), torch.tensor([A]), torch.ones(1, 1, dtype=torch.bool), .2, .2)
    loss.sum().backward()
    stopped = ratio > 1.2 if A > 0 else ratio < .8
    wanted = -A * (min(ratio, 1.2) if A > 0 else max(ratio, .8))
    assert abs(loss.item() - wanted) < 1e-6 and bool(clipped) == stopped
    assert abs(logp.grad.item() - (0 if stopped else -A * ratio)) < 1e-6


def test_clip_higher():
    loss, clipped = policy_loss(torch.tensor([[math.log(1.25)]]), torch.zeros(1, 1), torch.ones(1), torch.ones(1, 1),
                                .2, .28)
    assert not clipped and abs(loss.item() + 1.25) < 1e-6


def test_first_pass_loss_is_zero_and_its_gradient_is_reinforce(setup):
    """Ratio 1, clip 0, loss 0, and yet the gradient is -sum A grad log pi: "loss is 0" is the field's oldest
    question (trl issue2703, issue3452; open-r1 issue239; unsloth issue2291; simple_GRPO issue33)."""
    s = setup(dtype=torch.float64)
    out = run(s, **mixing(s))
    lengths, mixed = out[2], out[3]
    A = advantages(torch.tensor([[1., 0, 0, 1], [0, 0, 1, 0], [1, 1, 1, 0]], dtype=torch.float64)).flatten()
    logp, _, mask = rescored(s, out)
    loss, clipped = policy_loss(logp, logp.detach(), A, mask, .2, .2)
    total = ((loss * mask).sum(1) * reduce(lengths, 4, "sequence")).sum()
    assert abs(total.item()) < 1e-12 and not clipped.any()
    grads = torch.autograd.grad(total, list(s.model.parameters()))
    E, wanted = s.model.get_input_embeddings(), 0.
    for i, n in enumerate(lengths.tolist()):            # REINFORCE, a row at a time, by the model's own logits
        prompt = s.prompts[i // s.G]
        ids = torch.tensor(prompt + out[0][i, :n].tolist())
        x = list(E(ids))
        for j in (mixed["row"] == i).nonzero()[:, 0].tolist():
            x[len(prompt) + mixed["step"][j]] = mixed["weight"][j] @ E(mixed["candidates"][j])
        lp = (s.model(inputs_embeds=torch.stack(x)[None]).logits[0, len(prompt) - 1:-1, :s.V] / .8).log_softmax(-1)
        wanted = wanted - A[i] * lp.gather(1, ids[len(prompt):, None]).mean() / 12
    for g, w in zip(grads, torch.autograd.grad(wanted, list(s.model.parameters()))):
        torch.testing.assert_close(g, w, atol=1e-12, rtol=1e-9)


def test_gradient_reaches_the_rows_of_a_mixture_and_not_its_weights(setup):
    """dL/dE[c] = a_c dL/d(mixed input), by finite differences; a_c is a constant (oracle 11)."""
    E = torch.nn.Embedding(10, 4, dtype=torch.float64)
    candidates, weight = torch.tensor([[2, 7, 5]]), torch.tensor([[.5, .3, .2]], dtype=torch.float64)
    f = lambda x: (x ** 3).sum()
    f(mix(E, candidates, weight)).backward()
    x = mix(E, candidates, weight).detach().requires_grad_()
    f(x).backward()
    for c, a in zip(candidates[0], weight[0]):
        torch.testing.assert_close(E.weight.grad[c], a * x.grad[0])
        bumped = E.weight.detach().clone()
        bumped[c, 1] += 1e-6
        moved = f(mix(torch.nn.Embedding.from_pretrained(bumped), candidates, weight)) - f(x)
        assert abs(moved.item() / 1e-6 - E.weight.grad[c, 1].item()) < 1e-4
    s = setup()
    mixed = run(s, **mixing(s))[3]
    assert not mixed["weight"].requires_grad


def test_kl_estimator_against_the_exact_kl():
    """On eight symbols: the mean of k3 under pi is KL(pi || ref), not its negative (rlhf-book, its issue489), zero at
    equality."""
    g = torch.Generator().manual_seed(0)
    logp, ref = (torch.randn(8, generator=g, dtype=torch.float64).mul(1.5).log_softmax(0) for _ in range(2))
    exact = (logp.exp() * (logp - ref)).sum()
    assert abs((logp.exp() * k3(logp, ref)).sum() - exact) < 1e-9 and (k3(logp, ref) >= 0).all()
    assert k3(logp, logp).abs().max() == 0


def test_gradient_of_the_kl_estimator():
    """Of k3 under pi it is that of KL(ref || pi), a biased one (verl PR2953; OpenRLHF PR1101), yet it pulls: that of
    log pi - log ref is zero (rasbt)."""
    g = torch.Generator().manual_seed(0)
    z, ref = torch.randn(2, 8, generator=g, dtype=torch.float64)
    z, ref = z.requires_grad_(), ref.log_softmax(0)
    logp = z.log_softmax(0)
    drawn = logp.exp().detach()
    got, wanted, none = (torch.autograd.grad(v.sum(), z, retain_graph=True)[0] for v in (
        drawn * k3(logp, ref), ref.exp() * (ref - logp), drawn * (logp - ref)))
    torch.testing.assert_close(got, wanted)
    assert got.abs().max() > .05 and none.abs().max() < 1e-12


@pytest.mark.parametrize("gap", [-300., -90., 90., 300.])
def test_improbable_tokens_do_not_overflow(gap):
    """exp(90) is infinite in float32: log-ratios are clamped before exp, and then no gradient is NaN either (trl
    issue3015, PR6637; OpenRLHF PR1335; NeMo-RL PR876)."""
    for A in (-1., 1.):
        logp = torch.tensor([[gap]], requires_grad=True)
        loss, _ = policy_loss(logp, torch.zeros(1, 1), torch.tensor([A]), torch.ones(1, 1), .2, .2)
        (loss + k3(logp, torch.zeros(1, 1))).sum().backward()
        assert loss.isfinite() and logp.grad.isfinite()


def test_aggregations_on_an_example():
    """Two groups of two rows with 1, 3 and 2, 2 tokens: whether length weighs, and that each name does what it says
    (trl PR3138; verl PR2435; understand-r1-zero issue11; beyond-nanogpt's flags do the opposite)."""
    lengths = torch.tensor([1, 3, 2, 2])
    assert reduce(lengths, 2, "sequence").tolist() == pytest.approx([1 / 4, 1 / 12, 1 / 8, 1 / 8])
    assert reduce(lengths, 2, "group").tolist() == pytest.approx([1 / 8] * 4)
    assert reduce(torch.tensor([1, 3, 1, 1]), 2, "group").tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 4])
    assert reduce(lengths, 2, "token").tolist() == pytest.approx([1 / 8] * 4)
    assert reduce(torch.tensor([5, 5]), 2, "token").tolist() == pytest.approx(reduce(torch.tensor([5, 5]), 2, "sequence"))
    for mode in ("sequence", "group", "token"):         # a constant loss has that mean, whatever the lengths
        assert (reduce(lengths, 2, mode) * lengths).sum().item() == pytest.approx(1)


def test_gspo_ratio_is_the_geometric_mean():
    """Of a row, only where it is asked for: the ratio of GRPO is a token's (reasoning-from-scratch issue243)."""
    logp = torch.tensor([[.1, -.3, .5], [.2, 9., 9.]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    A = torch.tensor([1., -1.])
    loss, _ = policy_loss(logp, torch.zeros(2, 3), A, mask, .5, .5, "gspo")
    assert loss[0].tolist() == pytest.approx([-math.exp(.1)] * 3) and loss[1, 0].item() == pytest.approx(math.exp(.2))
    one = [policy_loss(logp[:, :1], torch.zeros(2, 1), A, mask[:, :1], .2, .2, o)[0] for o in ("grpo", "gspo")]
    assert torch.equal(*one)                            # of length 1 they are the same
    ratios = -policy_loss(logp[:1], torch.zeros(1, 3), torch.ones(1), mask[:1], 9., 9.)[0]
    assert ratios[0].tolist() == pytest.approx([math.exp(x) for x in (.1, -.3, .5)])
    clipped = policy_loss(logp, torch.zeros(2, 3), A.abs(), mask, .1, .01, "gspo")[1]
    assert clipped.sum() == mask.sum()                  # padding is never counted as clipped


def test_micro_batches_cover_each_row_once():
    """Within a budget of tokens, padding counted, longest first so that little is padded (trl PR3495, issue3017)."""
    sequences = [[0] * n for n in (5, 30, 2, 8, 8, 1)]
    for budget in (1, 16, 40, 1000):
        cut = list(micro_batches(torch.arange(6), sequences, budget))
        assert sorted(itertools.chain(*cut)) == list(range(6))
        assert all(len(c) == 1 or len(c) * max(len(sequences[r]) for r in c) <= budget for c in cut)
        assert [len(sequences[r]) for c in cut for r in c] == [30, 8, 8, 5, 2, 1]


# --- evaluation (oracle 17) ---

def test_evaluation_counts(monkeypatch, setup):
    """pass@1, its standard error and pass@k of known samples, each held against its own problem (nanoGRPO)."""
    right, s = [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], setup()
    monkeypatch.setattr(ngrpo, "decode", lambda *_: [
        f"\\boxed{{{i if ok else 9}}}" for i, row in enumerate(right) for ok in row])
    problems = [dict(prompt=p, answer=str(i)) for i, p in enumerate(s.prompts)]
    got = evaluate(s.model, None, problems, 4, [2, 4], 3, 1., 1., head=s.head, eos_ids=s.eos, V=s.V)
    assert got["pass@1"] == pytest.approx(5 / 12) and got["pass@2"] == pytest.approx((.5 + 1 + 0) / 3)
    assert got["pass@4"] == pytest.approx(2 / 3)
    assert got["pass@1_se"] == pytest.approx(np.std([.25, 1, 0], ddof=1) / math.sqrt(3))
    assert got["n"] == 4 and got["problems"] == 3
