"""Architectures: the rollout, the training forward and the model's own logits agree, or the model is refused."""
import json
import math
from types import SimpleNamespace

import plain
import pytest
import torch
from conftest import random_model
from test_ngrpo import mixing, rescored, run
from test_train import lines
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

import ngrpo
from common import encode_prompt, has_sliding_layers, load_model

SLIDING = ["sliding_attention", "full_attention"]
LONGER = dict(rope_type="llama3", rope_theta=1e4, factor=8., low_freq_factor=1., high_freq_factor=4.,
              original_max_position_embeddings=16)
EXPERTS = dict(moe_intermediate_size=16, num_experts=4, num_local_experts=4, num_experts_per_tok=2)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4,
              v_head_dim=6, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1)
VISION = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
              num_attention_heads=2, image_size=28, patch_size=14)
# name: (model type, what differs from the sizes in config_of)
ARCHITECTURES = dict(
    llama=("llama", {}), llama_longer=("llama", dict(attention_bias=True, rope_parameters=LONGER)),
    qwen2=("qwen2", {}), qwen3=("qwen3", {}), qwen3_moe=("qwen3_moe", EXPERTS), gemma=("gemma", {}),
    gemma2=("gemma2", dict(layer_types=SLIDING, final_logit_softcapping=None)),
    gemma3=("gemma3_text", dict(layer_types=SLIDING, query_pre_attn_scalar=4)),
    gemma3_vision=("gemma3", dict(vision_config=VISION, mm_tokens_per_image=4)), gpt2=("gpt2", {}), opt=("opt", {}),
    gpt_neox=("gpt_neox", {}), phi=("phi", {}), phi3=("phi3", {}), olmo2=("olmo2", {}), mistral=("mistral", {}),
    mixtral=("mixtral", EXPERTS | dict(router_jitter_noise=.1)),
    gpt_oss=("gpt_oss", EXPERTS | dict(layer_types=SLIDING)),
    smollm3=("smollm3", dict(no_rope_layers=[1, 0])), deepseek_v3=("deepseek_v3", EXPERTS | LATENT),
    bloom=("bloom", {}))
WINDOWED = {"gemma2", "gemma3", "gemma3_vision", "phi3", "mistral", "mixtral", "gpt_oss"}


def config_of(name, **changes):
    """Two layers of width 16, a window of 4, 40 rows in the head, dropout wherever the architecture has one."""
    kind, more = ARCHITECTURES.get(name, (name, {}))
    wanted = dict(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=128, sliding_window=4, ffn_dim=32,
        word_embed_proj_dim=16, attention_dropout=.3, hidden_dropout=.3, resid_pdrop=.3, embd_pdrop=.3, dropout=.3,
        bos_token_id=None, eos_token_id=[2, 6], pad_token_id=None)
    known = AutoConfig.for_model(kind)
    if "text_config" in known.sub_configs:
        more = more | dict(eos_token_id=wanted["eos_token_id"], text_config=config_of("gemma3").to_dict())
    return AutoConfig.for_model(kind, **{k: v for k, v in wanted.items() if hasattr(known, k)} | more | changes)


def save_tokenizer(folder):
    """Thirty-one bytes without merges, neither chat template nor pad token; the EOS is id 3."""
    vocab = {c: i for i, c in enumerate([*"abc", "<|endoftext|>", *"defghijklmnopqrstuvwxyz", "Ġ", "1", "2", "?"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)


def save_model(folder, config):
    """Biases and norms are moved off 0 and 1 too, where leaving one out would not show."""
    model = random_model(config)
    for p in model.parameters():
        if p.dim() == 1:
            p.data += torch.randn(p.shape).mul(.35)
    model.generation_config.eos_token_id = [6, 9, 35]           # id 35 is in the head's padding
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return str(folder)


@pytest.fixture(scope="module", params=[(n, t) for n in ARCHITECTURES for t in (False, True)],
                ids=lambda p: p[0] + ("-tied" if p[1] else ""))
def s(request, tmp_path_factory):
    """A model as load_model returns it, three prompts of different lengths, one with two EOS ids, and six rows each."""
    name, tied = request.param
    folder = save_model(tmp_path_factory.mktemp(name), config_of(name, tie_word_embeddings=tied))
    try:
        model, tokenizer, eos, V = load_model(folder)
    except SystemExit:                                          # which would upset the tests that follow
        pytest.fail(f"{name} is refused")
    u, gate = (torch.rand(18, 16, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    return SimpleNamespace(
        name=name, tied=tied, model=model, head=model.get_output_embeddings(), tokenizer=tokenizer, eos=eos, V=V, u=u,
        gate=gate < .5, prompts=[[5, 7, 19], [3, 2, 11, 13, 4, 2, 8], [1]], G=6)


def own_logps(s, tokens, lengths, mixed, temperature=.8):
    """Row by row, by the model's own logits; a row with mixtures reads them in place of embeddings."""
    embed, out = s.model.get_input_embeddings(), []
    for i, n in enumerate(lengths.tolist()):
        prompt, completion = s.prompts[i // s.G], tokens[i, :n].tolist()
        x, blends = embed(torch.tensor(prompt + completion)), (mixed["row"] == i).nonzero()[:, 0].tolist()
        for j in blends:
            x[len(prompt) + mixed["step"][j]] = sum(
                w * embed(c) for w, c in zip(mixed["weight"][j], mixed["candidates"][j]))
        if blends:
            logits = s.model(inputs_embeds=x[None]).logits[0, len(prompt) - 1:-1, :s.V]
            out.append((logits / temperature).log_softmax(-1)[torch.arange(n), completion])
        else:
            out.append(plain.row_logps(s.model, prompt, completion, temperature, s.V))
    return out


def test_folder_without_template_or_pad_token_loads(s):
    """Every EOS id of config, generation config and tokenizer that may be sampled; V ends before the head's padding."""
    assert s.eos.tolist() == [2, 3, 6, 9] and s.V == 31 < s.head.weight.shape[0] == 40
    assert (s.head.weight is s.model.get_input_embeddings().weight) == s.tied
    assert has_sliding_layers(s.model.config) == (s.name in WINDOWED)
    assert not s.tokenizer.chat_template and encode_prompt(s.tokenizer, "a b?") == [0, 27, 1, 30]


@pytest.mark.parametrize("mixer", [None, "neighbour"])
@torch.no_grad()
def test_rollout_training_and_model_agree(s, mixer):
    """Log-probs recorded under left padding, compaction and a row cap are those of the training forward, dropout
    configured and silenced, and those of the model's own logits over V ids; rows end where an EOS id is drawn."""
    out = run(s, max_rows=5, **mixing(s) if mixer else {})
    tokens, sampled, lengths, mixed = out
    wanted = own_logps(s, tokens, lengths, mixed)
    s.model.train()
    logp, entropy, mask = rescored(s, out)
    s.model.eval()
    torch.testing.assert_close(logp, sampled, atol=1e-4, rtol=0)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(logp[i, :n], wanted[i], atol=1e-4, rtol=0)
        ends = torch.isin(tokens[i, :n], s.eos).tolist()
        assert not any(ends[:-1]) and (ends[-1] or n == 16)
    assert tokens.max() < s.V and mixed["candidates"].lt(s.V).all() and (len(mixed["row"]) > 5) == bool(mixer)
    assert len(set(lengths.tolist())) > 2                       # premises: rows leave early, and the choices
    assert .5 < entropy[mask].mean() < 3                        # are neither certain nor uniform (3.4 nats)


def trained(monkeypatch, tmp_path, folder, *flags):
    """The step lines of a run of two steps from the command line, and how often a layer ran in training mode."""
    real, layer_calls = load_model, []

    def load(*args):
        loaded = real(*args)
        layer = next(m for m in loaded[0].modules() if isinstance(m, torch.nn.ModuleList))[0]
        inner = next(layer.children())                  # hooks of the layer itself stay outside the recomputation
        inner.register_forward_pre_hook(lambda module, _: layer_calls.append(1) if module.training else None)
        return loaded
    monkeypatch.setattr(ngrpo, "load_model", load)
    monkeypatch.setattr(ngrpo, "reward", lambda text, gold: float(len(text) % 2))
    data, out = tmp_path / "problems.jsonl", str(tmp_path / "-".join(("out", *flags)))
    data.write_text("".join(json.dumps(dict(question="why not"[:n], answer="1")) + "\n" for n in range(1, 8)))
    ngrpo.main(["--model", folder, "--data", str(data), "--eval_problems", "0", "--out", out, "--steps", "2",
                "--prompts", "4", "--group", "4", "--max_new_tokens", "16", "--max_rows", "5", "--mix_rate", ".3",
                "--micro_tokens", "100", "--lr", ".01", "--device", "cpu", *flags])
    monkeypatch.undo()
    return [line for line in lines(out) if line["kind"] == "step"], len(layer_calls)


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "mistral", "qwen3"])
def test_training_steps(monkeypatch, tmp_path, name):
    """Two whole steps with mixing: the trainer scores what was sampled, before and after an update, and recomputing
    layers, which train() switches on, and with it any dropout left, changes the work and not the gradient."""
    folder = save_model(tmp_path / "model", config_of(name))
    (kept, few), (recomputed, many) = (trained(monkeypatch, tmp_path, folder, *flags)
                                       for flags in ((), ("--grad_checkpoint", "True")))
    assert many == 2 * few > 0
    for a, b in zip(kept, recomputed, strict=True):
        assert b["logp_gap_max"] < 1e-4 and b["mixed_share"] > .1 and 0 < b["grad_norm"] < math.inf
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_longrope_stays_below_its_switch(monkeypatch, tmp_path, capsys):
    """Past original_max_position_embeddings Phi-3's long rope turns every angle, but not those of keys in the cache:
    log-probs of a rollout that crosses it are nats away from the training forward's."""
    rope = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1., 1.], long_factor=[2., 4.])
    folder = save_model(tmp_path / "model", config_of(
        "phi3", rope_parameters=rope | dict(original_max_position_embeddings=21), original_max_position_embeddings=21))
    steps, _ = trained(monkeypatch, tmp_path, folder)
    assert max(line["logp_gap_max"] for line in steps) < 1e-4
    assert "2 prompts longer than 5 tokens dropped" in capsys.readouterr().out
    said = refused(capsys, lambda: trained(monkeypatch, tmp_path, folder, "--max_new_tokens", "21"))
    assert "21 new tokens leave no room in 21 positions: lower --max_new_tokens" in said


@pytest.mark.parametrize("kind,changes", [
    ("granite", dict(logits_scaling=8.)), ("granitemoe", dict(logits_scaling=8.)), ("cohere", {}),
    ("gemma2", dict(final_logit_softcapping=30.)), ("gemma3", dict(final_logit_softcapping=30.))])
def test_models_whose_logits_are_not_the_heads_are_refused(tmp_path, capsys, kind, changes):
    """Granite divides its logits, Cohere scales and Gemma caps them: head(hidden) would be another distribution."""
    folder = save_model(tmp_path, config_of(kind, **changes))
    assert "its logits are not head(hidden)" in refused(capsys, lambda: load_model(folder))


@pytest.mark.parametrize("kind,changes", [
    ("mamba", {}), ("rwkv", {}), ("lfm2", dict(layer_types=["conv", "full_attention"]))])
def test_models_that_decode_otherwise_are_refused(tmp_path, capsys, kind, changes):
    """Recurrent states are no key-value cache: left alone they end in a traceback, or silently in other text."""
    folder = save_model(tmp_path, config_of(kind, **changes))
    assert "does not decode with an ordinary key-value cache" in refused(capsys, lambda: load_model(folder))


def test_models_that_read_ids_in_every_layer_are_refused(tmp_path, capsys):
    """A mixture has no id that Gemma-3n could look up in its layers' own tables."""
    folder = save_model(tmp_path, config_of(
        "gemma3n_text", layer_types=SLIDING, hidden_size_per_layer_input=8, vocab_size_per_layer_input=40,
        laurel_rank=4, num_kv_shared_layers=0, intermediate_size=[32, 32], activation_sparsity_pattern=[0., 0.]))
    assert "reads ids in every layer" in refused(capsys, lambda: load_model(folder))


def test_models_without_hidden_states_or_recomputation_are_refused(monkeypatch, tmp_path, capsys):
    """Llama-4 names no base model, CTRL cannot recompute its layers: both ended in a traceback, CTRL's in a run."""
    folder = save_model(tmp_path / "llama4", config_of(
        "llama4_text", num_local_experts=2, intermediate_size_mlp=32, layer_types=["chunked_attention"] * 2))
    assert "shows no hidden states below its head" in refused(capsys, lambda: load_model(folder))
    folder = save_model(tmp_path / "ctrl", config_of("ctrl", dff=32))
    flags = "--grad_checkpoint", "True"
    said = refused(capsys, lambda: trained(monkeypatch, tmp_path, folder, *flags))
    assert "ctrl cannot recompute its layers" in said and not (tmp_path / "-".join(("out", *flags))).exists()


def refused(capsys, call):
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == 2
    return capsys.readouterr().err
