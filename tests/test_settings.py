"""What nothing else noticed when the code was broken on purpose: settings that reach where they belong, and more."""
import json
import os
import signal
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import TINY, random_model
from transformers import AutoTokenizer

import common
import ngrpo
from ngrpo import mix, nearest, policy_loss, sample, token_logps, vocab_logps
from test_ngrpo import run
from test_saving import SMALL, in_child, lines, poisoned


def steps_of(out):
    return [r for r in lines(out) if r["kind"] == "step"]


def padded_learner(tmp_path, **changes):
    """An untied model whose head is wider than its tokenizer, the surplus rows copies of the first ones."""
    tokenizer = AutoTokenizer.from_pretrained(f"{TINY}/learner")
    model, V = random_model(vocab=128, tie_word_embeddings=False, eos_token_id=0, **changes), len(tokenizer)
    with torch.no_grad():
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            module.weight[V:] = module.weight[:128 - V]
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    return str(tmp_path / "m")


def test_a_heads_bias_counts():
    head, hidden = torch.nn.Linear(8, 13), torch.randn(5, 8)
    torch.testing.assert_close(vocab_logps(hidden, head, 11, .7), (head(hidden)[:, :11] / .7).log_softmax(-1))


def test_sample_over_a_large_vocabulary():
    """A float32 cumulative sum picks another id in about three draws of a thousand."""
    g = torch.Generator().manual_seed(0)
    logp = torch.randn(50_000, generator=g).log_softmax(-1)
    u = torch.rand(3000, generator=g)
    cdf = np.cumsum(logp.exp().double().numpy())
    wanted = np.searchsorted(cdf, u.double().numpy() * cdf[-1], side="right")
    assert sum((sample(logp.expand(100, -1), part) != torch.tensor(w)).sum().item()
               for part, w in zip(u.split(100), wanted.reshape(-1, 100))) == 0


def test_no_tensor_of_all_logits_exists(monkeypatch):
    seen, saved, real = [], [], ngrpo.vocab_logps
    monkeypatch.setattr(ngrpo, "vocab_logps", lambda h, *a: seen.append(len(h)) or real(h, *a))
    head, hidden = torch.nn.Linear(8, 21, bias=False), torch.randn(50, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        logp, _ = token_logps(hidden, torch.zeros(50, dtype=torch.long), head, 19, .7, chunk_logits=40)
    n = len(seen)
    assert max(seen) == 2 and max(saved) < 50 * 19 / 2
    logp.sum().backward()
    assert len(seen) == 2 * n                           # backward computes them again


def test_mixtures_are_looked_up_by_the_module():
    """Gemma scales what it looks up: its weight alone is another table."""
    class Scaled(torch.nn.Embedding):
        def forward(self, ids):
            return super().forward(ids) * 3
    E, ids = Scaled(20, 8), torch.tensor([[3, 5, 9]])
    assert torch.equal(mix(E, ids, torch.tensor([[1., 0, 0]])), E(ids[:, 0]))


def test_chunks_of_anchors():
    E = torch.randn(2 ** 14, 2, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(4100)                            # 2**26 // 2**14 = 4096 in the first chunk
    got = nearest(E, ids, 2, "l2")
    assert len(got) == 4100 and torch.equal(got[-4:], nearest(E, ids[-4:], 2, "l2"))


def test_finished_rows_leave_the_batch(setup):
    s, seen = setup(T=20), []
    s.model.base_model.register_forward_pre_hook(lambda m, a, k: seen.append(len(k["inputs_embeds"])), with_kwargs=True)
    lengths = run(s)[2]
    assert seen[0] == 3 and seen[1] == 12 and sorted(seen[1:], reverse=True) == seen[1:] and seen[-1] < 12
    alive = [int((lengths > t + 1).sum()) for t in range(len(seen) - 1)]
    assert all(n <= a + max(1, n // 8) for n, a in zip(seen[1:], alive))


def test_an_extreme_ratio_stays_finite():
    logp = torch.tensor([[200.]], requires_grad=True)
    loss, _ = policy_loss(logp, torch.zeros(1, 1), torch.tensor([-1.]), torch.ones(1, 1), .2, .2)
    loss.sum().backward()
    assert loss.isfinite().all() and logp.grad.isfinite().all()


def test_neighbours_and_their_table_follow_the_weights(tmp_path, monkeypatch):
    """Each rollout searches the input table as it is then, among the ids that may be sampled (D4, D5)."""
    real, tables = ngrpo.rollout, []

    def rollout(model, **how):
        out = real(model, **how)
        E = F.normalize(model.get_input_embeddings().weight.detach()[:how["V"]], dim=1)
        known = (how["near"][:, 0] >= 0).nonzero()[:, 0]
        assert torch.equal(how["table"], E) and how["near"].max() < how["V"] < 128
        assert torch.equal(how["near"][known], nearest(E, known, 5))
        tables.append(E.clone())
        return out
    monkeypatch.setattr(ngrpo, "rollout", rollout)
    monkeypatch.setattr(ngrpo, "reward", lambda text, gold: float(len(text) % 2))      # there is something to learn
    ngrpo.main(["--model", padded_learner(tmp_path), "--steps", "3", "--lr", ".05", "--mix_rate", ".5", "--mix_k", "5",
                "--max_new_tokens", "20", "--out", str(tmp_path / "o"), *SMALL])
    assert len(tables) == 5 and not torch.equal(tables[1], tables[2])


def test_settings_reach_where_they_belong(tmp_path, monkeypatch):
    """What rollout is called with in training and in evaluation: evaluation's temperature, nucleus and mixing stay out
    of training, and the seed reaches the order, the sampling and, by other numbers, the gate."""
    seen, real = [], ngrpo.rollout
    monkeypatch.setattr(ngrpo, "rollout", lambda model, **how: seen.append(how) or real(model, **how))
    args = ["--steps", "2", "--eval_temperature", ".6", "--eval_top_p", ".9", "--temperature", ".8", "--mix_rate", ".3",
            "--mix_k", "4", "--mix_metric", "l2", "--max_rows", "7", *SMALL]
    ngrpo.main([*args, "--out", str(tmp_path / "a")])
    before, first, second, after = seen
    for how in (before, after):
        assert how["temperature"] == .6 and how["top_p"] == .9 and not how["gate"].any() and how["max_rows"] == 7
    for how in (first, second):
        assert how["temperature"] == .8 and how.get("top_p", 1.) == 1. and how["mix_k"] == 4 and how["mix_metric"] == "l2"
        assert abs(how["gate"].float().mean() - .3) < .06
        assert abs(np.corrcoef(how["gate"].flatten(), how["u"].flatten())[0, 1]) < .15
    assert not torch.equal(first["u"], second["u"]) and torch.equal(before["u"], after["u"])
    seen.clear()
    ngrpo.main([*args, "--seed", "2", "--mix_at_eval", "True", "--eval_temperature", "0", "--out", str(tmp_path / "b")])
    assert seen[0]["top_p"] == 0 and abs(seen[0]["gate"].float().mean() - .3) < .06     # greedy, and mixes
    assert not torch.equal(seen[1]["u"], first["u"]) and not torch.equal(seen[1]["gate"], first["gate"])
    assert seen[1]["prompts"] != first["prompts"]


def test_the_optimizer_gets_rate_decay_and_clip(tmp_path, monkeypatch):
    seen = []

    class Spy(torch.optim.AdamW):
        def step(self):
            group = self.param_groups[0]
            seen.append((group["lr"], group["weight_decay"], torch.stack([p.grad.norm() for p in group["params"]]).norm()))
            super().step()
    monkeypatch.setattr(torch.optim, "AdamW", Spy)
    ngrpo.main(["--steps", "4", "--lr", "1e-3", "--warmup", "2", "--lr_schedule", "linear", "--weight_decay", ".03",
                "--grad_clip", ".01", "--prompts", "8", "--group", "8", "--eval_problems", "0",
                "--out", str(tmp_path / "a")])
    assert [lr for lr, _, _ in seen] == pytest.approx([common.learning_rate(s, 4, 1e-3, 2, "linear") for s in (1, 2, 3, 4)])
    assert all(wd == .03 and norm.item() == pytest.approx(.01, rel=1e-3) for _, wd, norm in seen)


def test_reference_stays_and_reads_the_mixtures(tmp_path):
    """KL is 0 at step 1, mixed steps included , and grows: the reference is the initial model for ever."""
    ngrpo.main(["--steps", "3", "--kl_coef", ".001", "--mix_rate", ".5", "--lr", "1e-3", "--out", str(tmp_path / "a"), *SMALL])
    kl = [r["kl"] for r in steps_of(tmp_path / "a")]
    assert kl[0] < 1e-9 and kl[1] > 1e-6 and kl[2] > 1e-6


def test_old_log_probs_read_the_mixtures(tmp_path):
    ngrpo.main(["--steps", "1", "--minibatches", "2", "--inner_epochs", "2", "--mix_rate", ".5", "--mix_label", "sampled",
                "--out", str(tmp_path / "a"), *SMALL])
    assert steps_of(tmp_path / "a")[0]["logp_gap_max"] < 1e-3


def test_bfloat16_copy_follows_the_weights(tmp_path, monkeypatch):
    """Parameters are the current weights, rounded; RoPE's buffers stay float32. The training forward is bfloat16 too."""
    real, seen, scored = ngrpo.rollout, [], ngrpo.score

    def rollout(model, **how):
        assert all(p.dtype == torch.bfloat16 for p in model.parameters())
        assert all(b.dtype == torch.float32 for b in model.buffers())
        assert torch.equal(model.get_input_embeddings().weight, how["head"].weight.bfloat16())      # tied
        seen.append(model.get_input_embeddings().weight.clone())
        return real(model, **how)

    def score(*args, bfloat16, **how):
        out = scored(*args, bfloat16=bfloat16, **how)
        assert bfloat16 and (out[0] - scored(*args, bfloat16=False, **how)[0]).abs().max() > 1e-4
        return out
    monkeypatch.setattr(ngrpo, "rollout", rollout)
    monkeypatch.setattr(ngrpo, "score", score)
    ngrpo.main(["--steps", "2", "--lr", "1e-2", "--compute_dtype", "bfloat16", "--out", str(tmp_path / "a"), *SMALL])
    assert not torch.equal(seen[1], seen[2])


def test_layer_checkpointing_computes_layers_again(tmp_path, monkeypatch):
    """--grad_checkpoint does something (it acts only in train(), see traps), and nothing in the rollout."""
    calls, counts, real = [], [], ngrpo.load_model

    def load(*args):
        out = real(*args)
        out[0].base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
        return out
    monkeypatch.setattr(ngrpo, "load_model", load)
    for flag in ("False", "True"):
        calls.clear()
        ngrpo.main(["--steps", "1", "--grad_checkpoint", flag, "--out", str(tmp_path / flag), *SMALL])
        counts.append(sum(calls))
    assert counts[1] == 2 * counts[0] > 0


def test_the_loss_gets_its_settings(tmp_path, monkeypatch):
    seen, real = [], ngrpo.policy_loss
    monkeypatch.setattr(ngrpo, "policy_loss", lambda *a: seen.append(a[4:]) or real(*a))
    ngrpo.main(["--steps", "1", "--clip_low", ".1", "--clip_high", ".3", "--objective", "gspo", "--out", str(tmp_path / "a"),
                *SMALL])
    assert set(seen) == {(.1, .3, "gspo")}


def test_a_checkpoint_runs_no_code(tmp_path):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)
    torch.save(dict(step=1, config={}, model=Code()), tmp_path / "state.pt")
    with pytest.raises(SystemExit):
        common.load_checkpoint(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_is_synced_and_then_renamed(tmp_path, monkeypatch):
    did = []
    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, lambda *a, real=getattr(os, name), name=name: did.append(name) or real(*a))
    common.save_checkpoint(str(tmp_path), dict(step=1))
    assert did == ["fsync", "replace"]


def test_a_second_interrupt_ends_it_at_once():
    def act():
        common.stop_on_signal()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    status = os.waitpid(in_child(act), 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT


@pytest.mark.parametrize("template", ["auto", "none"])
def test_system_turn_is_in_the_prompt(template):
    tokenizer = AutoTokenizer.from_pretrained(f"{TINY}/learner")
    ids = common.encode_prompt(tokenizer, "Tom finds 5.", system="Tom has 3 pens.", chat_template=template)
    assert tokenizer.decode(ids).split() == "Tom has 3 pens. Tom finds 5.".split()


def test_a_truncated_completion_is_graded_like_any_other(tmp_path, monkeypatch):
    monkeypatch.setattr(ngrpo, "reward", lambda *_: 1.)
    ngrpo.main(["--steps", "1", "--out", str(tmp_path / "a"), *SMALL, "--max_new_tokens", "1"])
    assert steps_of(tmp_path / "a")[0]["reward"] == steps_of(tmp_path / "a")[0]["truncated"] == 1


def test_evaluation_grades_each_answer_against_its_problem(monkeypatch, setup):
    s, seen = setup(), []
    monkeypatch.setattr(ngrpo, "decode", lambda *_: list("aaaabbbbcccc"))
    monkeypatch.setattr(ngrpo, "reward", lambda text, gold: seen.append(text + gold) or 0.)
    problems = [dict(prompt=p, answer=a) for p, a in zip(s.prompts, "ABC")]
    ngrpo.evaluate(s.model, None, problems, 4, [1], 3, 1., 1., head=s.head, eos_ids=s.eos, V=s.V)
    assert seen == ["aA"] * 4 + ["bB"] * 4 + ["cC"] * 4


def test_lost_steps_end_a_run_only_in_a_row(tmp_path, monkeypatch):
    poisoned(monkeypatch, lambda call: call in (1, 3, 5))
    ngrpo.main(["--steps", "6", "--out", str(tmp_path / "a"), *SMALL])
    assert [r["skipped"] for r in steps_of(tmp_path / "a")] == [1, 0, 1, 0, 1, 0]


def test_metrics_are_means_over_the_tokens_trained_on(tmp_path, monkeypatch):
    met, real = [], ngrpo.update
    monkeypatch.setattr(ngrpo, "update", lambda *a: met.append((a, real(*a))) or met[-1][1])
    ngrpo.main(["--steps", "1", "--out", str(tmp_path / "a"), *SMALL])
    (args, out), = met
    lengths, A = args[5], args[8]
    assert len(out["entropy"]) == len(out["logp_gap"]) == int(lengths[A != 0].sum()) > 0


def test_the_first_line_survives_a_resume(tmp_path):
    out = str(tmp_path / "a")
    ngrpo.main(["--steps", "1", "--out", out, *SMALL])
    ngrpo.main(["--resume", out, "--steps", "2"])
    with open(out + "/metrics.jsonl") as f:
        kinds = [json.loads(line)["kind"] for line in f]
    assert kinds[0] == "config" and kinds.count("config") == 1


def test_steps_may_change_only_under_a_constant_rate(tmp_path, capsys):
    out = str(tmp_path / "a")
    ngrpo.main(["--steps", "1", "--lr_schedule", "cosine", "--out", out, *SMALL])
    with pytest.raises(SystemExit):
        ngrpo.main(["--resume", out, "--steps", "2"])
    assert "--steps would make it another run" in capsys.readouterr().err


def test_evaluation_takes_the_first_problems_and_training_all(tmp_path):
    cfg, _ = common.parse_config(ngrpo.Config, ngrpo.PRESETS, ["--eval_problems", "2", "--device", "cpu"])
    model, tokenizer, _, _ = common.load_model(f"{TINY}/learner")
    problems = common.load_problems(f"{TINY}/easy_test.jsonl")
    (_, train), (_, held) = common.encode_problems(cfg, model, tokenizer, [("a", problems), ("b", problems)])
    assert len(train) == len(problems) and held == problems[:2]


def test_prompts_end_with_the_generation_prompt():
    tokenizer = AutoTokenizer.from_pretrained(f"{TINY}/learner")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}=15{% endif %}"
    assert tokenizer.decode(common.encode_prompt(tokenizer, "12+3")).endswith("=15")


@pytest.mark.parametrize("data", [b'\xef\xbb\xbf{"question": "q", "answer": "1"}\n',
                                  '{"question": "a\u2028b\x85c", "answer": "1"}\n'.encode()])
def test_a_byte_order_mark_and_odd_line_ends(tmp_path, data):
    (tmp_path / "p.jsonl").write_bytes(data)
    assert len(common.load_problems(str(tmp_path / "p.jsonl"))) == 1


def test_the_checker_looks_at_the_end_alone_and_divides_by_nothing():
    assert common.extract_answer("\\boxed{1}" + "x" * 20_000) is None
    assert not common.answers_equal("0/0", "5") and not common.answers_equal("5", "0/0")


def test_a_cache_grows_by_doubling_up_to_its_room():
    cache = common.new_cache(40)
    sizes = []
    for n in [5] + [1] * 30:
        new = torch.zeros(2, 2, n, 4)
        cache.update(new, new, 0)
        sizes.append(cache.layers[0].buffers[0].shape[2])
    assert sorted(set(sizes)) == [10, 22, 40]


def test_memory_estimate_by_hand():
    cfg, _ = common.parse_config(ngrpo.Config, ngrpo.PRESETS, ["--device", "cpu", "--kl_coef", ".1"])
    model = common.load_model(f"{TINY}/learner")[0]
    n, c = sum(p.numel() for p in model.parameters()), model.config
    got = common.memory_estimate(model, cfg, 100)
    assert got["weights"] == got["gradients"] == got["reference"] == 4 * n / 2 ** 30 and got["adam"] == 8 * n / 2 ** 30
    assert got["cache"] * 2 ** 30 == 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 4 * 1024 * 100
    assert "copy" not in got


def test_a_model_too_big_is_said_before_it_runs(tmp_path, monkeypatch, capsys):
    model, cfg = random_model(), common.parse_config(ngrpo.Config, ngrpo.PRESETS, ["--out", str(tmp_path / "run")])[0]
    for gib, said in ((.001, False), (1e6, True)):
        monkeypatch.setattr(common, "memory_estimate", lambda *_: dict(weights=gib))
        common.open_run(cfg, "ngrpo", model, "a prompt")
        assert ("more than there is: lower --max_rows" in capsys.readouterr().out) == said
