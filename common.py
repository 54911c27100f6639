"""What the four scripts share: command line, models, problems, run folders. Nothing about RL.

Importing it needs no GPU and no network. What a user can get wrong ends in `refuse`: a sentence, exit code 2.
"""
import argparse
import hashlib
import json
import math
import os
import pickle
import platform
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial

import torch
import torch.nn.functional as F
import transformers
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache, DynamicLayer
from transformers.hf_argparser import HfArgumentParser

from answers import answers_equal, check_answer, exact_match, extract_answer, readable  # noqa: F401

torch.backends.cuda.enable_cudnn_sdp(False)     # plans anew at every length of the cache (pytorch PR190388)


def refuse(sentence, error=""):
    """Stop with one clear sentence on stderr, an error's first line added, and exit code 2 (SystemExit)."""
    why = str(error).strip().partition("\n")[0]
    print(f"error: {sentence}" + f" ({why})" * bool(why), file=sys.stderr)
    raise SystemExit(2)


def parse_config(Config, presets, argv=None):
    """(cfg, state) from the command line: defaults, then --preset or the run to --resume, then other flags.
    state is that run's checkpoint, else None. What would make it another run may not change on resuming."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="tiny")
    first.add_argument("--resume", default="")
    known, saved = first.parse_known_args(argv)[0], {}
    if known.preset not in presets:
        refuse(f"--preset {known.preset}: choose one of {', '.join(presets)}")
    state = load_checkpoint(known.resume) if known.resume else None
    if state:
        saved = state["config"] | {"out": ""}                   # goes on in its folder, or in one named now
        if saved.keys() != Config.__dataclass_fields__.keys():
            refuse(f"--resume {known.resume}: another script or another version wrote it")
    parser = HfArgumentParser(Config, allow_abbrev=False)
    parser.set_defaults(**(saved or presets[known.preset]))
    cfg = Config(**vars(parser.parse_args(argv)))
    free = {"resume", "out", "device", "save_every", "eval_every", "micro_tokens", "max_rows",
            "grad_checkpoint", "steps" if cfg.lr_schedule == "constant" else ""}
    if changed := {k for k in saved if getattr(cfg, k) != saved[k]} - free:
        refuse(f"--resume {known.resume}: --{', --'.join(sorted(changed))} would make it another run")
    if state and cfg.steps < state["step"]:
        refuse(f"--resume {known.resume}: it has {state['step']} steps already; raise --steps")
    if cfg.out and os.path.exists(os.path.join(cfg.out, "metrics.jsonl")):
        refuse(f"--out {cfg.out}: holds another run; name another folder, or go on with --resume {cfg.out}")
    cfg.device = cfg.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=cfg.device)
    except (RuntimeError, AssertionError) as error:
        refuse(f"--device {cfg.device}: not available here, unlike --device cpu", error)
    cfg.compute_dtype = cfg.compute_dtype or ("bfloat16" if cfg.device.startswith("cuda") else "float32")
    odd = [k for k, v in vars(cfg).items() if isinstance(v, (int, float)) and not 0 <= v < math.inf]
    for fine, why in (
            (cfg.group >= 2, "--group must be at least 2: advantages compare the completions of one prompt"),
            (min(cfg.prompts, cfg.max_new_tokens, cfg.max_rows, cfg.micro_tokens, cfg.inner_epochs) >= 1,
             "--prompts, --max_new_tokens, --max_rows, --micro_tokens, --inner_epochs must be at least 1"),
            (1 <= cfg.minibatches <= cfg.prompts and cfg.prompts % cfg.minibatches == 0,
             f"--minibatches must divide --prompts ({cfg.prompts})"),
            (cfg.grad_clip > 0, "--grad_clip must be above 0, which would train nothing; 1e9 never binds"),
            (cfg.temperature > 0, "--temperature must be above 0: greedy completions are all alike"),
            (not odd, f"--{', --'.join(odd)} must be finite and at least 0"),
            (0 < cfg.eval_top_p <= 1, "--eval_top_p must lie in (0, 1]"),
            ("{question}" in cfg.prompt_format, "--prompt_format must hold {question}"),
            (cfg.ks and 1 <= min(cfg.ks) <= max(cfg.ks) <= cfg.eval_samples,
             f"--ks must lie in 1..--eval_samples ({cfg.eval_samples})")):
        if not fine:
            refuse(why)
    return cfg, state


# --- models -------------------------------------------------------------------------------------------------
def load_model(name, device="cpu", dtype=torch.float32):
    """A causal language model and its tokenizer, from a folder or a hub name, every dropout set to zero.
    Returns (model, tokenizer, eos_ids, V): eos_ids, all ids that end a completion, ids from V on may not be
    sampled, since the head of many a model is padded beyond the tokenizer's last id."""
    if os.path.isdir(name):
        files = os.listdir(name)
        if not any(f.endswith((".safetensors", ".bin")) for f in files):
            refuse(f"model {name}: the folder holds no weights (*.safetensors)")
        if not {"tokenizer.json", "tokenizer.model", "vocab.json"} & set(files):
            refuse(f"model {name}: the folder holds no tokenizer (tokenizer.json)")
    try:
        config = AutoConfig.from_pretrained(name)
        for part in filter(None, (config, *(getattr(config, k, None) for k in config.sub_configs))):
            for key, value in vars(part).items():       # layer checkpointing needs train(): noise must go
                if ("drop" in key or "jitter" in key) and isinstance(value, float):
                    setattr(part, key, 0.)
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, config=config, dtype=dtype).to(device).eval()
    except (OSError, ValueError, ImportError) as error:         # ImportError: a quantised model's package
        refuse(f"model {name}: cannot be loaded", error)
    if hasattr(config, "hidden_size_per_layer_input"):
        refuse(f"model {name}: {config.model_type} reads ids in every layer, an embedding is not enough")
    head = model.get_output_embeddings()
    vocab = tokenizer.get_vocab()
    V = min(head.weight.shape[0], 1 + max(vocab.values()))
    ids = torch.tensor([[V // 4, V // 2, V - 1]], device=device)  # the scripts take logits for head(hidden)
    try:
        with torch.no_grad():
            wanted = model(input_ids=ids, use_cache=False).logits
            got = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    except (AttributeError, TypeError, ValueError) as error:    # Llama-4 calls its whole self its base model
        refuse(f"model {name}: {config.model_type} shows no hidden states below its head ({error!r})")
    if (wanted - got).abs().max() > (1e-2 if dtype == torch.bfloat16 else 1e-4) * wanted.abs().max():
        refuse(f"model {name}: its logits are not head(hidden), {config.model_type} scales or caps them")
    named = (getattr(x, "eos_token_id", None) for x in (tokenizer, config, model.generation_config))
    eos = {i for n in named for i in (n if isinstance(n, (list, tuple)) else [n]) if i is not None and i < V}
    if tokenizer.chat_template:                 # a base model may not name the end of a turn that it writes
        eos |= {vocab[word] for word in ("<|im_end|>", "<|eot_id|>") if vocab.get(word, V) < V}
    if not eos:
        refuse(f"model {name}: neither model nor tokenizer names an end-of-sequence token")
    check_cache(name, model, ids[0, :2])
    return model, tokenizer, torch.tensor(sorted(eos), device=device), V


@torch.no_grad()
def check_cache(name, model, ids):
    """Refuse a model that does not decode two ids as it reads them at once: the second by the cache, padding
    before the first. Recurrent and hybrid models do not, nor do those that ignore a mask."""
    cache, mask = new_cache(2), torch.tensor([[0, 1, 1]], device=ids.device)
    how = dict(cache=cache, use_cache=True)
    try:
        model.base_model(input_ids=F.pad(ids[:1], (1, 0))[None], attention_mask=mask[:, :2],
                         position_ids=torch.zeros_like(mask[:, :2]), **how)
        got = model.base_model(input_ids=ids[None, 1:], attention_mask=decode_mask(model.config, mask.bool()),
                               position_ids=torch.ones_like(mask[:, :1]), **how).last_hidden_state[0, -1]
        wanted = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0, -1]
        fine = (got - wanted).abs().max() < 1e-2 * wanted.abs().max()
    except (IndexError, ValueError, TypeError, AttributeError, RuntimeError):
        fine = False
    if not fine:
        refuse(f"model {name}: {model.config.model_type} does not decode with an ordinary key-value cache")


class GrowingLayer(DynamicLayer):
    """A cache layer that doubles its buffer, up to `room` tokens: transformers copies all at each."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.buffers = [key_states[:, :, :0], value_states[:, :, :0]]
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        for i, new in enumerate((key_states, value_states)):
            if end > self.buffers[i].shape[2]:
                bigger = new.new_empty(*new.shape[:2], max(end, min(2 * end, self.room)), new.shape[3])
                bigger[:, :, :start] = self.buffers[i][:, :, :start]
                self.buffers[i] = bigger
            self.buffers[i][:, :, start:end] = new
        self.keys, self.values = (b[:, :, :end] for b in self.buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices):
        end = self.get_seq_length()
        self.buffers = [b.index_select(0, indices) for b in self.buffers]
        self.keys, self.values = (b[:, :, :end] for b in self.buffers)


def has_sliding_layers(config):
    config = config.get_text_config()
    types = getattr(config, "layer_types", None)
    return any("full" not in t for t in types) if types else bool(getattr(config, "sliding_window", None))


def decode_mask(config, mask):
    """The mask (n, L) of a decode step as the model is to get it. Four dimensions spare transformers a look
    at its values, a sync on CUDA, but would hide a sliding window, and eager attention would add it up."""
    plain = has_sliding_layers(config) or config._attn_implementation != "sdpa"
    return mask if plain else mask[:, None, None]


def new_cache(room):
    return Cache(layer_class_to_replicate=partial(GrowingLayer, room))


def memory_estimate(model, cfg, length):
    """GiB a run will need, by part; activations are a rough count."""
    config, n = model.config.get_text_config(), sum(p.numel() for p in model.parameters())
    size, width = 2 if cfg.compute_dtype == "bfloat16" else 4, config.hidden_size
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or width // config.num_attention_heads
    rows = min(cfg.max_rows, max(cfg.prompts * cfg.group, cfg.eval_problems * cfg.eval_samples))
    layers, kept = (2, 4 * config.num_hidden_layers) if cfg.grad_checkpoint else (config.num_hidden_layers, 0)
    parts = dict(weights=4 * n, gradients=4 * n, adam=8 * n, copy=n * size * (size == 2),
                 head=8 * config.vocab_size * width + 2 ** 28, sampling=24 * config.vocab_size * rows,
                 reference=4 * n * (cfg.kl_coef > 0),
                 acts=(17 * size * layers + kept) * width * cfg.micro_tokens,
                 cache=2 * config.num_hidden_layers * heads * dim * size * rows * length)
    return {k: v / 2 ** 30 for k, v in parts.items() if v}


# --- prompts and problems -----------------------------------------------------------------------------------
def encode_prompt(tokenizer, question, prompt_format="{question}", system="", chat_template="auto"):
    """Token ids of a question as the model sees it, with one BOS where the model has one.
    chat_template: "auto" is the tokenizer's, if it has one; "none" encodes the formatted text as it is."""
    text = prompt_format.format(question=question)
    if chat_template == "none" or not tokenizer.chat_template:
        return tokenizer((system + "\n\n" if system else "") + text).input_ids
    turns = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": text}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False).input_ids      # the template has written the BOS itself


def encode_problems(cfg, model, tokenizer, sets):
    """[(name, problems), …] with each problem's "prompt" ids; those too long are dropped and counted.
    The first set is for training, the others are cut to cfg.eval_problems."""
    form = cfg.prompt_format, cfg.system, cfg.chat_template
    text = model.config.get_text_config()
    room, rope = getattr(text, "max_position_embeddings", None), getattr(text, "rope_parameters", None)
    if rope and rope.get("rope_type") == "longrope":    # beyond it every angle changes, cached ones too
        room = rope["original_max_position_embeddings"]
    limit, kept = min(cfg.max_prompt_tokens, (room or math.inf) - cfg.max_new_tokens), []
    if cfg.grad_checkpoint and not model.supports_gradient_checkpointing:
        refuse(f"--grad_checkpoint True: {model.config.model_type} cannot recompute its layers")
    if limit < 1:
        refuse(f"{cfg.max_new_tokens} new tokens leave no room in {room} positions: lower --max_new_tokens")
    for name, problems in sets if cfg.eval_problems else sets[:1]:
        problems = problems[:cfg.eval_problems] if kept else problems
        for p in problems:
            try:
                p["prompt"] = encode_prompt(tokenizer, p["question"], *form)
            except (KeyError, IndexError, ValueError, AttributeError) as error:
                refuse(f"--prompt_format {form[0]!r}: write {{question}} and double other braces ({error!r})")
            except TemplateError as error:
                refuse(f"--chat_template: the model's own refuses this ({error}); try none, or no --system")
        fit = [p for p in problems if 1 <= len(p["prompt"]) <= limit]
        if len(fit) < len(problems):
            print(f"{name}: {len(problems) - len(fit)} prompts longer than {limit} tokens dropped")
        if not fit:
            refuse(f"{name}: no prompt has at most {limit} tokens; raise --max_prompt_tokens")
        kept.append((name, fit))
    return kept


def decode(tokenizer, tokens, lengths):
    """The text of each completion: tokens (N, T), lengths (N,) -> N strings without special tokens."""
    rows = [row[:n] for row, n in zip(tokens.tolist(), lengths.tolist())]
    return tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def load_problems(path):
    """A list of {"id", "question", "answer", "rephrasings"}; answer: a string, or a list of accepted strings.
    path: JSON lines, one JSON array, or a hub data set owner/name[:config[:split]], read with the optional
    package `datasets`. A bad line stops the program with file, line and reason: nothing is dropped unseen."""
    local = os.path.exists(path) or path.endswith((".json", ".jsonl"))
    if local:
        records = read_json(path)
    else:
        try:
            import datasets
            name, config, split = (path.split(":") + ["", ""])[:3]
            records = enumerate(datasets.load_dataset(name, config or None, split=split or "train"), 1)
        except ImportError:
            refuse(f"{path}: no such file; to read it as a hub data set, pip install datasets")
        except (OSError, ValueError, RuntimeError) as error:    # missing, gated, no network, a script
            refuse(f"{path}: no such file or readable data set", error)
    problems = {line: read_problem(record, f"{path}, line {line}") for line, record in records}
    if not problems:
        refuse(f"{path}: the file is empty")
    if bad := [line for line, p in problems.items() if not p["answer"]]:
        (refuse if local or len(bad) == len(problems) else print)(      # a hub's lines are not ours to mend
            f"{path}: {len(bad)} of {len(problems)} answers cannot be read, the first in line {bad[0]}")
    return [p for p in problems.values() if p["answer"]]


def read_json(path):
    """[(line, record), …] of a file of JSON lines or one JSON array."""
    try:
        with open(path, encoding="utf-8-sig") as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{path}: cannot be read", error)
    whole, records = text.lstrip().startswith("["), []
    for line, part in enumerate([text] if whole else text.split("\n"), 1):
        if part.strip():
            try:
                records.append((line, json.loads(part)))
            except json.JSONDecodeError as error:
                refuse(f"{path}, line {line + error.lineno - 1}: not JSON ({error.msg})")
    return list(enumerate(records[0][1], 1)) if whole else records


def read_problem(record, where):
    """One problem, from the field names of the common public sets."""
    if not isinstance(record, dict):
        refuse(f"{where}: an object {{\"question\": …, \"answer\": …}} was expected")
    question = next((record[k] for k in ("question", "problem", "prompt", "quiz") if record.get(k)), None)
    if isinstance(question, list):                      # chat turns: the last of the user's
        turns = [t for t in question if isinstance(t, dict) and t.get("role") == "user"]
        question = turns[-1].get("content") if turns else None
    if not isinstance(question, str) or not question.strip():
        refuse(f"{where}: no question (a text in \"question\", \"problem\" or \"prompt\")")
    fields = "answer", "final_answer", "target", "solution_text_format"
    found = [record[k] for k in fields if record.get(k) not in (None, "", [])]
    found += [extract_answer(record["solution"])] if isinstance(record.get("solution"), str) else []
    if not found:                               # of a solution its last box counts, never the whole text
        refuse(f"{where}: no answer (text or number or list in \"answer\", or a box in \"solution\")")
    golds = [read_gold(g) for g in (found[0] if isinstance(found[0], list) else found[:1])]
    rephrasings = record.get("rephrasings") or []
    if not isinstance(rephrasings, list) or not all(
            isinstance(r, dict) and str(r.get("text") or "").strip() for r in rephrasings):
        refuse(f"{where}: rephrasings must be a list of objects with a text each")
    identity = record.get("id")                         # 0 is one
    identity = hashlib.sha256(question.encode()).hexdigest()[:12] if identity in (None, "") else str(identity)
    if record.get("choices") and all(golds):            # lettered in an order fixed by the id
        choices, letters = record["choices"], "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        listed = isinstance(choices, list)
        right = choices.index(golds[0]) if listed and golds[0] in choices else letters.find(golds[0])
        if not listed or not 0 <= right < len(choices) <= 26 or len(golds[0]) > 1 and (
                golds[0] not in choices):
            refuse(f"{where}: the answer is neither one of the choices nor the letter of one")
        order = random.Random(identity).sample(range(len(choices)), len(choices))
        question += "".join(f"\n({letters[i]}) {choices[j]}" for i, j in enumerate(order))
        golds = [letters[order.index(right)]]
    answer = golds if len(golds) > 1 else golds[0]
    return dict(id=identity, question=question, answer=answer if all(golds) else "", rephrasings=rephrasings)


def read_gold(gold):
    """The bare answer of a gold field, after GSM8K's #### or in the last box of a solution; "" if broken."""
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)) or gold != gold:       # nan
        return ""
    gold = str(gold).strip()
    gold = (extract_answer(gold) or "") if "####" in gold or "\\boxed" in gold else gold
    return gold if readable(gold) else ""


def load_corpus(path):
    """The passages of a file of {"text": …} lines."""
    texts = [isinstance(record, dict) and record.get("text") for _, record in read_json(path)]
    if not texts or not all(isinstance(text, str) for text in texts):
        refuse(f"{path}: every line must be an object {{\"text\": a passage}}")
    return texts


def lexical_search(texts):
    """search(queries, k) -> for each query at most k of the texts, that with most words of it first, a
    word counted by its rarity. For a few thousand texts: each is looked at."""
    words = re.compile(r"\w+").findall
    bags = [set(words(text.lower())) for text in texts]
    count = Counter(word for bag in bags for word in bag)

    def ranked(query):                                          # fsum: the same in whatever order
        asked = set(words(query.lower()))
        return sorted((-math.fsum(1 / count[w] for w in asked & bag), i) for i, bag in enumerate(bags))
    return lambda queries, k: [[texts[i] for score, i in ranked(query)[:k] if score] for query in queries]


# --- a run: its random numbers, order, schedule and folder --------------------------------------------------
def draws(seed, step, stream, shape):
    """Uniforms for one purpose of one step: no generator to save, and no stream disturbs another. Streams:
    0 tokens, 1 gates, 2 and 3 the same in evaluation, 4 order of problems, 5 benches, 6 an explorer's tokens.
    Hashed to 32 bits, as torch's CPU generator reads no more of a seed."""
    hashed = random.Random(f"{seed} {step} {stream}").getrandbits(32)
    return torch.rand(shape, generator=torch.Generator().manual_seed(hashed))


def batch_of(problems, prompts, step, seed):
    """The problems of step 1, 2, …: epoch after epoch, each in its own random order, none left out."""
    places = [divmod(i, len(problems)) for i in range((step - 1) * prompts, step * prompts)]
    order = {epoch: draws(seed, epoch, 4, len(problems)).argsort() for epoch, _ in places}
    return [problems[order[epoch][i]] for epoch, i in places]


def micro_batches(rows, sequences, micro_tokens):
    """Rows, longest first, cut so that rows x longest <= micro_tokens; a longer row goes alone."""
    rows = sorted(rows.tolist(), key=lambda r: -len(sequences[r]))
    while rows:
        count = max(1, micro_tokens // len(sequences[rows[0]]))
        yield rows[:count]
        rows = rows[count:]


def learning_rate(step, steps, lr, warmup, schedule):
    """Of step 1..steps: linear warm-up, then constant, or linear or cosine towards 0."""
    done = max(0, step - 1 - warmup) / max(1, steps - warmup)
    decay = {"constant": 1, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[schedule]
    return lr * min(1, step / (warmup + 1)) * decay


def stop_on_signal():
    """A list that Ctrl-C and SIGTERM fill, to end the loop after its step; a second one ends it at once."""
    caught = []

    def note(number, _):
        caught.append(number)
        signal.signal(number, signal.SIG_DFL)
        print("stopping after this step", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM) * (threading.current_thread() is threading.main_thread()):
        signal.signal(number, note)
    return caught


def open_run(cfg, name, model, prompt, state=None):
    """Print settings, first prompt and memory estimate; return the output folder, its metrics.jsonl begun.
    A run that goes on, there or in a new folder, has its logs cut back to the checkpoint."""
    if cfg.device == "cpu" and sum(p.numel() for p in model.parameters()) < 1e7:
        torch.set_num_threads(1)                # on busy cores a tiny model's threads wait for each other
    if cfg.device.startswith("cuda") and cfg.compute_dtype == "bfloat16":
        torch.set_float32_matmul_precision("high")      # TF32: head, cosines; far below bfloat16's rounding
    for key, value in vars(cfg).items():
        print(f"{key:>18} {value}")
    parts = memory_estimate(model, cfg, cfg.max_prompt_tokens + cfg.max_new_tokens)
    has = (torch.cuda.get_device_properties(cfg.device).total_memory if cfg.device.startswith("cuda")
           else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2 ** 30
    needs, lower = sum(parts.values()), "lower --max_rows, --micro_tokens or take a smaller --model"
    print(f"memory: about {needs:.1f} of {has:.0f} GiB:", *(f"{k} {v:.2f}" for k, v in parts.items()),
          f"\nmore than there is: {lower}" * (needs > has))
    print(f"first prompt: {prompt!r}", flush=True)
    out = cfg.out or cfg.resume or os.path.join("out", f"{name}-{time.strftime('%m%d-%H%M%S')}-{os.getpid()}")
    try:
        os.makedirs(out, exist_ok=True)
        open(os.path.join(out, "metrics.jsonl"), "a").close()
    except OSError as error:
        refuse(f"--out {out}: cannot be written", error)
    if state:
        for file in ("metrics.jsonl", "samples.jsonl"):
            cut_log(os.path.join(cfg.resume, file), os.path.join(out, file), state["step"])
    else:
        write_line(out, "metrics.jsonl", kind="config", config=vars(cfg), prompt=prompt,
                   **provenance(cfg.device))
    print(f"writing to {out}", flush=True)
    return out


def provenance(device):
    """Where a figure comes from: git revision, device, threads, versions."""
    git = ""
    with suppress(OSError):                                     # no git on this machine
        git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=os.path.dirname(os.path.abspath(__file__)),
                             capture_output=True, text=True).stdout.strip()
    name = torch.cuda.get_device_name(device) if "cuda" in str(device) else f"{device}, {platform.machine()}"
    return dict(git=git, device=name, threads=torch.get_num_threads(),
                torch=torch.__version__, transformers=transformers.__version__)


def report(out, kind, step, **fields):
    """One line of metrics.jsonl and one on the screen; a tensor becomes its mean, what is not finite None."""
    for k, v in fields.items():
        v = v.float().mean().item() if torch.is_tensor(v) else v        # of an empty one: nan
        fields[k] = None if isinstance(v, float) and not math.isfinite(v) else v
    write_line(out, "metrics.jsonl", kind=kind, step=step, **fields)
    shown = [k for k in fields if "@" in k] if kind == "eval" else [
        "reward", "dead", "length", "truncated", "logp_gap_max", "entropy", "grad_norm", "tokens_per_s"]
    print(f"{kind} {step:4}", os.path.basename(fields.get("data", "")), *(
        f" {k} {fields[k]:.3g}" for k in shown if fields[k] is not None), flush=True)


def peak_gib(device):
    """Most memory this process has held so far, on the device it trains on."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2 ** 30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (30 if sys.platform == "darwin" else 20)


def write_line(folder, name, **fields):
    """Append one JSON object to folder/name. A full disk is said, and costs a line, not the run."""
    try:
        with open(os.path.join(folder, name), "a") as f:
            f.write(json.dumps(fields) + "\n")
    except OSError as error:
        print(f"warning: a line of {folder}/{name} is lost ({error})", file=sys.stderr)


def cut_log(source, target, step):
    """Copy the lines a run had written up to its checkpoint; an evaluation there comes again if it is due."""
    lines = []
    for text in open(source, encoding="utf-8").read().split("\n") if os.path.exists(source) else ():
        with suppress(json.JSONDecodeError):    # a kill or a full disk cut it short
            lines.append(json.loads(text))
    lines = [x for x in lines if x.get("step", -1) + (x.get("kind") == "eval") <= step]
    with open(target + ".tmp", "w") as f:
        f.writelines(json.dumps(x) + "\n" for x in lines)
    os.replace(target + ".tmp", target)


def save_checkpoint(folder, state):
    """folder/state.pt, whole or not at all: written aside, synced, renamed. A full disk is said, no more."""
    path = os.path.join(folder, "state.pt")
    try:
        with open(path + ".tmp", "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".tmp", path)
    except (OSError, RuntimeError) as error:    # RuntimeError is torch.save's word for a failed write
        print(f"warning: step {state['step']} is not saved, the run goes on ({error})", file=sys.stderr)
        if os.path.exists(path + ".tmp"):
            os.remove(path + ".tmp")


def load_checkpoint(folder):
    path = os.path.join(folder, "state.pt")
    if not os.path.exists(path):
        refuse(f"--resume {folder}: there is no state.pt to go on from")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        refuse(f"--resume {folder}: state.pt cannot be read", error)


def export_model(model, tokenizer, folder):
    """folder/model, an ordinary Hugging Face folder, in the float32 the weights were trained in."""
    try:
        model.save_pretrained(os.path.join(folder, "model"))
        tokenizer.save_pretrained(os.path.join(folder, "model"))
    except (OSError, SafetensorError) as error:
        refuse(f"{folder}/model is not written ({error}); make room, then --resume {folder}")


# --- pass@k -------------------------------------------------------------------------------------------------
def pass_at_k(n, c, k):
    """Unbiased chance that one of k samples is right, given c right among n: 1 - C(n-c, k) / C(n, k)."""
    return 1. - math.comb(n - c, k) / math.comb(n, k)


def pass_table(right, ks):
    """pass@1, its standard error over problems and pass@k, from (problems, samples) of right or wrong."""
    n, rates, counts = right.shape[1], right.double().mean(1), right.sum(1).tolist()
    table = {f"pass@{k}": sum(pass_at_k(n, c, k) for c in counts) / len(counts) for k in sorted({1, *ks})}
    se = rates.std().item() / len(rates) ** .5 if len(rates) > 1 else None
    return table | {"pass@1_se": se, "n": n, "problems": len(right)}
