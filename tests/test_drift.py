"""bench/drift.py: it mixes what rollout mixes, its shortcut by the cache is exact, its controls hold."""
import json
import os
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, TINY
from ngrpo import mix, rollout, vocab_logps

sys.path.insert(0, os.path.join(ROOT, "bench"))
import drift  # noqa: E402


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("mixer", ["neighbour", "soft", "gaussian"])
def test_perturbs_as_rollout_does(setup, kind, mixer):
    s = setup(kind, G=1)
    embed, prompt, step = s.model.get_input_embeddings(), s.prompts[1], 4
    table, gate = F.normalize(embed.weight.detach()[:s.V], dim=1), torch.zeros(1, 12, dtype=torch.bool)
    gate[0, step] = True
    how = dict(table=table, near=torch.full((s.V, 3), -1), mixer=mixer)
    none = torch.tensor([], dtype=torch.long)                   # no EOS: every row is long enough
    tokens, logps, _, mixed = rollout(s.model, s.head, [prompt], s.u[:1], .8, none, s.V, 0., gate=gate, **how)
    ids = torch.tensor(prompt + tokens[0].tolist())
    at = torch.tensor([len(prompt) + step])
    with torch.no_grad():
        cache = drift.new_cache(99)                 # of the unmixed text, as in measure
        hidden = s.model.base_model(input_ids=ids[None], cache=cache, use_cache=True).last_hidden_state[0]
        logp = vocab_logps(hidden[at - 1], s.head, s.V, .8)
        torch.manual_seed(int(s.u[0, 0] * 2 ** 31))             # as rollout seeds its noise
        candidates, weight, noise = drift.recipe(embed, table, logp, mixer, 3)
        blend = mix(embed, candidates, weight, noise)
        got = vocab_logps(drift.follow(s.model, ids, cache, at, blend, 7), s.head, s.V, .8)[0]
    assert torch.equal(candidates, mixed["candidates"])
    torch.testing.assert_close(weight, mixed["weight"])
    torch.testing.assert_close(F.cosine_similarity(blend, embed(ids[at])), mixed["cosine"])
    assert torch.equal(got.argmax(-1), tokens[0, step + 1:step + 8])
    torch.testing.assert_close(got.amax(-1), logps[0, step + 1:step + 8], atol=1e-4, rtol=1e-4)


def test_controls_on_the_tiny_learner(tmp_path):
    out = tmp_path / "results.jsonl"
    drift.main(["--model", os.path.join(TINY, "learner"), "--data", os.path.join(TINY, "easy_test.jsonl"),
                "--prompt_format", "{question}", "--n=4", "--T=24", "--device=cpu", "--out", str(out)])
    none, neighbour, gaussian, soft, soft10, random = map(json.loads, out.read_text().splitlines())
    assert none["cosine"] == pytest.approx(1) and none["anchor_weight"] == 1 and none["flips"] == 0
    assert all(abs(none[c]) < 1e-5 for c in ("logp_next", "logp_span", "kl"))
    assert random["kl"] > max(r["kl"] for r in (neighbour, gaussian, soft, soft10)) and random["cosine"] < .9
    assert (neighbour["k"], soft["k"], soft10["k"]) == (3, 3, 10) and random["model"] == "learner"
