"""The study's statistics, and that it goes on where it was stopped and shows what failed."""
import json
import os
import sys

import mpmath
import pytest
from conftest import ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))
import study


@pytest.mark.parametrize("df", range(1, 10))
def test_quantiles_of_t(df):
    """By integrating the density."""
    def below(t):
        density = mpmath.gamma((df + 1) / 2) / mpmath.sqrt(df * mpmath.pi) / mpmath.gamma(df / 2)
        return .5 + density * mpmath.quad(lambda x: (1 + x * x / df) ** (-(df + 1) / 2), [0, t])
    assert abs(below(study.T975[df]) - .975) < 2e-5 and abs(below(study.T800[df]) - .8) < 2e-4


def test_compare():
    """Differences .1, .2, .3: mean .2, sd .1, se .0577; the interval is 4.303 of these, the smallest effect 5.364."""
    mean, half, least = study.compare([.5, .7, .9], [.4, .5, .6])
    assert mean == pytest.approx(.2) and half == pytest.approx(.2484, abs=1e-4) and least == pytest.approx(.3097, abs=1e-4)
    assert study.compare([.5, .7], [.5, .7]) == (0, 0, 0)


def test_spikes():
    """One step in thirty above three times the median around it; a slow rise has none; a long burst is the median."""
    assert study.spikes([1.] * 29 + [3.5]) == pytest.approx(1 / 30) and study.spikes([1.] * 29 + [2.9]) == 0
    assert study.spikes([1.1 ** i for i in range(40)]) == 0 and study.spikes([1.] * 15 + [9.] * 15) < 1 / 30


def test_arms_are_paired_seed_by_seed():
    for name in study.STUDIES:
        plans = study.planned([name], 3, False)
        seeds = [seed for *_, seed, _ in plans]
        assert seeds == sorted(seeds) and {command[-1] for *_, command in plans} == {"1", "2", "3"}
        for setting, script, shared, arms in study.STUDIES[name]:
            runs = [p for p in plans if p[1] == setting and p[3] == 2]
            assert [p[2] for p in runs] == list(arms) and {p[4][0] for p in runs} == {script}


@pytest.mark.slow
def test_goes_on_and_shows_what_fails(tmp_path, monkeypatch, capsys):
    """A good arm runs once for two calls; one that fails is named, counted, and tried again."""
    monkeypatch.setitem(study.STUDIES, "sg", [("little", "grpo_sg.py", "--steps 5 --prompts 2 --group 2", {
        "none": "--weighting none", "wrong": "--tau -1"})])
    monkeypatch.setattr(study, "FINAL", "--eval_problems 2 --eval_samples 8 --ks 1 8 --save_every 0")
    out = str(tmp_path / "study.jsonl")
    for made in ("1/2", "1 of 1"):
        with pytest.raises(SystemExit, match="1 of"):
            study.main(["--only", "sg", "--seeds", "1", "--jobs", "1", "--out", out])
        shown = capsys.readouterr()
        assert "--tau -1" in shown.err and "| none | 1 |" in shown.out and "| wrong |" not in shown.out, made
    with open(out) as f:
        [line] = map(json.loads, f)
    assert line["arm"] == "none" and [e["step"] for e in line["evals"]] == [0, 5] and len(line["series"]["reward"]) == 5
