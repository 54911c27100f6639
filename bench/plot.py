"""Draw held-out pass@1 of runs as an SVG, no library needed:  python bench/plot.py OUT.svg RUN [RUN ...]

Each RUN is an output folder with "eval" lines in its metrics.jsonl; the bars are one standard error over problems."""
import json
import os
import sys

WIDTH, HEIGHT, LEFT, TOP = 640, 300, 50, 20
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f", "#c77d0a", "#4f5d75")


def main(out, *runs):
    curves = []
    for run in runs:
        with open(os.path.join(run, "metrics.jsonl")) as f:
            lines = [json.loads(line) for line in f]
        points = [(r["step"], r["pass@1"], r["pass@1_se"] or 0) for r in lines if r["kind"] == "eval"]
        cfg = lines[0]["config"]
        curves.append((f"seed {cfg['seed']}" + (", no mixing" if cfg["mix_rate"] == 0 else ""), points))
    last = max(step for _, points in curves for step, _, _ in points)

    def x(step):
        return LEFT + (WIDTH - LEFT - 110) * step / max(1, last)

    def y(rate):
        return TOP + (HEIGHT - TOP - 40) * (1 - rate)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for tick in range(0, 11, 2):
        svg += [f'<line x1="{LEFT}" x2="{x(last)}" y1="{y(tick / 10)}" y2="{y(tick / 10)}" stroke="#ddd"/>',
                f'<text x="{LEFT - 8}" y="{y(tick / 10) + 4}" text-anchor="end">{tick / 10:.1f}</text>']
    for step in range(0, last + 1, max(1, last // 5)):
        svg.append(f'<text x="{x(step)}" y="{HEIGHT - 22}" text-anchor="middle">{step}</text>')
    svg += [f'<text x="{x(last / 2)}" y="{HEIGHT - 5}" text-anchor="middle">step</text>',
            f'<text x="12" y="{y(.5)}" transform="rotate(-90 12 {y(.5)})" text-anchor="middle">held-out pass@1</text>']
    for i, (label, points) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x(s):.1f},{y(p):.1f}" for s, p, _ in points)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        svg += [f'<line x1="{x(s):.1f}" x2="{x(s):.1f}" y1="{y(p - e):.1f}" y2="{y(p + e):.1f}" stroke="{colour}"/>'
                for s, p, e in points]
        svg.append(f'<text x="{x(last) + 8}" y="{y(.3) + 16 * i}" fill="{colour}">{label}</text>')
    with open(out, "w") as f:
        f.write("\n".join(svg + ["</svg>"]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
