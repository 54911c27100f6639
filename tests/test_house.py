"""The rules of the house: ceilings, no hidden words, no text ever evaluated."""
import ast
import dataclasses
import importlib
import os
import re
import sys
import tokenize

import pytest
from conftest import ROOT

FILES = dict(ngrpo=460, grpo_sg=540, s2l_po=460, ta_grpo=460, common=550, answers=810)


def tree_of(name):
    with open(os.path.join(ROOT, name + ".py")) as f:
        return ast.parse(f.read())


@pytest.mark.parametrize("name", FILES)
def test_ceilings(name):
    with open(os.path.join(ROOT, name + ".py")) as f:
        lines = f.read().split("\n")
    assert len(lines) - 1 <= FILES[name]
    assert max(map(len, lines)) <= 110
    with open(os.path.join(ROOT, name + ".py"), "rb") as f:
        assert ";" not in [token.string for token in tokenize.tokenize(f.readline)]


@pytest.mark.parametrize("name", FILES)
def test_no_evaluated_text_and_no_swallowed_error(name):
    """What fails is not taken for a wrong answer (verl PR5635) or a server that is still to come (simple_GRPO)."""
    for node in ast.walk(tree_of(name)):
        if getattr(node, "name", "") in ("reward", "check_answer", "answers_equal", "extract_answer", "update"):
            assert not any(isinstance(part, ast.Try) for part in ast.walk(node))
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None and getattr(node.type, "id", "") not in ("Exception", "BaseException")
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            assert called not in ("exec", "sympify", "parse_expr", "S") and not (
                called == "eval" and isinstance(node.func, ast.Name))
        if isinstance(node, (ast.Import, ast.ImportFrom)) and name != "common":
            module = (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
            assert module in ("torch", "transformers", "tqdm", "common", "copy", "math", "os", "signal", "time", "collections",
                              "dataclasses", "typing", "re", "bisect") or name == "answers" and module in (
                                  "fractions", "mpmath", "operator", "unicodedata", "zlib")


def test_nothing_to_build():
    """What is imported comes with Python, torch or transformers (simpleRL issue43; r1_vlm PR25; Long-RL issue16)."""
    imports = [n for name in FILES for n in ast.walk(tree_of(name)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    modules = {(n.module if isinstance(n, ast.ImportFrom) else a.name).split(".")[0] for n in imports for a in n.names}
    assert modules - sys.stdlib_module_names <= {
        "common", "answers", "torch", "transformers", "tqdm", "jinja2", "safetensors", "datasets",    # the last is optional
        "mpmath"}                                                                               # sympy brings it
    with open(os.path.join(ROOT, "requirements.txt")) as f:
        assert {line.split(">=")[0] for line in f} <= {"torch", "transformers", "numpy", "sympy", "pytest"}


@pytest.mark.parametrize("name", FILES)
def test_words_that_are_not_there(name):
    """No generate() with defaults of its own (ms-swift PR3135; trl PR3494; transformers use_model_defaults; minimind,
    nanochat), no top-k, no pad id by whose value one could mask (trl PR4970; Megatron-Bridge PR4660; tiny-grpo), no
    alarm, which only a main thread may set (trl PR5281)."""
    words = {getattr(node, key, None) for node in ast.walk(tree_of(name)) for key in ("id", "attr", "arg", "value")
             if isinstance(getattr(node, key, None), str)}
    assert "eos_token_id" in words or name != "common"
    assert not words & {"generate", "top_k", "pad_token", "pad_token_id", "alarm", "setitimer", "SIGALRM"}


def test_tokens_never_become_text_and_tokens_again():
    """Text is made of a completion for grading and logs only (trl issue5224, PR5242; cs336-a5 issue15; minRL,
    beyond-nanogpt): of what is called with a tokenizer only encode_problems makes ids, before there is a completion."""
    calls = {(f.name, ast.unparse(c.func)) for f in tree_of("ngrpo").body for c in ast.walk(f)
             if isinstance(c, ast.Call) and any(
                 getattr(v, "id", "") == "tokenizer" for v in (c.func, getattr(c.func, "value", 0), *c.args))}
    assert calls == {("main", "encode_problems"), ("main", "tokenizer.decode"), ("main", "train"), ("train", "decode"),
                     ("train", "evaluate"), ("evaluate", "decode"), ("train", "tokenizer.decode"),
                     ("train", "export_model")}


def test_every_number_of_a_run_is_a_flag():
    """Half of nano-aha's were constants in the loop: here it holds none, and the method's are in the docstring."""
    for function in tree_of("ngrpo").body:
        if getattr(function, "name", "") in ("train", "update", "evaluate"):
            constants = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
            assert {v for v in constants if type(v) in (int, float)} <= {0, 1, 2, 3}


def test_formulas_have_their_equation_numbers():
    """Those of the paper, at the end of the line or docstring that computes them (trl issue2854, issue2752)."""
    with open(os.path.join(ROOT, "ngrpo.py")) as f:
        code = f.read().split("# --- sampling", 1)[1]
    numbers = re.findall(r"\d+", " ".join(re.findall(r"\((\d+(?:, \d+)*)\)(?:\"{3})?$", code, re.M)))
    assert set(range(5, 14)) <= set(map(int, numbers))


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("common", "answers")])
def test_every_flag_says_what_it_is(name):
    fields = dataclasses.fields(importlib.import_module(name).Config)
    assert all(f.metadata.get("help") for f in fields)
