"""An exception that ends a run is recorded with the user's line, wherever it leaves the code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import warm_python
from support.paired_trainings import events_of
from support.trainings import nothing_else_trains
from torch import nn

from headway.config import Settings
from headway.errors import TrainingHalted
from headway.guard.endings import failure
from headway.guard.guard import Guard
from headway.guard.script.guarded_run import run_guarded
from headway.postmortem.diagnose import diagnose
from headway.preflight.runner import run_check

THIS = Path(__file__).name


def train(steps: int = 3, *, fail: Callable[[], Any] | None = None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if fail is not None:
        fail()


def fail_with(error: BaseException) -> Callable[[], Any]:
    def fail() -> None:
        raise error  # the line that every finding must name

    return fail


FAILING_LINE = fail_with(ValueError()).__code__.co_firstlineno + 1


def guarded(error: BaseException, run_dir: Path | None = None) -> Any:
    with nothing_else_trains():
        return run_guarded(
            lambda: train(fail=fail_with(error)), settings=Settings(), run_dir=run_dir
        )


def test_a_crash_under_run_names_the_users_line(tmp_path: Path) -> None:
    done = guarded(ValueError("wrong"), tmp_path)
    assert done.report.verdict == "failed"
    (finding,) = [item for item in done.report.findings if item.code == "HD911"]
    assert (Path(str(finding.where.file)).name, finding.where.line) == (THIS, FAILING_LINE)
    assert finding.message == "ValueError: wrong"
    assert any("raise error" in line and line.startswith(">") for line in finding.evidence["frame"])
    assert done.status == 1
    (end,) = events_of(tmp_path, "end")
    assert end.data == {"steps": 3, "status": "failed", "exit": 1}
    read = diagnose(tmp_path)
    assert read.verdict == "failed"
    assert read.to_dict()["verdict"] == "failed"
    assert [(item.code, item.where.line) for item in read.findings if item.code == "HD911"] == [
        ("HD911", FAILING_LINE)
    ]


def test_a_crash_under_check_names_the_users_line() -> None:
    done = run_check(lambda: train(2, fail=fail_with(ValueError("wrong"))))
    assert done.report.verdict == "failed"
    assert [item.where.line for item in done.report.findings if item.code == "HD911"] == [
        FAILING_LINE
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(5), 5),
        (SystemExit("why"), 1),
        (ValueError(), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (SystemExit(0), 0),
        (SystemExit(None), 0),
        (TrainingHalted("halted"), 1),
    ],
)
def test_run_has_the_status_of_the_script(error: BaseException, status: int) -> None:
    assert guarded(error).status == status


@pytest.mark.parametrize(
    ("error", "number"), [(KeyboardInterrupt(), 2), (SystemExit(130), 2), (SystemExit(143), 15)]
)
def test_an_interruption_is_information(tmp_path: Path, error: BaseException, number: int) -> None:
    done = guarded(error, tmp_path)
    assert done.report.verdict == "interrupted"
    assert [str(item.severity) for item in done.report.findings if item.code == "HD915"] == ["info"]
    assert not [item for item in done.report.findings if item.code == "HD911"]
    (end,) = events_of(tmp_path, "end")
    assert end.data["status"] == "interrupted"
    assert end.data["signal"] == number


@pytest.mark.slow
def test_an_interruption_never_blames_a_missing_optimizer_step() -> None:
    def work() -> None:
        nn.Linear(2, 1)(torch.randn(2, 2)).sum().backward()
        raise KeyboardInterrupt

    for done in (run_guarded(work, settings=Settings()), run_check(work)):
        assert "interrupted" in str(done.unreached)
        assert "optimizer.step" not in str(done.unreached)
        assert done.report.verdict == "interrupted"


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(None)])
def test_a_script_that_leaves_with_0_has_finished(tmp_path: Path, error: BaseException) -> None:
    work = lambda: train(8, fail=fail_with(error))  # noqa: E731
    done = run_guarded(work, settings=Settings(), run_dir=tmp_path)
    assert done.report.verdict == "healthy"
    (end,) = events_of(tmp_path, "end")
    assert end.data["status"] == "finished"


@pytest.mark.slow
def test_a_caught_exception_is_no_crash(tmp_path: Path) -> None:
    def work() -> None:
        try:
            train(fail=fail_with(ValueError("expected")))
        except ValueError:
            train(8)

    done = run_guarded(work, settings=Settings(), run_dir=tmp_path)
    assert done.report.verdict == "healthy"
    assert not events_of(tmp_path, "crash")


@pytest.mark.slow
def test_a_crash_before_a_resume_is_not_how_the_run_ended(tmp_path: Path) -> None:
    guarded(ValueError("first"), tmp_path)
    run_guarded(train, settings=Settings(), run_dir=tmp_path)
    report = diagnose(tmp_path)
    assert report.verdict == "findings"
    assert [item.code for item in report.findings] == ["HD911"]


def make_guard(run_dir: Path) -> Guard:
    model = nn.Linear(4, 2)
    return Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=run_dir)


@pytest.mark.parametrize("error", [ValueError("wrong"), MemoryError()])
def test_a_guard_that_has_failed_records_the_exception(tmp_path: Path, error: Exception) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, run_dir=tmp_path)
    guard._protected.switch_off("a bug")
    with pytest.raises(type(error)), guard:
        raise error
    report = diagnose(tmp_path)
    assert report.verdict == "failed"
    code = "HD809" if isinstance(error, MemoryError) else "HD911"
    assert [item.code for item in report.findings] == [code]


def test_an_exception_that_cannot_be_recorded_is_still_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(failure, "_recognise", fail)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.delenv("HEADWAY_STRICT", raising=False)
    with pytest.raises(ValueError, match="wrong"), Guard(model, optimizer, run_dir=tmp_path):
        raise ValueError("wrong")
    (finding,) = diagnose(tmp_path).findings
    assert finding.code == "HD911"
    assert finding.message.startswith("ValueError: wrong")


def test_a_guard_that_is_dropped_has_finished(tmp_path: Path) -> None:
    make_guard(tmp_path).close()
    assert [end.data["status"] for end in events_of(tmp_path, "end")] == ["finished"]


def test_the_hooks_are_chained_and_removed(tmp_path: Path) -> None:
    before = (sys.excepthook, threading.excepthook)
    guard = make_guard(tmp_path)
    assert sys.excepthook is not before[0]
    guard.close()
    assert (sys.excepthook, threading.excepthook) == before


SCRIPT = """
import os, sys, threading, traceback
import torch, torch.multiprocessing as mp
from torch import nn
import headway

def work(rank=0):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = headway.Guard(model, optimizer, run_dir=sys.argv[2])
    for step in range(9):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3 and sys.argv[1].startswith(("sys.exit", "os._exit")):
            name, _, status = sys.argv[1].partition(" ")
            {"sys.exit": sys.exit, "os._exit": os._exit}[name](int(status))
        if step == 3 and sys.argv[1] != "unclosed":
            raise KeyboardInterrupt if sys.argv[1] == "interrupt" else ValueError("wrong")

if __name__ == "__main__":
    if sys.argv[1] == "thread":
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    elif sys.argv[1] == "spawn":
        mp.spawn(work, nprocs=1)
    elif sys.argv[1] == "handled":
        try:
            work()
        except ValueError:
            traceback.print_exc()
            sys.exit(1)
    else:
        work()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ("plain", "failed"),
        ("thread", "failed"),
        ("spawn", "failed"),
        ("interrupt", "interrupted"),
        ("handled", "failed"),
        ("unclosed", "healthy"),
    ],
)
def test_a_guard_without_with_records_the_exception(tmp_path: Path, how: str, verdict: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    run = tmp_path / "run"
    done = warm_python.run([sys.executable, str(script), how, str(run)])
    report = diagnose(run)
    assert report.verdict == verdict, done.stderr
    if verdict == "failed":
        assert "ValueError: wrong" in done.stderr  # the traceback is still printed
        (finding,) = [item for item in report.findings if item.code == "HD911"]
        assert finding.where.line == 1 + SCRIPT.splitlines().index(
            '            raise KeyboardInterrupt if sys.argv[1] == "interrupt" else '
            'ValueError("wrong")'
        )
        assert finding.step == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "verdict", "code"),
    [
        ("sys.exit 3", "failed", "HD911"),
        ("sys.exit 143", "interrupted", "HD915"),
        ("sys.exit 0", "unknown", None),
        ("os._exit 3", "failed", "HD913"),
        ("os._exit 0", "unknown", None),
    ],
)
def test_a_guard_without_with_sees_how_the_process_leaves(
    tmp_path: Path, how: str, verdict: str, code: str | None
) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(textwrap.dedent(SCRIPT))
    done = warm_python.run([sys.executable, str(script), how, str(run)])
    assert done.returncode == int(how.split()[1]), done.stderr
    report = diagnose(run)
    assert report.verdict == verdict
    assert [item.code for item in report.findings] == ([] if code is None else [code])
    for finding in report.findings:
        assert finding.where.line == 1 + SCRIPT.splitlines().index(
            '            {"sys.exit": sys.exit, "os._exit": os._exit}[name](int(status))'
        )


def leave_while_handling() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        raise SystemExit(3)  # noqa: B904 - as scripts do


def test_the_exception_that_was_handled_when_the_script_left_is_the_cause(tmp_path: Path) -> None:
    with nothing_else_trains():
        done = run_guarded(
            lambda: train(fail=leave_while_handling), settings=Settings(), run_dir=tmp_path
        )
    assert done.status == 3
    (finding,) = [item for item in done.report.findings if item.code == "HD911"]
    assert finding.message == "ValueError: wrong"
    assert finding.where.line == leave_while_handling.__code__.co_firstlineno + 2
    (end,) = events_of(tmp_path, "end")
    assert end.data == {"steps": 3, "status": "failed", "exit": 3}


def test_a_common_error_of_torch_has_its_remedy() -> None:
    done = guarded(RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x400 and 784x10)"))
    (finding,) = [item for item in done.report.findings if item.code == "HD911"]
    assert [remedy.text for remedy in finding.remedies] == [
        "The layer expects 784 features and gets 400: set `in_features=400`, or check what is "
        "flattened before it."
    ]


class Compiled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4)


@pytest.mark.slow
def test_the_line_and_the_error_of_compiled_code() -> None:
    def work() -> None:
        train()
        torch.compile(Compiled(), backend="eager")(torch.ones(8, 3))

    with nothing_else_trains():
        done = run_guarded(work, settings=Settings())
    (finding,) = [item for item in done.report.findings if item.code == "HD911"]
    assert finding.where.line == Compiled.forward.__code__.co_firstlineno + 1
    assert finding.message.startswith("RuntimeError: ")
    assert "fake tensor" not in finding.message


class Mixed:
    """Batches of two sources; the second one is shorter than it is used."""

    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        yield next(iter(()))  # the line that ends the generator


def test_a_generator_that_stops_for_want_of_another_batch() -> None:
    with nothing_else_trains():
        done = run_guarded(lambda: train(fail=lambda: list(Mixed())), settings=Settings())
    (finding,) = [item for item in done.report.findings if item.code == "HD911"]
    assert finding.message == "RuntimeError: generator raised StopIteration"
    assert finding.where.line == Mixed.__iter__.__code__.co_firstlineno + 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup")
def test_the_exception_within_a_group_is_the_cause() -> None:
    async def both() -> None:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
            group.create_task(asyncio.sleep(0))
            group.create_task(fails())

    async def fails() -> None:
        fail_with(ValueError("wrong"))()

    with nothing_else_trains():
        done = run_guarded(lambda: train(fail=lambda: asyncio.run(both())), settings=Settings())
    (finding,) = [item for item in done.report.findings if item.code == "HD911"]
    assert (finding.message, finding.where.line) == ("ValueError: wrong", FAILING_LINE)


def test_what_is_raised_after_sigterm_is_no_crash(tmp_path: Path) -> None:
    """A worker that got the same signal has ended; without a guard nothing would be raised."""
    earlier = make_guard(tmp_path / "earlier")  # its handler is not the script's

    def fail() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    with nothing_else_trains():
        done = run_guarded(lambda: train(fail=fail), settings=Settings(), run_dir=tmp_path / "run")
    earlier.close()
    assert (done.report.verdict, done.status, done.error) == ("interrupted", 143, None)
    assert [item.code for item in done.report.findings] == ["HD915"]


def test_attempts_that_end_alike_have_failed(tmp_path: Path) -> None:
    """Their findings are one finding, which begins in the first attempt and ends the last one."""
    for _ in range(2):
        guarded(ValueError("wrong"), tmp_path)
    report = diagnose(tmp_path)
    assert report.verdict == "failed"
    (finding,) = [item for item in report.findings if item.code == "HD911"]
    assert finding.count == 2
    assert "2 times, at step 3" in str(report)
