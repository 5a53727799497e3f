"""Progress: a line on a terminal, and nothing on a pipe."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.cli.script_command import StepProgress
from headway.core.findings import Finding, Severity, Where
from headway.core.records import StepRecord
from headway.logs.log_file import open_log, share_read
from headway.output import terminal
from headway.output.terminal import StatusLine, format_seconds, spinner

CLEAR = "\r\x1b[2K"
needs_terminal = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stdout and stderr of one terminal; called in the test, because pytest sets them before it."""
    shared = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shared)
    monkeypatch.setattr(sys, "stdout", shared)
    monkeypatch.setattr(terminal, "REDRAW_SECONDS", 0.0)
    return shared


def test_what_a_script_prints_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_screen(monkeypatch)
    line = StatusLine()
    with line.among_output():
        line.show("step 1 of 3")
        print("epoch 0")
        line.show("step 2 of 3")
        print("50%", end="")  # a bar of the script's own
        line.show("step 3 of 3")
        print("\r100%")
        line.show("the end")
    assert screen.getvalue() == (
        f"{CLEAR}step 1 of 3{CLEAR}epoch 0\n{CLEAR}step 2 of 3{CLEAR}50%\r100%\n"
        f"{CLEAR}the end{CLEAR}"
    )
    print("after")
    assert screen.getvalue().endswith("the end" + CLEAR + "after\n"), "streams are as before"
    assert "write" not in vars(screen)


def test_a_long_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_screen(monkeypatch)
    monkeypatch.setenv("COLUMNS", "30")
    StatusLine().show("x" * 100 + "\n\x1b[31m")
    assert screen.getvalue() == CLEAR + "x" * 29


@pytest.mark.parametrize("term", ["dumb", None])
def test_nothing_without_a_terminal(term: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal() if term else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term or "xterm")
    with spinner("reading", delay_s=0):
        StatusLine().show("step 1")
    assert stream.getvalue() == ""


def test_the_share_of_a_log_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_screen(monkeypatch)
    path = tmp_path / "train.log"
    path.write_text("x" * 1000, encoding="utf-8")
    assert share_read() is None
    with open_log(path) as file, spinner("reading", delay_s=0.01, share=share_read):
        file.read(250)
        assert share_read() == 0.25
        end = time.monotonic() + 60
        while "25 %" not in screen.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert re.search(r"reading, 25 %, \d+:\d\d elapsed, about \d+:\d\d left", screen.getvalue())
    assert share_read() is None


@pytest.mark.parametrize(
    ("limits", "steps", "text"),
    [
        ((10, None, None), [(0, 5.0), (3, 11.0)], "step 4 of 10, 0:11 elapsed, about 0:12 left"),
        (
            (400, None, 30.0),
            [(0, 5.0), (2, 7.0)],
            "step 3 of at most 400, 0:07 elapsed, about 0:28",
        ),
        ((None, 60.0, None), [(0, 5.0)], "step 1, 0:05 elapsed, about 0:55 left"),
        ((None, None, None), [(0, 5.0), (7, 3700.0)], "step 8, 1:01:40 elapsed"),
    ],
)
def test_step_elapsed_and_remaining_time(
    limits: tuple[int | None, float | None, float | None],
    steps: list[tuple[int, float]],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = make_screen(monkeypatch)
    now = 0.0
    monkeypatch.setattr("headway.cli.script_command.time.monotonic", lambda: now)
    progress = StepProgress(*limits)
    for step, now in steps:  # noqa: B007 - the clock reads it
        progress(StepRecord(0, step, step, {"loss": 1.0}))
    assert screen.getvalue().rpartition(CLEAR)[2].startswith(f"headway: {text}")


def test_first_findings_are_shown_while_the_script_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_screen(monkeypatch)
    progress = StepProgress(10)
    where = Where(file="/home/me/train.py", line=26)
    progress(StepRecord(0, 3, 3, {"loss": 1.0}))
    for code, severity in [
        ("HD303", Severity.ERROR),
        ("HD303", Severity.ERROR),
        ("HD316", Severity.INFO),
        ("HD207", Severity.WARNING),
        ("HD104", Severity.WARNING),
        ("HD105", Severity.WARNING),
    ]:
        progress.found(Finding(code, "a-name", severity, 3, "a message", where))
    shown = screen.getvalue().rpartition(CLEAR)[2].splitlines()
    assert shown == [
        f"headway: step 3: {c} a-name at train.py:26" for c in ("HD303", "HD207", "HD104")
    ]


def test_seconds() -> None:
    assert [format_seconds(value) for value in (-1, 7.9, 750, 3723)] == [
        "0:00",
        "0:07",
        "12:30",
        "1:02:03",
    ]


def on_terminal(folder: Path, *args: str, **environment: str) -> tuple[int, str]:
    """The exit code, and everything that a terminal gets."""
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "headway", *args],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1", **environment},
    ) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            parts.append(data)
        os.close(ours)
        return process.wait(), b"".join(parts).decode("utf-8", errors="replace")


@needs_terminal
@pytest.mark.parametrize("command", ["check", "run"])
def test_the_first_line_comes_before_torch_is_imported(tmp_path: Path, command: str) -> None:
    fake = tmp_path / "fake" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("print('TORCH IS LOADING')\nraise ImportError('not today')\n")
    (tmp_path / "train.py").write_text("print(1)\n")
    path = os.pathsep.join([str(fake.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    _, text = on_terminal(tmp_path, command, "train.py", PYTHONPATH=path)
    assert text.startswith(f"{CLEAR}headway: loading torch")
    assert "TORCH IS LOADING" in text
    done = subprocess.run(
        [sys.executable, "-m", "headway", command, "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
    )
    assert "loading torch" not in done.stderr + done.stdout
    assert "\x1b" not in done.stderr + done.stdout


TRAIN = """
import torch, time
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(32, 4)
    loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.25)
    print(f"my step {step} is over")
"""


@needs_terminal
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"), [(["check"], True), (["run"], False), (["run", "--progress"], True)]
)
def test_a_script_on_a_terminal(tmp_path: Path, command: list[str], shown: bool) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    status, text = on_terminal(tmp_path, *command, "train.py")
    assert status == 0, text
    seen = [int(step) for step in re.findall(r"headway: step (\d+)[, ]", text)]
    assert bool(seen) is shown, text
    assert ("headway: running train.py" in text) is (command == ["check"])
    assert seen == sorted(seen)
    for step in range(12):
        line = rf"(?:\n|\x1b\[2K)my step {step} is over\r?\n"
        assert re.search(line, text), "the lines of the script are whole"
    assert "Next: " in text
