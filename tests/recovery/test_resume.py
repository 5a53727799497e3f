"""Killed and begun again: the run goes on, bit for bit, as if nothing had happened."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import events_of
from support.snapshot_folders import complete_snapshots
from support.trainings import assert_same, batches, make_net, squared_error, state_of

from headway import Guard, Snapshots, diagnose
from headway.errors import UsageError
from headway.guard.recovery import preemption

SCRIPT = Path(__file__).parent / "interrupted.py"
LOADERS = ["shuffled", "workers", "generator", "sampler", "stream", "stateful"]
TORCHDATA = ["torchdata", "torchdata-workers"]


def start(run_dir: Path, result: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(run_dir), str(result), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(run_dir: Path, result: Path, *options: str) -> tuple[int, str, str]:
    process = start(run_dir, result, *options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of a run that nobody interrupts, by the kind of its loader."""
    folder = tmp_path_factory.mktemp("undisturbed")
    results: dict[str, Any] = {}

    def result(kind: str) -> Any:
        if kind not in results:
            code, _, err = finish(folder / kind, folder / f"{kind}.pt", "--loader", kind)
            assert code == 0, err
            results[kind] = torch.load(folder / f"{kind}.pt", weights_only=False)
        return results[kind]

    return result


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) for kind in (*LOADERS, *TORCHDATA)],
)
def test_a_run_killed_twice_ends_as_one_that_never_was(
    kind: str, undisturbed: Any, tmp_path: Path
) -> None:
    if kind in TORCHDATA:
        pytest.importorskip("torchdata")
    run, result = tmp_path / "run", tmp_path / "result.pt"
    for at in ("17", "33"):
        code, _, err = finish(run, result, "--loader", kind, "--die-at", at)
        assert code == -signal.SIGKILL, err
    code, out, err = finish(run, result, "--loader", kind)
    assert code == 0, err
    # Killed while a snapshot may still have been on its way to the disk.
    assert int(out.split()[1]) in (20, 25, 30)
    assert ("worker processes are not part of its state" in err) == (kind == "torchdata-workers")
    assert_same(undisturbed(kind), torch.load(result, weights_only=False))


@pytest.mark.slow
def test_a_plain_range_of_epochs_serves_as_well(undisturbed: Any, tmp_path: Path) -> None:
    run, result = tmp_path / "run", tmp_path / "result.pt"
    finish(run, result, "--plain-range", "--die-at", "33")
    code, _, err = finish(run, result, "--plain-range")
    assert code == 0, err
    assert_same(undisturbed("shuffled"), torch.load(result, weights_only=False))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_is_asked_to_leave_saves_itself_and_goes(
    number: signal.Signals, undisturbed: Any, tmp_path: Path
) -> None:
    run, result = tmp_path / "run", tmp_path / "result.pt"
    process = start(run, result, "--pause", "0.05")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.6)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    (event,) = events_of(run, "preempted")
    assert dict(event.data) == {"signal": int(number), "saved": True}
    code, out, err = finish(run, result)
    assert code == 0, err
    assert int(out.split()[1]) == event.step + 1, "not one step is lost"
    assert_same(undisturbed("shuffled"), torch.load(result, weights_only=False))


@pytest.mark.slow
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    process = start(tmp_path / "run", tmp_path / "result.pt", "--pause", "30")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(2.0)  # now it sleeps at the end of the first step
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM, err


# Within one process


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_handler_of_the_users_own_is_called_after_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sent = signal.Signals[name]
    # A guard that another test left open may be reported as hanging: then signals do not wait.
    monkeypatch.setattr(preemption, "run_hangs", lambda: False)
    heard: list[int] = []
    before = signal.signal(sent, lambda number, frame: heard.append(number))
    theirs = signal.getsignal(sent)
    try:
        model, optimizer, guard = a_guard(tmp_path, snapshots=Snapshots(every=1000))
        for number, batch in enumerate(guard(batches(12))):
            squared_error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 6:
                signal.raise_signal(sent)
                assert heard == []
        assert heard == [sent]
        assert complete_snapshots(tmp_path / "snapshots")[0][1] == 7
        # SIGTERM ends a run; what SIGUSR1 means is the script's business, and the guard goes on.
        closed = signal.getsignal(sent) is theirs
        assert closed is (name == "SIGTERM")
        verdict = diagnose(tmp_path).verdict
        guard.close()
        assert (verdict == "interrupted") is (name == "SIGTERM")
        assert signal.getsignal(sent) is theirs
    finally:
        signal.signal(sent, before)


def a_guard(run_dir: Path | None = None, seed: int = 0, **options: Any) -> tuple[Any, Any, Guard]:
    model = make_net(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    options.setdefault("snapshots", Snapshots(every=5, disk_share=1.0))
    return model, optimizer, Guard(model, optimizer, run_dir=run_dir, **options)


def train(model: Any, optimizer: Any, guard: Guard, steps: int = 12) -> None:
    for batch in guard(batches(steps)):
        squared_error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
def test_a_guard_that_nobody_closed_stops_listening_when_it_goes(tmp_path: Path) -> None:
    gc.collect()
    listening = signal.getsignal(signal.SIGTERM)
    model, optimizer, guard = a_guard(tmp_path)
    train(model, optimizer, guard, 3)
    assert signal.getsignal(signal.SIGTERM) is not listening
    del model, optimizer, guard
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) is listening


def test_nothing_to_resume_is_a_fresh_start(tmp_path: Path) -> None:
    model, optimizer, guard = a_guard(tmp_path / "new")
    before = state_of(model, optimizer)
    assert guard.resume() == 0
    assert guard.resume(tmp_path / "elsewhere") == 0
    assert_same(before, state_of(model, optimizer))
    guard.close()


def test_without_a_directory_there_is_nothing_to_resume_from() -> None:
    _, _, guard = a_guard()
    with guard, pytest.raises(UsageError, match=r"guard\.resume\(\) needs a run directory"):
        guard.resume()


def test_another_model_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    model, optimizer, guard = a_guard(tmp_path)
    with guard:
        train(model, optimizer, guard)
    other = torch.nn.Linear(6, 1)
    before = {name: p.clone() for name, p in other.state_dict().items()}
    with (
        Guard(other, torch.optim.Adam(other.parameters()), run_dir=tmp_path) as guard,
        pytest.raises(UsageError, match="the snapshot belongs to another model: bias"),
    ):
        guard.resume()
    assert_same(before, dict(other.state_dict()))


def test_the_ladder_and_the_history_survive(tmp_path: Path) -> None:
    model, optimizer, guard = a_guard(tmp_path)
    with guard:
        train(model, optimizer, guard, 40)
        limit = guard._session.optimizer_steps[id(optimizer)].history.limit()
        guard._session.recorder.ladder().roll_backs.append(3)
        guard._session.recovery.snapshotter.save(guard.step)
    _, optimizer, guard = a_guard(tmp_path, seed=9)
    with guard:
        assert guard.resume() == 40
        assert guard.step == 40
        assert guard._session.optimizer_steps[id(optimizer)].history.limit() == limit
        assert list(guard._session.recorder.ladder().roll_backs) == [3]
    (event,) = events_of(tmp_path, "resumed")
    assert event.data["steps"] == 40


def test_what_the_guard_was_not_given_this_time_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    options: Any = {"run_dir": tmp_path, "snapshots": Snapshots(every=5, disk_share=1.0)}
    with Guard(model, optimizer, scheduler, **options) as guard:
        train(model, optimizer, guard)
    with Guard(model, optimizer, **options) as guard:
        assert guard.resume() == 10
    assert "state that this guard does not track: scheduler" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_can_be_terminated_and_writes_nothing(tmp_path: Path) -> None:
    model, optimizer, guard = a_guard(tmp_path)
    for batch in guard(batches(3)):
        squared_error(model, batch).backward()
        optimizer.step()
    child = os.fork()
    if child == 0:
        try:
            guard.findings  # noqa: B018 - what a child may do
            squared_error(model, batches(1)[0]).backward()
            optimizer.step()
            time.sleep(20)  # until it is terminated
        finally:
            os._exit(9)
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    guard.close()
    assert diagnose(tmp_path).verdict != "failed"
    steps = (tmp_path / "steps.rank0.jsonl").read_text().splitlines()
    assert len(steps) == 3
