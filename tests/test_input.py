"""What a user can get wrong ends in one sentence and exit code 2, in process, before a model is loaded."""
import json
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import TINY

import common
import ngrpo


def refused(capsys, monkeypatch, *argv):
    monkeypatch.setattr(common.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("model loaded"))
    with pytest.raises(SystemExit) as stop:
        ngrpo.main(list(argv))
    said = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and "Traceback" not in said
    return said.splitlines()[-1]


@pytest.mark.parametrize("text,reason", [
    ("", "is empty"), ("\n\n", "is empty"), ('{"question": "q", "answer": "1"}\n{oops\n', "line 2: not JSON"),
    ('{"question": "q", "answer": "1"}\n\n{"question": "", "answer": "1"}', "line 3: no question"),
    ('{"question": "q", "answer": ""}', "line 1: no answer"), ('{"question": "q"}', "line 1: no answer"),
    ('{"question": "q", "solution": "no box here \\\\boxed{"}', "1 of 1 answers cannot be read"), ('[1, 2]', "line 1: an object"),
    ('[{"question": 1', "not JSON"), ('{"question": "q", "answer": true}', "1 of 1 answers cannot be read, the first in line 1"),
    ('{"question": "q", "answer": "1", "rephrasings": [{"text": " "}]}', "line 1: rephrasings must be"),
    ('{"question": "q", "answer": "1", "rephrasings": 3}', "line 1: rephrasings must be"),
    ('{"prompt": ["text"], "answer": "1"}', "line 1: no question"),
    ('{"question": "q", "answer": "", "solution": "it is five"}', "1 of 1 answers cannot be read"),
    ('{"question": "q", "answer": "1"}\n' + 2 * '{"question": "q", "answer": "so ####"}\n',
     "2 of 3 answers cannot be read, the first in line 2"),
    ('{"question": "q", "answer": "BC", "choices": ["x", "y", "z"]}', "line 1: the answer is neither"),
    ('{"question": "q", "answer": "z", "choices": ["x", "y"]}', "line 1: the answer is neither"),
    ('{"question": "q", "answer": "A", "choices": {"A": "x"}}', "line 1: the answer is neither"),
    ('{"question": "q", "answer": "1", "choices": 3}', "line 1: the answer is neither"),
    ('{"question": "q", "answer": NaN}', "1 of 1 answers cannot be read")])
def test_bad_problem_files(tmp_path, capsys, monkeypatch, text, reason):
    """A gold that cannot be read stops the run, it earns no reward (open-r1 PR566; cookbook issue335)."""
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    said = refused(capsys, monkeypatch, "--data", str(path))
    assert str(path) in said and reason in said


def test_unreadable_answers_of_a_hub_set_are_counted_and_left_out(capsys, monkeypatch):
    """MATH has boxes without braces, and empty ones: nobody can mend these where they are."""
    rows = [dict(problem="q", solution=f"so \\boxed{s}") for s in ("{1}", " 2", "{}", "{4}")]
    fake = SimpleNamespace(load_dataset=lambda *_, **__: rows)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert [p["answer"] for p in common.load_problems("owner/name")] == ["1", "4"]
    assert "owner/name: 2 of 4 answers cannot be read, the first in line 2" in capsys.readouterr().out
    rows[:] = rows[1:3]
    with pytest.raises(SystemExit):
        common.load_problems("owner/name")
    fake.load_dataset = mock.Mock(side_effect=RuntimeError("scripts are no longer supported"))
    with pytest.raises(SystemExit):
        common.load_problems("owner/name")
    assert "scripts are no longer supported" in capsys.readouterr().err


def test_presets_for_a_gpu_do_not_start_on_a_cpu(capsys, monkeypatch):
    if not torch.cuda.is_available():
        assert "--device cuda: not available here, unlike --device cpu" in refused(capsys, monkeypatch, "--preset", "one_gpu")


@pytest.mark.parametrize("argv,reason", [
    (["--data", "missing.jsonl"], "missing.jsonl: cannot be read"), (["--group", "1"], "--group must be at least 2"),
    (["--minibatches", "3"], "--minibatches must divide"), (["--ks", "99"], "--ks must lie in"),
    (["--temperature", "0"], "--temperature must be above 0"), (["--preset", "huge"], "choose one of tiny"),
    (["--stepz", "3"], "unrecognized arguments: --stepz"), (["--step", "3"], "unrecognized arguments: --step"),
    (["--mixer", "blender"], "invalid choice"), (["--group", "many"], "invalid int value"),
    (["--eval_top_p", "1.5"], "--eval_top_p"), (["--max_rows", "0"], "at least 1"),
    (["--mix_rate", "2"], "--mix_rate"), (["--grad_clip", "0"], "would train nothing"), (["--mix_k", "0"], "--mix_k"), (["--mix_k", "1000"], "--mix_k"),
    (["--resume", "nowhere"], "nowhere"), (["--lr", "-1"], "at least 0"), (["--warmup", "-1"], "at least 0"),
    (["--steps", "-1", "--lr", "nan", "--grad_clip", "inf"], "--steps, --lr, --grad_clip must be finite and at least 0"),
    (["--device", "gpu"], "--device gpu: not available"), (["--prompt_format", "Solve it."], "must hold {question}"), (["--data", "owner/name"], "pip install datasets")])
def test_bad_flags(capsys, monkeypatch, argv, reason):
    """A group of one (ms-swift issue3980), sizes that do not divide (trl issue2858): a sentence each."""
    assert reason in refused(capsys, monkeypatch, *argv)


@pytest.mark.parametrize("argv,reason", [
    (["--prompt_format", "{question} {nope}"], "double other braces"),
    (["--prompt_format", "{question} \\boxed{}"], "double other braces"),
    (["--prompt_format", "{question}{question.x}"], "double other braces"),
    (["--max_prompt_tokens", "3"], "no prompt has at most 3 tokens"),
    (["--max_new_tokens", "300"], "leave no room")])
def test_sizes_that_do_not_fit_the_model(capsys, argv, reason):
    """These need the tokenizer or the model's sizes, so the model is there, but no step is made."""
    with pytest.raises(SystemExit) as stop:
        ngrpo.main(argv)
    assert stop.value.code == 2 and reason in capsys.readouterr().err


def test_folders_that_are_no_models(tmp_path, capsys):
    for reason in ("holds no weights", "holds no tokenizer"):
        with pytest.raises(SystemExit):
            common.load_model(str(tmp_path))
        assert reason in capsys.readouterr().err
        (tmp_path / "model.safetensors").write_text("")


def test_long_prompts_are_dropped_and_counted(tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(dict(question="Tom has 1 pens. " * n, answer="1")) + "\n" for n in (1, 2, 9)))
    ngrpo.main(["--data", str(path), "--max_prompt_tokens", "30", "--steps", "1", "--prompts", "2", "--group", "2",
                "--eval_problems", "2", "--eval_samples", "2", "--ks", "1", "--out", str(tmp_path / "o")])
    assert "1 prompts longer than 30 tokens dropped" in capsys.readouterr().out


def test_a_folder_is_never_overwritten(tmp_path, capsys, monkeypatch):
    small = ["--steps", "0", "--eval_problems", "2", "--eval_samples", "2", "--ks", "1", "--out", str(tmp_path / "o")]
    ngrpo.main(small)
    with pytest.raises(SystemExit):
        ngrpo.main(small)
    assert "holds another run" in capsys.readouterr().err


def test_resume_refuses_another_run(tmp_path, capsys):
    out = str(tmp_path / "o")
    ngrpo.main(["--steps", "1", "--prompts", "2", "--group", "2", "--eval_problems", "2", "--eval_samples", "2",
                "--ks", "1", "--out", out])
    with pytest.raises(SystemExit):
        ngrpo.main(["--resume", out, "--lr", "1", "--group", "4"])
    assert "--group, --lr would make it another run" in capsys.readouterr().err
    for argv, reason in ((["--steps", "0"], "has 1 steps already"), (["--out", out], "holds another run"),
                         (["--seed", "2", "--eval_samples", "3"], "--eval_samples, --seed would make it another run")):
        with pytest.raises(SystemExit):
            ngrpo.main(["--resume", out, *argv])
        assert reason in capsys.readouterr().err


def test_help_prints(capsys):
    with pytest.raises(SystemExit) as stop:
        ngrpo.main(["--help"])
    assert stop.value.code == 0 and "--mix_rate" in capsys.readouterr().out


@pytest.mark.parametrize("preset", ["one_gpu", "paper"])
def test_prompt_asks_for_what_the_checker_reads(preset):
    """A model never told to box its answer earns nothing for ever (open-r1 issue235)."""
    cfg, _ = common.parse_config(ngrpo.Config, ngrpo.PRESETS, ["--preset", preset, "--device", "cpu"])
    asked = cfg.prompt_format.format(question="What is 2 + 3?")
    assert asked.startswith("What is 2 + 3? ") and asked.endswith("the final answer within \\boxed{}.")
    assert common.check_answer(asked.replace("{}", "{5}"), "5")


def test_tiny_folder_is_where_the_defaults_point():
    cfg, _ = common.parse_config(ngrpo.Config, ngrpo.PRESETS, [])
    assert cfg.model == f"{ngrpo.HERE}/tiny/learner" and TINY.endswith("tiny")
