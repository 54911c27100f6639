"""Curves as an SVG, no library needed.

    python bench/plot.py OUT.svg RUN [RUN ...]
        held-out pass@1 of output folders (their metrics.jsonl), with one standard error over problems
    python bench/plot.py OUT.svg --study FILE.jsonl [SERIES]
        a series of the study's arms, reward unless named (dead, grad_norm, entropy, length): means of five
        steps, with one standard error over seeds; pass@k is held out, after training but for "before"
"""
import itertools
import json
import math
import os
import sys

import torch

WIDTH, HEIGHT, LEFT, TOP = 470, 300, 50, 30
COLOURS = ("#4f5d75", "#d1495b", "#1b6ca8", "#3a7d44", "#c77d0a", "#8d6a9f")
PANELS = {                                      # setting of the study: title and arms that are drawn
    "easy, N-GRPO": ("N-GRPO, easy world", dict(
        off="plain GRPO", ngrpo="N-GRPO", rho_2="rho .2", gaussian="gaussian", soft="soft",
        sampled_label="sampled label")),
    "easy, lr 1e-4, 1 update": ("GRPO-SG, easy world", dict(none="plain GRPO", sg="GRPO-SG", lopti="Lopti")),
    "easy, lr 3e-4, 4 updates": ("… where GRPO decays", dict(
        none="plain GRPO", sg="GRPO-SG", constant="w = 1.15")),
    "explore, lr 3e-4": ("S2L-PO, learner blind on a type", dict(
        off="plain GRPO", linear="S2L-PO", constant="half for ever", positive="only its right rows",
        behaviour="behaviour ratio", hot="T = 1.5")),
    "rephrase": ("TA-GRPO, questions misread", dict(
        matched="plain GRPO, G 32", ta="TA-GRPO", per_phrasing="apart, anchored", sampled="not anchored"))}


def of_runs(runs):
    """One panel: [(title, what y is, [(label, [(step, y, error)])])]"""
    curves = []
    for run in runs:
        with open(os.path.join(run, "metrics.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        points = [(r["step"], r["pass@1"], r["pass@1_se"] or 0) for r in lines if "pass@1" in r]
        curves.append((os.path.basename(os.path.normpath(run)), points))
    return [("", "held-out pass@1", curves)]


def mean_and_error(values):
    """Over seeds: (seeds, n) -> two lists of n."""
    error = values.std(0) / len(values) ** .5 if len(values) > 1 else torch.zeros(values.shape[1])
    return values.mean(0).tolist(), error.tolist()


def of_study(path, series="reward", width=5):
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    panels = []
    for setting, (title, arms) in PANELS.items():
        curves = []
        for arm, label in arms.items():
            runs = [x for x in lines if (x["setting"], x["arm"]) == (setting, arm)]
            if series == "pass@k" and runs:
                ks = [k for k in (1, 4, 8, 16) if f"pass@{k}" in runs[0]["evals"][0]]
                for when, name in ((0, "before"), (-1, label))[len(curves) > 0:]:
                    rates = torch.tensor([[x["evals"][when][f"pass@{k}"] for k in ks] for x in runs])
                    curves.append((name, list(zip(ks, *mean_and_error(rates)))))
            elif runs:
                own = series == "reward" and setting == "rephrase"          # TA-GRPO's pool is easier
                values = torch.tensor([[math.nan if y is None else y
                                        for y in x["series"]["reward_own" if own else series]] for x in runs])
                smooth = values.unfold(1, width, 1).nanmean(2)              # (seeds, steps - 4)
                steps = range(width // 2 + 1, width // 2 + 1 + smooth.shape[1])
                curves.append((label, list(zip(steps, *mean_and_error(smooth)))))
        seeds = len({x["seed"] for x in lines if x["setting"] == setting})
        panels += [(title, f"{series}, {seeds} seeds", curves)] * bool(curves)
    return panels


def panel(title, what, curves, x0, y0, along):
    """SVG lines of one panel whose corner is at (x0, y0)."""
    last = max(step for _, points in curves for step, _, _ in points)
    peak = max(1e-9, *(value + error for _, points in curves for _, value, error in points))    # all may be 0
    unit = 10 ** math.floor(math.log10(peak)) / 5
    top = 1 if .2 < peak <= 1 else math.ceil(peak / unit) * unit

    def x(step):
        return x0 + LEFT + (WIDTH - LEFT - 20) * step / max(1, last)

    def y(rate):
        return y0 + TOP + (HEIGHT - TOP - 45) * (1 - rate / top)
    svg = [f'<text x="{x0 + LEFT}" y="{y0 + 18}" font-weight="bold">{title}</text>']
    for tick in range(0, 11, 2):
        level = top * tick / 10
        svg += [f'<line x1="{x(0)}" x2="{x(last)}" y1="{y(level)}" y2="{y(level)}" stroke="#ddd"/>',
                f'<text x="{x(0) - 8}" y="{y(level) + 4}" text-anchor="end">{level:.2g}</text>']
    for step in range(0, last + 1, max(1, last // 5)):
        svg.append(f'<text x="{x(step)}" y="{y0 + HEIGHT - 27}" text-anchor="middle">{step}</text>')
    svg += [f'<text x="{x(last / 2)}" y="{y0 + HEIGHT - 10}" text-anchor="middle">{along}</text>',
            f'<text x="{x0 + 12}" y="{y(top / 2)}" transform="rotate(-90 {x0 + 12} {y(top / 2)})" '
            f'text-anchor="middle">{what}</text>']
    colours = itertools.cycle(COLOURS)
    for i, (label, points) in enumerate(curves):
        colour = "#999" if label == "before" else next(colours)
        band = [f"{x(s):.1f},{y(p + e):.1f}" for s, p, e in points]
        band += [f"{x(s):.1f},{y(p - e):.1f}" for s, p, e in reversed(points)]
        path = " ".join(f"{x(s):.1f},{y(p):.1f}" for s, p, _ in points)
        svg += [f'<polygon points="{" ".join(band)}" fill="{colour}" opacity=".15"/>',
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
                f'<text x="{x0 + LEFT + 8}" y="{y(top) + 12 + 15 * i}" fill="{colour}">{label}</text>']
    return svg


def main(out, *runs):
    panels = of_study(*runs[1:]) if runs[0] == "--study" else of_runs(runs)
    wide, high = WIDTH * min(2, len(panels)), HEIGHT * -(-len(panels) // 2)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for i, (title, what, curves) in enumerate(panels):
        svg += panel(title, what, curves, WIDTH * (i % 2), HEIGHT * (i // 2),
                     "tries" if "pass@k" in runs else "step")
    with open(out, "w") as f:
        f.write("\n".join(svg + ["</svg>"]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except FileNotFoundError as error:
        sys.exit(f"error: {error.filename}: no such file")
    except KeyError as error:
        sys.exit(f"error: no series {error} there")
