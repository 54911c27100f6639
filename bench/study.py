"""What the methods do on the tiny worlds: arms x seeds, each a script's run, in one JSONL; then the tables.

    python bench/study.py                       every method beside plain GRPO, its baselines and controls
    python bench/study.py --only sg             one of them: about half an hour each
    python bench/study.py --only sg --table     the tables again, from the runs on record
    python bench/study.py --quick --out q.jsonl three arms of each setting, short runs, two seeds
    python bench/study.py --only worlds --seeds 3
                                                plain GRPO and the methods on worlds made anew, 1 and 2:
                                                python tiny/make.py --seed 1 --out out/worlds/1

Runs on record with the same flags are not made again, so a study can be stopped and gone on with. One that
fails is shown and counted, and made again next time. Each has one thread, --jobs go side by side.
Evaluations, before and after, are of the first 300 held-out problems x 16 with the same draws: arms are
paired by problem, and by seed in prompts and uniforms too. The first arm of a setting is what the others are
compared with.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from tqdm import tqdm

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
FINAL = "--eval_problems 300 --eval_samples 16 --ks 1 4 8 16 --save_every 0"
SERIES = ("reward", "dead", "length", "entropy", "clip_frac", "grad_norm",      # kept step by step
          "learner_reward", "reward_own")
# quantiles of Student's t by degrees of freedom: .975 for intervals, .8 for the power of the smallest effect
T975 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
T800 = (math.nan, 1.376, 1.061, .978, .941, .920, .906, .896, .889, .883)

NGRPO = dict(off="--mix_rate 0", ngrpo="", rho_2="--mix_rate .2", rho_10="--mix_rate 1", l2="--mix_metric l2",
             l1="--mix_metric l1", gaussian="--mixer gaussian", soft="--mixer soft",
             sampled_label="--mix_label sampled", mix_at_eval="--mix_at_eval True")
GSPO = dict(off="--mix_rate 0", ngrpo="", gspo_off="--objective gspo --mix_rate 0", gspo="--objective gspo")
SG = dict(none="--weighting none", sg="", reverse="--weighting reverse",
          constant="--weight_low 1.15 --weight_high 1.15",      # about sg's mean here, without its shape
          top_entropy="--weighting top_entropy", ar="--weighting ar", lopti="--weighting lopti",
          surrogate="--weight_place surrogate")
S2L = dict(off="--schedule off", linear="", constant="--schedule constant", step="--schedule step",
           explorer_only="--schedule constant --constant_count 8",
           stale_learner="--explorer tiny/explore/learner",         # off-policy, but not small
           hot="--schedule off --temperature 1.5",                  # noise token by token
           positive="--explorer_rows positive", behaviour="--ratio behaviour",
           constant_positive="--schedule constant --explorer_rows positive")
MORE = dict(off="--schedule off", linear="", tis="--ratio tis", short="--anneal_steps 12",
            long="--anneal_steps 36")
TA = dict(grpo="--num_rephrasings 0", matched="--num_rephrasings 0 --group 32", ta="",
          sampled="--anchor sampled", per_phrasing="--pool per_phrasing", copies="--matched True",
          dynamic="--num_rephrasings 0 --dynamic_sampling 4",       # as many rollouts at most
          ta_40="--data {tmp}/rephrase_96.jsonl")                   # of the 240 questions that the others see
WORLD = "--model {0}/{1}learner --data {0}/{1}{2}train.jsonl --eval_data {0}/{1}{2}test.jsonl"


def take(arms, *names):
    return {name: arms[name] for name in names}


def anew(world):
    """Settings of plain GRPO and each method in a world of tiny/make.py's, its models pretrained anew."""
    easy, explore, rephrase = (WORLD.format(world, *part) for part in (
        ("", "easy_"), ("explore/", ""), ("rephrase/", "")))
    return [("easy, N-GRPO", "ngrpo.py", f"--steps 40 --lr 1e-4 {easy}", take(NGRPO, "off", "ngrpo")),
            ("easy, lr 1e-4, 1 update", "grpo_sg.py", f"--steps 40 --lr 1e-4 {easy}", take(SG, "none", "sg")),
            ("easy, lr 3e-4, 4 updates", "grpo_sg.py", f"--steps 40 --lr 3e-4 --minibatches 4 {easy}",
             take(SG, "none", "sg")),
            ("explore", "s2l_po.py", f"{explore} --explorer {world}/explore/explorer",
             take(S2L, "off", "linear")),
            ("rephrase", "ta_grpo.py", rephrase, take(TA, "matched", "ta"))]


STUDIES = dict(                             # study: [(setting, script, flags of all arms, {arm: its flags})]
    ngrpo=[("easy, N-GRPO", "ngrpo.py", "--steps 40 --lr 1e-4", NGRPO),
           # with one update a rollout every ratio is 1, and GSPO is GRPO
           ("easy, N-GRPO, 4 updates", "ngrpo.py", "--steps 40 --lr 1e-4 --minibatches 4", GSPO),
           ("explore, N-GRPO", "ngrpo.py", "--steps 48 --lr 3e-4 " + WORLD.format("tiny", "explore/", ""),
            take(NGRPO, "off", "ngrpo", "rho_2"))],
    sg=[("easy, lr 1e-4, 1 update", "grpo_sg.py", "--steps 40 --lr 1e-4", SG),
        ("easy, lr 3e-4, 4 updates", "grpo_sg.py", "--steps 40 --lr 3e-4 --minibatches 4", SG)],
    s2l=[("explore, lr 3e-4", "s2l_po.py", "", S2L)],
    ta=[("rephrase", "ta_grpo.py", "", TA)],
    s2l_more=[("explore, lr 1e-4", "s2l_po.py", "--lr 1e-4", dict(off=S2L["off"], linear="")),
              ("explore, another end of the explorer, TIS", "s2l_po.py", "", MORE)],
    worlds=[(f"world {w}: {setting}", *rest) for w in (1, 2) for setting, *rest in anew(f"{{worlds}}/{w}")])


def planned(only, seeds, quick):
    """[(study, setting, arm, seed, command)], seed by seed, so that a study cut short is still paired."""
    less = "--steps 20 --eval_problems 100 --eval_samples 8 --ks 1 4 8" if quick else ""
    return [(study, setting, arm, seed, f"{script} {shared} {FINAL} {flags} {less} --seed {seed}".split())
            for study in only for seed in range(1, seeds + 1)
            for setting, script, shared, arms in STUDIES[study]
            for arm, flags in list(arms.items())[:3 if quick else None]]


def run(plan, worlds):
    """One training run, as the line that stays of it; the run's folder does not."""
    study, setting, arm, seed, command = plan
    with tempfile.TemporaryDirectory() as out:
        with open(f"{ROOT}/tiny/rephrase/train.jsonl") as f, open(f"{out}/rephrase_96.jsonl", "w") as g:
            g.writelines(f.readlines()[:96])
        there = [word.replace("{tmp}", out).replace("{worlds}", worlds) for word in command]
        done = subprocess.run([sys.executable, *there, "--out", out], cwd=ROOT, capture_output=True,
                              text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise ChildProcessError(f"{' '.join(command)}\n{done.stdout[-500:]}{done.stderr[-500:]}")
        with open(os.path.join(out, "metrics.jsonl")) as f:
            rows = [json.loads(line) for line in f]
    steps = [r for r in rows if r["kind"] == "step"]
    evals, probes = ([{k: v for k, v in r.items() if k not in ("kind", "data")} for r in rows
                      if r["kind"] == "eval" and (r["data"] == "probe") == probe] for probe in (False, True))
    if evals[-1]["step"] != rows[0]["config"]["steps"]:
        raise ChildProcessError(f"{' '.join(command)}: stopped before its end")
    columns = {k: [r.get(k) for r in steps] for k in steps[0] if k not in ("kind", "step")}
    columns = {k: torch.tensor([math.nan if x is None else x for x in v], dtype=torch.double)
               for k, v in columns.items()}
    mean = {k: None if v.isnan().all() else v.nanmean().item() for k, v in columns.items()}
    origin = {k: rows[0][k] for k in ("git", "device", "torch", "transformers")}
    return dict(study=study, setting=setting, arm=arm, seed=seed, command=command, evals=evals, mean=mean,
                probes=probes,
                series={k: [None if x.isnan() else float(f"{x:.3g}") for x in columns[k]]
                        for k in SERIES if k in columns}, **origin)


def spikes(norms, width=21, factor=3):
    """Share of steps whose gradient norm exceeds `factor` times the median of the `width` steps around it."""
    norms, half = torch.tensor(norms), width // 2
    medians = torch.stack([norms[max(0, i - half):i + half + 1].median() for i in range(len(norms))])
    return (norms > factor * medians).double().mean().item()


def compare(values, plain):
    """Mean difference paired by seed, half its 95 % interval, and the smallest true difference that this many
    seeds would have found four times in five at 5 %."""
    d = torch.tensor(values, dtype=torch.double) - torch.tensor(plain, dtype=torch.double)
    n, se = len(d), d.std().item() / len(d) ** .5
    return d.mean().item(), T975[n - 1] * se, (T975[n - 1] + T800[n - 1]) * se


def seconds(line):
    return line["mean"]["seconds_rollout"] + line["mean"]["seconds_update"]


def table(lines):
    """The arms of one setting, a row each; differences are to the first."""
    arms, first = {}, lines[0]["arm"]
    for line in lines:
        arms.setdefault(line["arm"], {})[line["seed"]] = line
    print(f"\n## {lines[0]['setting']}: {' '.join(lines[0]['command'][:-2])}\n")
    head = ["arm", "seeds", "pass@1 before, after", "less the first arm", "smallest seen", "pass@8",
            "less the first arm", "last quarter: dead", "entropy", "gradient norm: mean", "CV",
            "over 3 x median", "seconds / first arm's", "best 5 steps' reward, last 5"]
    if "learner_flops" in lines[0]["mean"]:
        head += ["rollout FLOPs / first arm's: learner", "explorer"]
    print("| " + " | ".join(head) + " |" + "\n|" + "---|" * len(head))
    for arm, runs in arms.items():
        seeds = sorted(runs)
        cells = [arm, str(len(seeds))]
        for k in ("pass@1", "pass@8"):
            after = [runs[s]["evals"][-1][k] for s in seeds]
            before = f"{runs[seeds[0]]['evals'][0][k]:.3f}, "
            se = torch.tensor(after).std().item() / len(after) ** .5 if len(after) > 1 else math.nan
            cells.append(before + f"{sum(after) / len(after):.3f} ± {se:.3f}")
            both = [s for s in seeds if s in arms[first]]
            if arm == first or len(both) < 2:
                cells += ["", ""][:1 + (k == "pass@1")]
            else:
                mean, half, least = compare([runs[s]["evals"][-1][k] for s in both],
                                            [arms[first][s]["evals"][-1][k] for s in both])
                cells += [f"{mean:+.3f} ± {half:.3f}", f"{least:.3f}"][:1 + (k == "pass@1")]
        series = [runs[s]["series"] for s in seeds]
        quarter = len(series[0]["dead"]) // 4
        late = [[sum(y or 0 for y in x[k][-quarter:]) / quarter for x in series] for k in ("dead", "entropy")]
        norms = [[g for g in x["grad_norm"] if g] or [math.nan] * 2 for x in series]    # 0: all dead
        cv = [torch.tensor(g).std().item() / torch.tensor(g).mean().item() for g in norms]
        smooth = [[sum(x["reward"][i:i + 5]) / 5 for i in range(len(x["reward"]) - 4)] for x in series]
        cost = [seconds(runs[s]) / seconds(arms[first].get(s, lines[0])) for s in seeds]
        columns = (*late, [sum(g) / len(g) for g in norms], cv, list(map(spikes, norms)), cost,
                   list(map(max, smooth)))
        cells += [f"{sum(v) / len(v):.3f}" for v in columns]
        cells[-1] += f", {sum(v[-1] for v in smooth) / len(smooth):.3f}"
        if "learner_flops" in lines[0]["mean"]:
            base = lines[0]["mean"]["learner_flops"]
            shares = [[runs[s]["mean"][k] / base for s in seeds] for k in ("learner_flops", "explorer_flops")]
            cells += [f"{sum(v) / len(v):.3f}" for v in shares]
        print("| " + " | ".join(cells) + " |")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STUDIES), default=list(STUDIES)[:-1])
    parser.add_argument("--seeds", type=int, default=5, help="1 to this (at most 10)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--out", default=f"{HERE}/study.jsonl")
    parser.add_argument("--worlds", default=f"{ROOT}/out/worlds", help="folder of the worlds 1 and 2")
    parser.add_argument("--quick", action="store_true", help="three arms, two seeds, 20 steps, 100 x 8")
    parser.add_argument("--table", action="store_true", help="run nothing, print the tables")
    cfg = parser.parse_args(argv)
    plans = planned(cfg.only, 2 if cfg.quick else min(cfg.seeds, 10), cfg.quick)
    lines = []
    if os.path.exists(cfg.out):
        with open(cfg.out) as f:
            lines = [json.loads(line) for line in f]
    known = {" ".join(line["command"]) for line in lines}
    left = {" ".join(plan[-1]): plan for plan in plans if " ".join(plan[-1]) not in known and not cfg.table}
    failed = 0
    with ThreadPoolExecutor(cfg.jobs) as pool:
        futures = [pool.submit(run, plan, os.path.abspath(cfg.worlds)) for plan in left.values()]
        for future in tqdm(as_completed(futures), total=len(left), desc="runs", disable=not left):
            try:
                line = future.result()
            except ChildProcessError as error:
                tqdm.write(f"failed: {error}", file=sys.stderr)
                failed += 1
                continue
            lines.append(line)
            with open(cfg.out, "a") as f:
                f.write(json.dumps(line) + "\n")
    found = {" ".join(line["command"]): line for line in lines}
    settings = {}
    for study, setting, arm, seed, command in plans:            # two settings may share a run
        if line := found.get(" ".join(command)):
            settings.setdefault((study, setting), []).append(line | dict(setting=setting, arm=arm))
    for rows in settings.values():
        table(rows)
    if failed:
        sys.exit(f"{failed} of {len(left)} runs failed")


if __name__ == "__main__":
    main()
