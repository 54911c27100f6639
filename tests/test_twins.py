"""The scripts side by side: what differs is the papers, and with their methods off the run is the same to the bit."""
import ast
import os

import pytest
import torch
from conftest import ROOT, TINY
from test_saving import SMALL, lines

import grpo_sg
import ngrpo
import s2l_po
import ta_grpo

SCRIPTS = ["ngrpo", "grpo_sg", "s2l_po", "ta_grpo"]
INTENDED = dict(                                        # function: why it is not the same in every script
    nearest="N-GRPO's neighbours", mixture="N-GRPO's mixtures", mix="N-GRPO's mixtures", rollout="N-GRPO mixes its inputs, S2L-PO records a nucleus",
    explorer_count="S2L-PO's schedule", nucleus="S2L-PO's explorer", join="S2L-PO's two sources", denominator="S2L-PO's ratios",
    knights_reward="GRPO-SG's second task", converse="its third", information="its third",
    selected_logit="GRPO-SG's h", sharpness_weight="GRPO-SG's w", token_weights="GRPO-SG and its baselines",
    roll_pools="TA-GRPO's pools", pool_advantages="TA-GRPO's pools", add_phrasings="TA-GRPO's pools", anchored="TA-GRPO's q_0",
    lexical_distance="TA-GRPO's diagnostics", probe="TA-GRPO's diagnostics",
    score="N-GRPO rebuilds mixed inputs, GRPO-SG takes h along", policy_loss="N-GSPO; GRPO-SG's weights; S2L-PO's dual clip",
    evaluate="N-GRPO may mix in evaluation, TA-GRPO rolls pools of one phrasing",
    update="GRPO-SG's weights and passes; S2L-PO's sources; TA-GRPO's anchors", train="what a step draws and logs",
    main="each script's own checks and name")


def source(name):
    with open(os.path.join(ROOT, name + ".py")) as f:
        return f.read()


def functions(name):
    text = source(name)
    return {node.name: ast.get_source_segment(text, node) for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_functions_are_equal_to_the_letter():
    parts = {name: functions(name) for name in SCRIPTS}
    for function in set().union(*parts.values()) - set(INTENDED):
        versions = {part.get(function) for part in parts.values()}
        assert len(versions) == 1 and None not in versions, function
    for function in INTENDED:                           # and the table lists nothing that is the same everywhere
        assert len({part.get(function) for part in parts.values()}) > 1, function


@pytest.mark.parametrize("name", SCRIPTS)
def test_at_most_110_lines_of_its_own(name):
    """Docstrings, Config, presets, a second task and a third excluded."""
    def own(name):
        text = source(name)
        left_out = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or (
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
                "PAPER", "KNIGHTS", "SEARCH", "TURNS", "PRESETS")) or (
            isinstance(node, ast.FunctionDef) and INTENDED.get(node.name, "").endswith(("second task", "its third")))]
        skip = {line for node in left_out for line in range(node.lineno, node.end_lineno + 1)}
        return [line.strip() for i, line in enumerate(text.split("\n"), 1) if i not in skip and line.strip()]
    others = {line for other in SCRIPTS if other != name for line in own(other)}
    alone = [line for line in own(name) if line not in others]
    assert len(alone) <= 110, len(alone)


def test_methods_off_it_is_the_same_run(tmp_path):
    """Same tokens, rewards, metrics and weights, with two updates a rollout and a reference."""
    flags = ["--steps", "3", "--minibatches", "2", "--kl_coef", ".01", "--clip_high", ".25", "--aggregation", "token",
             "--save_every", "0", "--model", f"{TINY}/learner", "--data", f"{TINY}/easy_train.jsonl", "--eval_data",
             f"{TINY}/easy_test.jsonl", "--lr", "2e-4", *SMALL]
    runs = dict(ngrpo=(ngrpo, ["--mix_rate", "0"]), grpo_sg=(grpo_sg, ["--weighting", "none"]),
                s2l_po=(s2l_po, ["--schedule", "off"]), ta_grpo=(ta_grpo, ["--num_rephrasings", "0", "--probe", "0"]))
    for name, (script, off) in runs.items():
        script.main(["--out", str(tmp_path / name), *flags, *off])
    for log, needed in (("metrics.jsonl", {"reward", "grad_norm", "entropy", "kl", "clip_frac"}),
                        ("samples.jsonl", {"prompt", "completion", "reward"})):
        for one, *others in zip(*(lines(tmp_path / name, log) for name in runs), strict=True):
            for two in others:
                shared = one.keys() & two.keys()
                assert needed <= shared or one["kind"] == "eval"
                assert {k: one[k] for k in shared} == {k: two[k] for k in shared}
    one, *others = (torch.load(tmp_path / name / "state.pt", weights_only=True)["model"] for name in runs)
    assert all(torch.equal(v, two[k]) for two in others for k, v in one.items())
