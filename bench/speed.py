"""Speed and memory of ngrpo.py. A speed is the ratio to what it competes with: the two are timed in turn, A B
A B, so that a drift of the machine cancels, and the median of --repeats rounds is given.

    rollout_real     ngrpo.rollout against model.generate, 4 GSM8K prompts x 8, exactly 256 new tokens,
                     float32: in total, and decoding alone, that is less the same call for 1 new token
    rollout_tiny     the same on tiny/learner, 16 problems x 8, natural lengths, one thread
    mixing_overhead  a step of ngrpo.train, search and update included, with mixing against without:
                     8 prompts x 8, exactly 128 tokens; two steps, the second given the first one's anchors;
                     on a CPU in seconds of CPU time
    neighbour_table  ngrpo.nearest for all rows of a random table: milliseconds, most extra bytes at once;
                     on a CPU one chunk of anchors is timed, and the milliseconds are extrapolated
    largest_tensor   N*T*V over the largest result of any operator in an update, recomputation included
    saved_head       bytes kept for backward by F.linear, log_softmax and gather over those ngrpo.token_logps
                     keeps: one row of 512 tokens, SmolLM2's sizes
    saved_update     the same of an update's forward, the plain one over ours with --grad_checkpoint
    where_time_goes  a step in percent, on tiny/learner and on --model (8 prompts x 8, 64 tokens): prefill; of
                     decoding the layers, the head with its softmax, sampling, mixing, the cache's growth and
                     compaction, the rest of the loop; text, with grading; score, that is forward; backward;
                     optimizer, with clipping; other; one thread, on a CPU in seconds of CPU time
    decode_roofline  a decode step of --model, 32 rows at position 256, over the larger of two bounds: its
                     bytes at this machine's bandwidth, its arithmetic at the rate of a large matrix product;
                     one thread, on a CPU in seconds of CPU time

    python bench/speed.py --model FOLDER                        SmolLM2-135M-Instruct: an hour on two cores
    python bench/speed.py                                       what needs no real model: two minutes
    python bench/speed.py --model FOLDER --quick --repeats 1    does it all run? five minutes

Leave the machine to it meanwhile. Every figure appends a JSON line to --out. Whole steps are compared with
TRL's by bench/against_trl.py.
"""
import argparse
import contextlib
import functools
import itertools
import json
import os
import re
import sys
import time
from collections import Counter
from statistics import median
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
import common  # noqa: E402
import ngrpo  # noqa: E402

FORMAT = "{question}\nLet's think step by step and output the final answer within \\boxed{{}}."
GSM8K = os.path.join(ROOT, "..", "shared", "data", "gsm8k_test.jsonl")
NEED_MODEL = ("rollout_real", "mixing_overhead", "largest_tensor", "decode_roofline", "trl_real")


def clock(f, now=time.perf_counter):
    """Seconds of f(), to the end of what it leaves to the GPU."""
    start = now()
    f()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return now() - start


def record(args, figure, value, unit, wanted="", **fields):
    """A line in the file, and one in the table."""
    where = common.provenance(args.device)
    if args.device == "cpu" and os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            where["device"] += "".join(re.findall(r"model name\s*:( .*)", f.read())[:1])
    line = dict(figure=figure, value=round(value, 4), unit=unit, wanted=wanted, **fields, quick=args.quick,
                **where, cores=os.cpu_count(), load=os.getloadavg()[0], date=time.strftime("%Y-%m-%d %H:%M"))
    with open(args.out, "a") as f:
        f.write(json.dumps(line) + "\n")
    tell(args, f"{figure:30} {value:10.4g} {unit:18} {wanted and 'wanted ' + wanted}")


def tell(args, line):
    """A line on the screen now, and in the table at the end."""
    args.table.append(line)
    print(line, flush=True)


def load(args, real):
    """Model, tokenizer, eos_ids, V, problems, as ngrpo.train takes them; the real model's EOS never comes."""
    torch.set_num_threads(args.threads if real else 1)
    folder, file = (args.model, GSM8K) if real else (f"{ROOT}/tiny/learner", f"{ROOT}/tiny/easy_train.jsonl")
    model, tokenizer, eos_ids, V = common.load_model(folder, args.device)
    problems = common.load_problems(file)
    for p in problems:
        p["prompt"] = common.encode_prompt(tokenizer, p["question"], FORMAT if real else "{question}")
    return model, tokenizer, torch.full_like(eos_ids, -1) if real else eos_ids, V, problems


def ours(model, prompts, T, eos_ids, V, seed):
    u = common.draws(1, seed + 1, 0, (8 * len(prompts), T)).to(eos_ids.device)
    return ngrpo.rollout(model, model.get_output_embeddings(), prompts, u, 1., eos_ids, V)[2].sum().item()


def generate(model, prompts, T, eos_ids, V, seed):
    """The same work, by transformers. An EOS of -1 never comes, and spares it what min_new_tokens costs."""
    torch.manual_seed(seed)
    P, device = max(map(len, prompts)), eos_ids.device
    ids = torch.tensor([[0] * (P - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (P - len(p)) + [1] * len(p) for p in prompts], device=device)
    out = model.generate(
        ids, attention_mask=mask, do_sample=True, temperature=1., top_k=0, top_p=1., max_new_tokens=T,
        num_return_sequences=8, eos_token_id=eos_ids.tolist(), pad_token_id=0)[:, P:]
    return (torch.isin(out, eos_ids).cumsum(1).cumsum(1) <= 1).sum().item()     # to the EOS, that included


def compare(args, figure, model, prompts, T, eos_ids, V, **wanted):
    """Seconds of generate over ours, for each part of `wanted`: total, decode."""
    calls = list(itertools.product((ours, generate), (T, 1)[:len(wanted)]))
    seconds, tokens = {call: [] for call in calls}, {call: [] for call in calls}
    for f, n in calls:
        f(model, prompts, min(n, 16), eos_ids, V, 0)             # warm up
    for seed, (f, n) in itertools.product(range(args.repeats), calls):
        seconds[f, n].append(clock(lambda: tokens[f, n].append(f(model, prompts, n, eos_ids, V, seed))))
    for part in wanted:
        a, b = ([x - y for x, y in zip(seconds[f, T], seconds[f, 1])] if part == "decode" else seconds[f, T]
                for f in (ours, generate))
        record(args, f"{figure} {part}", median(y / x for x, y in zip(a, b)), "generate / ours", wanted[part],
               ours_s=a, generate_s=b, ours_tokens=tokens[ours, T], generate_tokens=tokens[generate, T])


def rollout_real(args):
    model, _, eos_ids, V, problems = load(args, True)
    compare(args, "rollout_real", model, [p["prompt"] for p in problems[:4]], 16 if args.quick else 256,
            eos_ids, V, total=">= 1.2", decode=">= 1.1")


def rollout_tiny(args):
    model, _, eos_ids, V, problems = load(args, False)
    compare(args, "rollout_tiny", model, [p["prompt"] for p in problems[:16]], 48, eos_ids, V, total=">= 2")


def timer(args):
    """CPU seconds on a CPU, which a busy machine leaves alone, else the clock."""
    return time.process_time if args.device == "cpu" else time.time


def train(args, loaded, flags, **replaced):
    """ngrpo.train, nothing saved. Returns its steps: seconds, of rollout and update too, tokens, dead share.
    Every other reward is 1, unless another `reward` is among the functions to replace."""
    flags = f"--device {args.device} --group 8 --lr 0 --micro_tokens 4096 {flags}"
    cfg, _ = common.parse_config(ngrpo.Config, ngrpo.PRESETS, flags.split())
    now, rewards, steps = timer(args), itertools.cycle((0., 1.)), []
    marks = [now()]

    def report(out, kind, step, **fields):                      # the search ahead lies between two reports
        marks.append(now())
        steps.append(dict(
            seconds=marks[-1] - marks[-2], rollout=fields["seconds_rollout"], update=fields["seconds_update"],
            tokens=fields["length"].sum().item(), dead=fields["dead"].float().mean().item()))
    replaced = dict(reward=lambda *_: next(rewards)) | replaced | dict(report=report, stop_on_signal=list)
    replaced |= {name: mock.Mock() for name in ("save_checkpoint", "export_model", "write_line")}
    with mock.patch.multiple(ngrpo, **replaced):
        ngrpo.train(cfg, *loaded, eval_sets=[], out="", state=None)
    return steps


def mixing_overhead(args):
    loaded, seconds, (B, T) = load(args, True), {.1: [], 0: []}, (2, 8) if args.quick else (8, 128)
    train(args, loaded, "--prompts 2 --max_new_tokens 4 --steps 1")         # warm up
    for seed, rate in itertools.product(range(1, args.repeats + 1), seconds):
        flags = f"--prompts {B} --max_new_tokens {T} --steps 2 --seed {seed} --mix_rate {rate}"
        seconds[rate].append([(s["seconds"], s["rollout"], s["update"]) for s in train(args, loaded, flags)])
    ratio = torch.tensor(seconds[.1]).double() / torch.tensor(seconds[0]).double()     # (rounds, 2 steps, 3)
    value, *parts = (median(r.flatten().tolist()) for r in (
        ratio[..., 0], ratio[:, 0, 0], ratio[:, 1, 0], ratio[..., 1], ratio[..., 2]))
    record(args, "mixing_overhead", value, "on / off", "<= 1.03", on_s=seconds[.1], off_s=seconds[0],
           **dict(zip(("first_step", "second_step", "rollout", "update"), parts)))


class Watch(TorchDispatchMode):
    """The largest result of any operator. What backward recomputes counts as backward's."""
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        for t in filter(torch.is_tensor, tree_leaves(out)):
            self.largest[phase] = max(self.largest[phase], (t.numel(), str(func), list(t.shape)))
        return out


def largest_tensor(args):
    def rollout(actor, u, V, **_):                              # random tokens and mixtures do for an update
        row, step = (u < .1).nonzero(as_tuple=True)
        candidates = torch.randint(V, (len(row), 3), device=u.device)
        weight = torch.full(candidates.shape, 1 / 3, device=u.device)
        mixed = dict(row=row, step=step, candidates=candidates, weight=weight, noise=0 * weight[:, :1])
        return (u * V).long(), torch.zeros_like(u), (u >= 0).sum(1), mixed | dict(cosine=weight[:, 0])

    loaded, T = load(args, True), 512                           # so many that the head's weight is a fraction
    with Watch() as watch:
        watch.largest = dict(forward=(0,), backward=(0,))
        train(args, loaded, f"--prompts 1 --max_new_tokens {T} --steps 1 --mix_rate 0 --micro_tokens 16384",
              rollout=rollout)
    NTV, largest = 8 * T * loaded[3], max(watch.largest.values())
    record(args, "largest_tensor", NTV / largest[0], "N*T*V / largest", ">= 4", NTV=NTV, **watch.largest)
    assert 4 * largest[0] <= NTV, largest


def extra_bytes(f, device):
    """Most bytes f() holds at once: CUDA's count, or the growth of the resident set's peak (Linux only)."""
    def peak(reset=False):
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats() if reset else None
            return torch.cuda.max_memory_allocated()
        if reset:
            with open("/proc/self/clear_refs", "w") as refs:
                refs.write("5")
        with open("/proc/self/status") as status:
            return int(re.search(r"VmHWM:\s*(\d+)", status.read())[1]) * 1024
    before = peak(reset=True)
    f()
    return peak() - before


def neighbour_table(args):
    torch.set_num_threads(args.threads)
    for V, D in ((151936, 1536), (49152, 576), (96, 128)):
        table = F.normalize(torch.randn(V, D), dim=1).to(args.device)
        ids = torch.arange(min(V, 2 ** 26 // V) if args.device == "cpu" else V, device=args.device)
        extra = extra_bytes(lambda: ngrpo.nearest(table, ids, 3), args.device)         # and warms up
        ms = [1e3 * clock(lambda: ngrpo.nearest(table, ids, 3)) for _ in range(args.repeats)]
        unit = "ms, extrapolated" if len(ids) < V else "ms"
        record(args, f"neighbour_table {V}x{D}", median(ms) * V / len(ids), unit, anchors_timed=len(ids),
               timed_ms=ms, extra_bytes=extra, table_bytes=table.nbytes)


def saved_bytes(f, known):
    """Bytes kept for the backward of what f() returns, each storage once, those of `known` tensors left out:
    what autograd packs, and all storages made in f that outlive it. Checkpointing packs by hooks of its own,
    under which the first count sees a layer's input alone. The second sees what anyone holds, its frames
    included: nothing can hide. They agree to 1 %, and the resident set grew alike (saved_update: 39 and 777
    MB counted, 42 and 778 MB grown), which is how we know."""
    packed, born, known = {}, {}, {t.untyped_storage().data_ptr() for t in known}

    class Births(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in filter(torch.is_tensor, tree_leaves(out)):
                if (storage := t.untyped_storage()).data_ptr() not in known:
                    ref = StorageWeakRef(storage)       # while we hold it no other storage gets its cdata
                    born[ref.cdata] = ref, storage.nbytes()
            return out

    def pack(t):
        if (storage := t.untyped_storage()).data_ptr() not in known:
            packed[storage.data_ptr()] = storage.nbytes()
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), Births():
        loss = f()
    alive = sum(size for ref, size in born.values() if not ref.expired())
    loss.backward()                                             # what was kept is enough for it
    return dict(packed=sum(packed.values()), alive=alive)


def compare_saved(args, figure, ours, naive, known, wanted):
    """Bytes naive() keeps over those ours() keeps: of each one's two counts that which speaks against us."""
    a, b = saved_bytes(ours, known), saved_bytes(naive, known)
    record(args, figure, min(b.values()) / max(a.values()), "naive / ours", wanted, ours=a, naive=b)


def saved_head(args):
    head, T = torch.nn.Linear(576, 49152, bias=False, device=args.device), 512
    hidden = torch.randn(T, 576, device=args.device)
    targets = torch.randint(49152, (T,), device=args.device)

    def ours():
        return ngrpo.token_logps(hidden.clone().requires_grad_(), targets, head, 49152, 1.)[0].sum()

    def naive():
        logits = F.linear(hidden.clone().requires_grad_(), head.weight) / 1.
        return logits.log_softmax(-1).gather(1, targets[:, None]).sum()
    compare_saved(args, "saved_head", ours, naive, (head.weight, targets), ">= 20")


def saved_update(args):
    config = transformers.LlamaConfig(          # SmolLM2's sizes; random weights do to count bytes
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)
    config = transformers.AutoConfig.from_pretrained(args.model) if args.model else config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(args.device).train()
    V, P, T = config.get_text_config().vocab_size, 64, 448
    ids, mask = torch.randint(V, (1, P + T), device=args.device), torch.ones(1, T, device=args.device)
    lengths, mixed = torch.full((1,), T, device=args.device), dict(row=ids[0, :0])

    def loss(logp):
        return (ngrpo.policy_loss(logp, logp.detach(), mask[:, 0], mask, .2, .2)[0] * mask).sum() / T

    def ours():
        model.activation_checkpointing_enable()                 # --grad_checkpoint
        return loss(ngrpo.score(model, ids, lengths, [0], mixed, V, 1.)[0])

    def naive():
        model.activation_checkpointing_disable()
        logits = model(input_ids=ids, use_cache=False).logits[:, P - 1:-1] / 1.
        return loss(logits.log_softmax(-1).gather(2, ids[:, P:, None])[..., 0])
    compare_saved(args, "saved_update", ours, naive, (*model.parameters(), *model.buffers(), ids), ">= 8")


def stopwatch(args):
    """Seconds by name, and wrap(name, f): what f takes, less what wrapped functions in it take, goes to name,
    or to name(the name f is called under, f's arguments). What no name gets goes to "other"."""
    now = timer(args)
    spent, names, last = Counter(), ["other"], [now()]

    def mark():
        if args.device != "cpu":
            torch.cuda.synchronize()
        last.append(now())
        spent[names[-1]] += last[1] - last.pop(0)

    def wrap(name, f):
        @functools.wraps(f)
        def timed(*args, **kwargs):
            mark()
            names.append(name(names[-1], *args, **kwargs) if callable(name) else name)
            try:
                return f(*args, **kwargs)
            finally:
                mark()
                names.pop()
        return timed
    return spent, mark, wrap


def seconds_by_part(args, real, flags):
    """Seconds of ngrpo.train by part, and its steps. A part is known by what is called, and from where."""
    loaded, (spent, mark, wrap) = load(args, real), stopwatch(args)
    torch.set_num_threads(1)
    parts = dict(rollout="loop", sample="sampling", nearest="mixing", mixture="mixing", mix="mixing",
                 decode="text", reward="text", score="score",
                 vocab_logps=lambda under, *_: "head" if under == "loop" else under)
    functions = {name: wrap(part, getattr(ngrpo, name)) for name, part in parts.items()}
    if real:
        del functions["reward"]                                 # SmolLM2 is never right: nothing to train on

    def body(under, *_, inputs_embeds, **__):
        return under if under != "loop" else "layers" if inputs_embeds.shape[1] == 1 else "prefill"
    with contextlib.ExitStack() as patches:
        for owner, name, part in (
                (loaded[0].base_model, "forward", body), (torch.Tensor, "backward", "backward"),
                (common.GrowingLayer, "update", "cache"),
                (common.GrowingLayer, "batch_select_indices", "cache"),
                (torch.nn.utils, "clip_grad_norm_", "optimizer"),
                (torch.optim.AdamW, "step", "optimizer"), (torch.optim.AdamW, "zero_grad", "optimizer")):
            patches.enter_context(mock.patch.object(owner, name, wrap(part, getattr(owner, name))))
        train(args, loaded, "--prompts 2 --max_new_tokens 4 --steps 1", **functions)        # warm up
        mark()
        spent.clear()
        steps = train(args, loaded, flags, **functions)
        mark()
    return spent, steps


def where_time_goes(args):
    parts = ("prefill", "layers", "head", "sampling", "mixing", "cache", "loop", "text", "score", "backward",
             "optimizer", "other")
    for real in (False, True)[:1 + bool(args.model and os.path.exists(GSM8K))]:
        sizes = (8, 64, 1, 2048) if real else (16, 48, 6, 2048)
        sizes = (2, 8, 1, 4096) if args.quick else sizes
        spent, steps = seconds_by_part(
            args, real, "--prompts {} --max_new_tokens {} --steps {} --micro_tokens {}".format(*sizes))
        total, name = sum(spent.values()), f"where_time_goes {'real' if real else 'tiny'}"
        percent = {part: round(100 * spent[part] / total, 2) for part in parts}
        record(args, name, total / len(steps), "s a step", **percent,
               tokens=[s["tokens"] for s in steps], dead=[s["dead"] for s in steps])
        for part in parts:
            tell(args, f"    {part:26} {percent[part]:10.1f} %")


def fastest(args, f, calls=3):
    """Seconds of the fastest call, after one to warm up: what the machine can do."""
    return min([clock(f, timer(args)) for _ in range(1 + calls)][1:])


@torch.no_grad()
def decode_roofline(args):
    """A decode step of 32 rows, layers and head, beside what memory and arithmetic alone would take."""
    model, _, eos_ids, V, _ = load(args, True)
    torch.set_num_threads(1)
    N, P, device, body = 32, 32 if args.quick else 256, eos_ids.device, model.base_model
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    cache = common.new_cache(P + 32)
    ids, mask = torch.randint(V, (1, P), device=device), torch.ones(N, P + 32, device=device).bool()
    body(input_ids=ids, cache=cache, use_cache=True)
    cache.batch_select_indices(ids.new_zeros(N))

    def step():
        L = cache.get_seq_length()
        hidden = body(inputs_embeds=embed(ids[:, :N].T), position_ids=ids.new_full((N, 1), L), cache=cache,
                      attention_mask=common.decode_mask(model.config, mask[:, :L + 1]), use_cache=True)
        ngrpo.vocab_logps(hidden.last_hidden_state[:, -1], head, V, 1.)
    seconds, config = fastest(args, step, 12), model.config.get_text_config()
    weights = [p for p in body.parameters() if p is not embed.weight] + [head.weight[:V]]
    kept = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    share = config.num_attention_heads // config.num_key_value_heads    # queries that read a key
    read = sum(t.nbytes for t in weights + kept)
    flop = 2 * N * sum(w.numel() for w in weights) + 2 * share * sum(t.numel() for t in kept)
    buffer, square = torch.ones(2 ** 28, device=device), torch.ones(2048, 2048, device=device)     # 1 GiB
    reading, copying, product = (
        fastest(args, f) for f in (buffer.sum, buffer.clone, lambda: square @ square))
    bandwidth, rate = buffer.nbytes * max(1 / reading, 2 / copying), 2 * 2048 ** 3 / product
    bounds = dict(memory_s=read / bandwidth, arithmetic_s=flop / rate)
    record(args, "decode_roofline", seconds / max(bounds.values()), "x larger bound", **bounds,
           seconds=seconds, bytes=read, cache_bytes=sum(t.nbytes for t in kept), flop=flop,
           gb_per_s=bandwidth / 1e9, gflop_per_s=rate / 1e9, rows=N, position=P)
    tell(args, f"    {read / 1e6:.0f} MB at {bandwidth / 1e9:.1f} GB/s {bounds['memory_s']:.3f} s, "
         f"{flop / 1e9:.1f} GFLOP at {rate / 1e9:.0f} GFLOP/s {bounds['arithmetic_s']:.3f} s, "
         f"measured {seconds:.3f} s")


def main(doc, *functions):
    """The command line `doc` tells of, and the figures it names."""
    figures, as_it_is = {f.__name__: f for f in functions}, argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=as_it_is)
    parser.add_argument("--model", help="folder of SmolLM2-135M-Instruct; what needs it is else skipped")
    parser.add_argument("--only", nargs="+", choices=figures, default=list(figures), metavar="FIGURE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads; the tiny model has 1")
    parser.add_argument("--quick", action="store_true", help="few tokens: shows that it runs, not how fast")
    parser.add_argument("--out", default=f"{ROOT}/bench/results.jsonl")
    args = parser.parse_args()
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.table = []
    transformers.logging.set_verbosity_error()                  # generate warns of the EOS -1
    for name in args.only:
        torch.manual_seed(0)
        if name not in NEED_MODEL or args.model and os.path.exists(GSM8K):
            figures[name](args)
        else:
            print(f"{name} skipped: it needs --model, and {os.path.relpath(GSM8K)}")
    print("", *args.table, sep="\n")


if __name__ == "__main__":
    main(__doc__, rollout_real, rollout_tiny, mixing_overhead, neighbour_table, largest_tensor, saved_head,
         saved_update, where_time_goes, decode_roofline)
