"""The rules of the house: ceilings, no hidden words, no text ever evaluated."""
import ast
import os
import tokenize

import pytest
from conftest import ROOT

FILES = dict(ngrpo=460, common=550)


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
    with open(os.path.join(ROOT, name + ".py")) as f:
        tree = ast.parse(f.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None and getattr(node.type, "id", "") not in ("Exception", "BaseException")
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            assert called not in ("exec", "sympify", "parse_expr", "S") and not (
                called == "eval" and isinstance(node.func, ast.Name))
        if isinstance(node, (ast.Import, ast.ImportFrom)) and name == "ngrpo":
            module = (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
            assert module in ("torch", "transformers", "tqdm", "common", "copy", "math", "os", "signal", "time", "collections",
                              "dataclasses", "typing")


def test_every_flag_says_what_it_is():
    import dataclasses
    import ngrpo
    assert all(f.metadata.get("help") for f in dataclasses.fields(ngrpo.Config))
