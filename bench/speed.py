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

    python bench/speed.py --model FOLDER                        SmolLM2-135M-Instruct: an hour on two cores
    python bench/speed.py                                       what needs no real model: a minute
    python bench/speed.py --model FOLDER --quick --repeats 1    does it all run? five minutes

Leave the machine to it meanwhile. Every figure appends a JSON line to --out.
"""
import argparse
import itertools
import json
import os
import re
import sys
import time
from statistics import median
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
import common  # noqa: E402
import ngrpo  # noqa: E402

FORMAT = "{question}\nLet's think step by step and output the final answer within \\boxed{{}}."
GSM8K = os.path.join(ROOT, "..", "shared", "data", "gsm8k_test.jsonl")


def clock(f):
    """Seconds of f(), to the end of what it leaves to the GPU."""
    start = time.perf_counter()
    f()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


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
    args.table.append(f"{figure:30} {value:10.4g} {unit:18} {wanted and 'wanted ' + wanted}")
    print(args.table[-1], flush=True)


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


def train(args, loaded, flags, **replaced):
    """ngrpo.train, nothing saved, every other reward 1; of each step the seconds: whole, rollout, update."""
    flags = f"--device {args.device} --group 8 --lr 0 --micro_tokens 4096 {flags}"
    cfg, _ = common.parse_config(ngrpo.Config, ngrpo.PRESETS, flags.split())
    now = time.process_time if args.device == "cpu" else time.time      # a busy machine leaves CPU seconds alone
    rewards, marks, steps = itertools.cycle((0., 1.)), [now()], []

    def report(out, kind, step, **fields):                      # the search ahead lies between two reports
        marks.append(now())
        steps.append((marks[-1] - marks[-2], fields["seconds_rollout"], fields["seconds_update"]))
    replaced |= {name: mock.Mock() for name in ("save_checkpoint", "export_model", "write_line")}
    replaced |= dict(report=report, reward=lambda *_: next(rewards), stop_on_signal=list)
    with mock.patch.multiple(ngrpo, **replaced):
        ngrpo.train(cfg, *loaded, eval_sets=[], out="", state=None)
    return steps


def mixing_overhead(args):
    loaded, seconds, (B, T) = load(args, True), {.1: [], 0: []}, (2, 8) if args.quick else (8, 128)
    train(args, loaded, "--prompts 2 --max_new_tokens 4 --steps 1")         # warm up
    for seed, rate in itertools.product(range(1, args.repeats + 1), seconds):
        flags = f"--prompts {B} --max_new_tokens {T} --steps 2 --seed {seed} --mix_rate {rate}"
        seconds[rate].append(train(args, loaded, flags))
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


def main():
    figures = {f.__name__: f for f in (
        rollout_real, rollout_tiny, mixing_overhead, neighbour_table, largest_tensor)}
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
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
        if name in ("rollout_tiny", "neighbour_table") or args.model and os.path.exists(GSM8K):
            figures[name](args)
        else:
            print(f"{name} skipped: it needs --model, and {os.path.relpath(GSM8K)}")
    print("", *args.table, sep="\n")


if __name__ == "__main__":
    main()
