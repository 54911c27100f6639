"""What a run leaves behind: whole whenever it ends, and gone on with bit for bit."""
import json
import os
import random
import resource
import shutil
import signal
import threading
import time

import pytest
import torch
from conftest import TINY

import common
import ngrpo

SMALL = ["--prompts", "4", "--group", "4", "--eval_problems", "10", "--eval_samples", "4", "--ks", "1", "4"]


def lines(folder, name="metrics.jsonl", drop=("seconds", "tokens_per_s", "peak")):
    with open(os.path.join(folder, name)) as f:
        rows = [json.loads(line) for line in f if line.endswith("\n")]
    return [{k: v for k, v in r.items() if not k.startswith(drop)} for r in rows if r.get("kind") != "config"]


def alike(a, b):
    """The same metrics, samples, weights and optimizer."""
    one, two = (torch.load(f"{x}/state.pt", weights_only=True) for x in (a, b))
    same = all(torch.equal(v, two["model"][k]) for k, v in one["model"].items()) and all(
        torch.equal(v, two["optimizer"]["state"][i][k]) for i, s in one["optimizer"]["state"].items()
        for k, v in s.items())
    return same and lines(a) == lines(b) and lines(a, "samples.jsonl") == lines(b, "samples.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uncut run of four steps, and its folder as it was at each of its checkpoints."""
    folder, real = str(tmp_path_factory.mktemp("whole")), ngrpo.save_checkpoint

    def save(out, state):
        real(out, state)
        shutil.copytree(out, f"{folder}/at{state['step']}")
    with pytest.MonkeyPatch.context() as m:
        m.setattr(ngrpo, "save_checkpoint", save)
        ngrpo.main(["--steps", "4", "--out", f"{folder}/a", "--eval_every", "2", "--save_every", "1", "--minibatches", "2",
                    "--kl_coef", ".01", "--mix_rate", ".2", *SMALL])
    return folder


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_killed_after_any_step_it_goes_on_bit_for_bit(whole, tmp_path, step):
    """(open-r1 issue450; Open-Reasoner-Zero issue34; nano-aha replays a batch.) Under another name here."""
    b, c = str(tmp_path / "b"), str(tmp_path / "c")
    shutil.copytree(f"{whole}/at{step}", b)
    with open(b + "/metrics.jsonl", "a") as f:                          # what a kill leaves behind
        f.write('{"kind": "step", "step": 9, "reward": 9}\n{"kind": "st')
    before = sorted(os.listdir(b))
    ngrpo.main(["--resume", b, "--out", c, "--save_every", "0"])
    assert alike(f"{whole}/a", c) and sorted(os.listdir(b)) == before


@pytest.mark.parametrize("step", [1, 2, 3])
def test_stopped_after_any_step_it_goes_on_bit_for_bit(whole, tmp_path, monkeypatch, step):
    """An evaluation that was due where the run stopped is not lost."""
    b, stop, real = str(tmp_path / "b"), [], ngrpo.report

    def report(out, kind, at, **fields):
        stop.extend([at] * (kind == "step" and at == step))
        real(out, kind, at, **fields)
    with monkeypatch.context() as m:
        m.setattr(ngrpo, "report", report)
        m.setattr(ngrpo, "stop_on_signal", lambda: stop)
        ngrpo.main(["--steps", "4", "--out", b, "--eval_every", "2", "--minibatches", "2", "--kl_coef", ".01",
                    "--mix_rate", ".2", *SMALL])
    assert torch.load(b + "/state.pt", weights_only=True)["step"] == step and os.path.exists(b + "/model/config.json")
    ngrpo.main(["--resume", b])
    assert alike(f"{whole}/a", b)


def test_more_steps_on_resuming_are_the_longer_run(tmp_path):
    """The evaluation at what was the end is not one of the longer run, and leaves its log."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    ngrpo.main(["--steps", "3", "--out", a, *SMALL])
    ngrpo.main(["--steps", "2", "--out", b, *SMALL])
    assert [r["kind"] for r in lines(b)] == ["eval", "step", "step", "eval"]
    ngrpo.main(["--resume", b, "--steps", "3"])
    assert alike(a, b)


def test_a_run_that_was_too_big_goes_on_in_smaller_pieces(tmp_path):
    """After an out-of-memory: sizes that change no result beyond rounding may change, and nothing else need be said."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    ngrpo.main(["--steps", "3", "--out", a, *SMALL])
    ngrpo.main(["--steps", "2", "--out", b, *SMALL])
    ngrpo.main(["--resume", b, "--steps", "3", "--micro_tokens", "64", "--max_rows", "3", "--grad_checkpoint", "True"])
    one, two = (torch.load(x + "/state.pt", weights_only=True)["model"] for x in (a, b))
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_exports_and_ends_quietly(tmp_path, number):
    out = str(tmp_path / "a")

    def interrupt():                                    # once a step is logged, and the handler so in place
        while not (os.path.exists(out + "/metrics.jsonl") and any(r["kind"] == "step" for r in lines(out))):
            time.sleep(.2)
        os.kill(os.getpid(), number)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        ngrpo.main(["--steps", "1000", "--out", out, *SMALL])
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    step = torch.load(out + "/state.pt", weights_only=True)["step"]
    assert 0 < step < 1000 and lines(out)[-1]["step"] == step and os.path.exists(out + "/model/config.json")


def in_child(act):
    """Run act in a forked process, that ends with code 0 if it comes to its end."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:                                        # an exception must not run the tests a second time
            os._exit(1)
    return child


def consistent(folder):
    """The step of the checkpoint, whose every number is that step."""
    state = common.load_checkpoint(folder)
    assert all((v == state["step"]).all() for v in state["model"].values())
    return state["step"]


def numbers(step):
    return dict(step=step, config={}, model={str(i): torch.full((2000,), float(step)) for i in range(20)})


def test_killed_while_saving_the_checkpoint_is_whole(tmp_path):
    """Fifty kill -9 at random moments of a process that only saves."""
    folder, rng, seen = str(tmp_path), random.Random(0), []
    common.save_checkpoint(folder, numbers(0))

    def save_for_ever():
        for step in range(1, 10 ** 6):
            common.save_checkpoint(folder, numbers(step))
    for _ in range(50):
        child, path = in_child(save_for_ever), f"{folder}/state.pt"
        for _ in range(rng.randint(1, 6)):              # so many whole saves, each a new file, and some more time
            inode = os.stat(path).st_ino
            while os.stat(path).st_ino == inode:
                time.sleep(.0002)
        time.sleep(rng.uniform(0, .01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen.append(consistent(folder))
    assert len(set(seen)) > 3                           # the kills did come while it saved


@pytest.mark.slow
def test_ended_before_any_file_operation_the_checkpoint_is_whole(tmp_path, monkeypatch):
    """The process is gone before the n-th open, write, flush, sync or rename, for every n."""
    folder, left, ends = str(tmp_path), [0], []
    common.save_checkpoint(folder, numbers(1))

    def counted(act):
        def wrapper(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return act(*args, **kwargs)
        return wrapper

    class File:
        def __init__(self, *args):
            self.file = counted(open)(*args)
            self.write, self.flush, self.fileno = counted(self.file.write), counted(self.file.flush), self.file.fileno

        def __enter__(self):
            return self

        def __exit__(self, *_):
            counted(self.file.close)()
    monkeypatch.setattr(common, "open", File, raising=False)
    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(os, "replace", counted(os.replace))
    while not ends or ends[-1] == 9:
        left[0] = len(ends) + 1
        child = in_child(lambda: common.save_checkpoint(folder, numbers(2)))
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert consistent(folder) == (1 if ends[-1] == 9 else 2)
        assert len(ends) < 500
    assert ends[-1] == 0 and len(ends) > 20


@pytest.fixture
def full_disk():
    """No file may pass 100 kB, as on a full disk: room for logs, not for a checkpoint."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_said_and_costs_no_step(tmp_path, capsys, full_disk):
    """The checkpoint of before stays, no half one lies about, and the end says what is missing."""
    out = str(tmp_path / "a")
    ngrpo.main(["--steps", "1", "--out", out, *SMALL])
    full_disk()
    with pytest.raises(SystemExit) as stop:
        ngrpo.main(["--resume", out, "--steps", "3", "--save_every", "1"])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "step 2 is not saved" in said and "step 3 is not saved" in said
    assert f"{out}/model is not written" in said and "Traceback" not in said
    assert [r["step"] for r in lines(out) if r["kind"] == "step"] == [1, 2, 3]
    assert common.load_checkpoint(out)["step"] == 1 and not os.path.exists(out + "/state.pt.tmp")


def test_lost_folder_is_said_and_costs_no_step(tmp_path, capsys, monkeypatch):
    out, real = str(tmp_path / "a"), ngrpo.rollout
    monkeypatch.setattr(ngrpo, "rollout", lambda *a, **k: shutil.rmtree(out, ignore_errors=True) or real(*a, **k))
    ngrpo.main(["--steps", "2", "--out", out, "--save_every", "1", "--eval_problems", "0", *SMALL[:4]])
    said = capsys.readouterr()
    assert "step    2" in said.out and "a line of" in said.err and "step 1 is not saved" in said.err


def test_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        ngrpo.main(["--out", str(tmp_path / "file" / "a"), *SMALL])
    assert stop.value.code == 2 and "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("text,reason", [(b"no checkpoint", "cannot be read"), (b"", "cannot be read")])
def test_broken_checkpoint_is_refused(tmp_path, capsys, text, reason):
    (tmp_path / "state.pt").write_bytes(text)
    with pytest.raises(SystemExit) as stop:
        ngrpo.main(["--resume", str(tmp_path)])
    assert stop.value.code == 2 and reason in capsys.readouterr().err


def test_checkpoint_of_another_script_is_refused(tmp_path, capsys):
    common.save_checkpoint(str(tmp_path), dict(step=1, config=dict(preset="tiny", small_model="x")))
    with pytest.raises(SystemExit):
        ngrpo.main(["--resume", str(tmp_path)])
    assert "another script or another version" in capsys.readouterr().err


def poisoned(monkeypatch, when):
    """policy_loss gives NaN in those calls of it for which `when` says so."""
    real, calls = ngrpo.policy_loss, []

    def loss(logp, *args):
        calls.append(1)
        value, clip = real(logp, *args)
        return value * float("nan") if when(len(calls)) else value, clip
    monkeypatch.setattr(ngrpo, "policy_loss", loss)


def test_lost_steps_are_counted_and_cost_no_run(tmp_path, monkeypatch, capsys):
    """A gradient that is not finite moves nothing; without the guard one NaN made every weight NaN."""
    poisoned(monkeypatch, lambda call: call in (1, 2))
    out = str(tmp_path / "a")
    ngrpo.main(["--steps", "3", "--out", out, "--save_every", "2", *SMALL])
    steps = [r for r in lines(out) if r["kind"] == "step"]
    assert [r["skipped"] for r in steps] == [1, 1, 0]
    assert steps[0]["grad_norm"] is None and steps[2]["grad_norm"] > 0
    assert capsys.readouterr().out.count("this update is skipped") == 2
    start, end = common.load_model(f"{TINY}/learner")[0].state_dict(), common.load_checkpoint(out)["model"]
    assert any(not torch.equal(end[k], v) for k, v in start.items()) and all(v.isfinite().all() for v in end.values())


def test_three_lost_steps_end_the_run_with_what_to_try(tmp_path, monkeypatch, capsys):
    poisoned(monkeypatch, lambda call: True)
    out = str(tmp_path / "a")
    with pytest.raises(SystemExit) as stop:
        ngrpo.main(["--steps", "9", "--out", out, *SMALL])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "lower --lr" in said and "Traceback" not in said
    weights, start = common.load_checkpoint(out)["model"], common.load_model(f"{TINY}/learner")[0].state_dict()
    assert lines(out)[-1]["step"] == 3 and all(torch.equal(weights[k], v) for k, v in start.items())
    assert os.path.exists(out + "/model/config.json")


def test_logits_that_are_nan_break_no_rollout(setup):
    """A sampler that met NaN pointed past the last id, and the embedding fell over it."""
    s = setup()
    with torch.no_grad():
        s.model.base_model.norm.weight.fill_(float("nan"))
    tokens, _, lengths, _ = ngrpo.rollout(s.model, s.head, s.prompts, s.u, 1., s.eos, s.V)
    assert tokens.max() < s.V and len(lengths) == len(s.u)
