"""bench/plot.py and bench/speed.py: they run, and say what they are given. Figures are bench/RESULTS.md's matter."""
import json
import os
import subprocess
import sys
import xml.etree.ElementTree

import pytest
from conftest import ROOT, TINY

sys.path.insert(0, os.path.join(ROOT, "bench"))
import plot  # noqa: E402


def curves(path):
    """Of an SVG: the texts, and of each polyline its points."""
    tree = xml.etree.ElementTree.parse(path)
    lines = [e.attrib["points"] for e in tree.iter() if e.tag.endswith("polyline")]
    return [e.text for e in tree.iter() if e.tag.endswith("text")], [
        [tuple(map(float, p.split(","))) for p in line.split()] for line in lines]


def line(arm, seed, pass1, **series):
    return json.dumps(dict(setting="rephrase", arm=arm, seed=seed, series=series, evals=[
        {"pass@1": .1, "pass@4": .2}, {"pass@1": pass1, "pass@4": 2 * pass1}])) + "\n"


def test_plot_of_runs(tmp_path):
    """Two points of one run: .25 stands three times as far from the top as .75, step 4 at the right end."""
    (tmp_path / "run").mkdir()
    rows = [dict(kind="eval", step=s, **{"pass@1": p, "pass@1_se": .01}) for s, p in ((0, .25), (4, .75))]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    plot.main(str(tmp_path / "a.svg"), str(tmp_path / "run"))
    texts, [[(x0, low), (x1, high)]] = curves(tmp_path / "a.svg")
    assert "run" in texts and x0 == plot.LEFT and x1 == plot.WIDTH - 20
    assert (low - plot.TOP) / (high - plot.TOP) == pytest.approx(3, abs=.01)


def test_plot_of_a_study(tmp_path):
    """Means over seeds of five steps, own rows for TA-GRPO's reward, a scale that fits, pass@k before and after."""
    file, out = tmp_path / "study.jsonl", str(tmp_path / "a.svg")
    file.write_text("".join(
        line(arm, seed, .3, reward=[1.] * 6, reward_own=[.05 * seed] * 6, grad_norm=[0, 0, 0, 0, 20. * seed, None])
        for arm in ("matched", "ta") for seed in (1, 2)) + line("unknown", 1, .5))
    plot.main(out, "--study", str(file))
    texts, found = curves(out)
    assert {"plain GRPO, G 32", "TA-GRPO", "reward, 2 seeds"} <= set(texts) and len(found) == 2
    height, bottom = plot.HEIGHT - plot.TOP - 45, plot.HEIGHT - 45
    top = float(texts[texts.index("TA-GRPO, questions misread") + 6])       # five ticks on from the lowest, 0
    assert top == pytest.approx(.11, abs=.02) and (bottom - found[0][0][1]) / height == pytest.approx(.075 / top, abs=.01)
    plot.main(out, "--study", str(file), "grad_norm")
    texts, found = curves(out)
    heights = [bottom - y for _, y in found[0]]
    assert heights[1] / heights[0] == pytest.approx(5 / 4, abs=.01)         # None is left out of its mean, not a 0
    plot.main(out, "--study", str(file), "pass@k")
    texts, found = curves(out)
    assert {"before", "tries"} <= set(texts) and len(found) == 3
    assert [round((bottom - y) / height, 2) for line in found for _, y in line] == [.1, .2, .3, .6, .3, .6]


@pytest.mark.parametrize("series", ["reward", "dead", "grad_norm", "entropy", "length", "pass@k"])
def test_plot_of_what_ships(tmp_path, series):
    plot.main(str(tmp_path / "a.svg"), "--study", os.path.join(ROOT, "bench", "study.jsonl"), series)
    texts, found = curves(tmp_path / "a.svg")
    assert len(found) >= (16 if series != "pass@k" else 21) + 6 and "nan" not in (tmp_path / "a.svg").read_text()


@pytest.mark.slow
def test_every_figure_of_speed(tmp_path, shared):
    """Each runs and leaves a line, tiny/learner standing in for the real model (largest_tensor and the
    neighbours of large tables are left to the command)."""
    out, figures = tmp_path / "results.jsonl", [
        "rollout_real", "rollout_tiny", "mixing_overhead", "saved_head", "saved_update", "where_time_goes",
        "decode_roofline"]
    subprocess.run([sys.executable, os.path.join(ROOT, "bench", "speed.py"), "--quick", "--repeats", "1", "--device", "cpu",
                    "--model", os.path.join(TINY, "learner"), "--out", str(out), "--only", *figures], check=True)
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    assert {row["figure"].split()[0] for row in rows} == set(figures) and all(row["value"] > 0 for row in rows)
