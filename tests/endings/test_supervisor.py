"""`headway run` and `check` describe a process that vanished; `run` passes signals on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import warm_python
from support.signals import default_interrupt

from headway.postmortem.diagnose import diagnose
from headway.rundir.heartbeat import read_heartbeat

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="no supervision here"),
]

SCRIPT = """
import ctypes, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(640, 10), torch.randint(0, 3, (640,))), 64)
model = nn.Linear(10, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mode, mark = sys.argv[1], sys.argv[2]
first = not os.path.exists(mark)
open(mark, "a").write("x")

def end():
    if mode == "segfault":
        ctypes.string_at(0)  # the line
    if mode == "kill":
        os.kill(os.getpid(), 9)
    if mode == "exit":
        os._exit(3)
    if mode == "leave":
        os._exit(0)
    if mode == "once" and first:
        os.kill(os.getpid(), 9)
    if mode == "raise":
        raise ValueError("wrong")

for step, (x, y) in enumerate(loader):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 4:
        end()
    if mode == "wait" and step == 4:
        print("waiting", flush=True)
        while True:
            time.sleep(0.05)
            x.sum()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def command(script: Path, mode: str, *options: str) -> list[str]:
    folder = script.parent
    return [
        *(sys.executable, "-m", "headway", "run", *options, "--out", str(folder / "run")),
        *(str(script), "--", mode, str(folder / "mark")),
    ]


def run(script: Path, mode: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON output, stderr."""
    done = warm_python.run(
        command(script, mode, "--format", "json", *options),
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def check(script: Path, mode: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON output of `headway check`; temporary files go to a folder beside it."""
    (script.parent / "temporary").mkdir()
    done = warm_python.run(
        [
            *(sys.executable, "-m", "headway", "check", "--format", "json"),
            *(str(script), "--", mode, str(script.parent / "mark")),
        ],
        env={**os.environ, "TMPDIR": str(script.parent / "temporary")},
        timeout=300,
    )
    assert not list((script.parent / "temporary").glob("headway-check-*"))
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("segfault", "SIGSEGV"), ("kill", "SIGKILL"), ("exit", "os._exit(3)")],
)
def test_a_check_whose_process_vanishes(script: Path, mode: str, words: str) -> None:
    code, report = check(script, mode)
    assert code == 3
    assert (report["command"], report["verdict"], report["steps"]) == ("check", "failed", 5)
    assert report["causes"][0]["code"] == "HD913"
    (finding,) = [item for item in report["findings"] if item["code"] == "HD913"]
    assert words in finding["message"]
    assert finding["step"] == 4
    if mode == "segfault":
        line = 1 + SCRIPT.splitlines().index("        ctypes.string_at(0)  # the line")
        assert (finding["where"]["file"], finding["where"]["line"]) == (str(script), line)


def test_a_check_of_a_script_that_leaves_with_0(script: Path) -> None:
    code, report = check(script, "leave")
    assert code == 0
    assert report["steps"] == 5
    assert not [item for item in report["findings"] if item["code"] == "HD913"]


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("segfault", 139, "SIGSEGV"),
        ("kill", 137, "SIGKILL"),
        ("exit", 3, "os._exit(3)"),
    ],
)
def test_a_process_that_vanishes(script: Path, mode: str, status: int, words: str) -> None:
    code, report, _ = run(script, mode)
    assert code == status
    assert report["verdict"] == "failed"
    (finding,) = [item for item in report["findings"] if item["code"] == "HD913"]
    assert words in finding["message"]
    assert finding["step"] == 4
    if mode == "segfault":
        line = 1 + SCRIPT.splitlines().index("        ctypes.string_at(0)  # the line")
        assert (finding["where"]["file"], finding["where"]["line"]) == (str(script), line)
    again = diagnose(script.parent / "run")
    assert again.verdict == "failed"
    assert [item.message for item in again.findings if item.code == "HD913"] == [finding["message"]]


def test_leaving_with_0_is_a_normal_end(script: Path) -> None:
    code, report, _ = run(script, "leave")
    assert code == 0
    assert report["verdict"] == "unknown"  # 5 steps are too few to judge
    assert not report["findings"]
    steps = (script.parent / "run" / "steps.rank0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps] == [0, 1, 2, 3, 4]


def test_a_crash_is_reported_once_with_its_status(script: Path) -> None:
    code, report, error = run(script, "raise")
    assert code == 1
    assert report["verdict"] == "failed"
    assert [item["code"] for item in report["findings"]] == ["HD911"]
    assert "ValueError: wrong" in error


def test_a_killed_script_is_started_again(script: Path) -> None:
    code, report, error = run(script, "once", "--restarts", "2")
    assert code == 0, error
    assert "attempt 2 of 3" in error
    assert (script.parent / "mark").read_text() == "xx"
    assert report["verdict"] == "healthy"  # that of the last attempt
    whole = diagnose(script.parent / "run")
    assert whole.verdict == "findings"
    assert [item.code for item in whole.findings] == ["HD913"]


def test_a_script_that_always_fails_is_given_up(script: Path) -> None:
    code, report, _ = run(script, "raise", "--restarts", "1")
    assert code == 1
    assert (script.parent / "mark").read_text() == "xx"
    assert report["verdict"] == "failed"


@pytest.fixture
def waiting(script: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(script, "wait"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_interrupt,
    ) as process:
        assert process.stdout is not None
        while "waiting" not in process.stdout.readline():
            assert process.poll() is None
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_parent_reaches_the_script(
    script: Path, waiting: subprocess.Popen[str], number: int
) -> None:
    waiting.send_signal(number)
    if number == signal.SIGTERM:  # the guard waits for the end of the step; a second one is final
        time.sleep(2)
        waiting.send_signal(number)
    output, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 128 + number
    assert "headway: interrupted" in output
    assert diagnose(script.parent / "run").verdict == "interrupted"


PATIENT = """
import atexit, time
atexit.register(print, "the end")
caught = 0
print("waiting", flush=True)
for seconds in (60, 2):
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        caught += 1
print("caught", caught, flush=True)
"""


def test_a_suspended_run_continues_and_gets_a_signal_once(script: Path) -> None:
    script.write_text(PATIENT)
    with subprocess.Popen(
        command(script, "", "--format", "json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=default_interrupt,
    ) as process:
        assert process.stderr is not None
        while "waiting" not in process.stderr.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGSTOP)  # Ctrl-Z, or a scheduler that suspends the job
        time.sleep(1.5)
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(1.5)
        os.killpg(process.pid, signal.SIGINT)
        output, printed = process.communicate(timeout=120)
    assert "caught 1" in printed
    assert "the end" in printed
    assert json.loads(output)["command"] == "run"
    assert process.returncode == 0


def test_the_training_ends_with_its_supervisor(
    script: Path, waiting: subprocess.Popen[str]
) -> None:
    beat = read_heartbeat(script.parent / "run", 0)
    assert beat is not None
    assert beat.pid != waiting.pid
    waiting.kill()
    waiting.wait()
    # The guard keeps the first one, that of the kernel, for the end of the step. Two that arrive
    # before the process looks are one.
    time.sleep(2)
    os.kill(beat.pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while beat.is_alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not beat.is_alive()


def test_a_guard_that_nobody_supervised(script: Path) -> None:
    text = SCRIPT.replace(
        "for step",
        "import headway\nguard = headway.Guard(model, optimizer, run_dir=mark + 'run')\nfor step",
    )
    script.write_text(text)
    mark = script.parent / "mark"
    done = subprocess.run([sys.executable, str(script), "kill", str(mark)], check=False)
    assert done.returncode == -9
    report = diagnose(f"{mark}run")
    assert report.verdict == "failed"
    (finding,) = [item for item in report.findings if item.code == "HD913"]
    assert "ended without a record" in finding.message
    assert finding.step == 4


LATE = """
import atexit, pathlib, sys
import torch

PATHS = sys.argv[1:]

def finish():
    for path in PATHS:
        try:
            torch.save({"weight": torch.ones(2)}, path)  # the line
        except RuntimeError:
            if path == PATHS[-1]:
                raise

atexit.register(finish)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("names", [["none/a.pt"], ["none/a.pt", "a.pt"]])
def test_a_checkpoint_that_cannot_be_written_at_exit(tmp_path: Path, names: list[str]) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    paths = [str(tmp_path / name) for name in names]
    done = warm_python.run(
        [
            *(sys.executable, "-m", "headway", "run", "--out", str(tmp_path / "run")),
            *(str(script), "--", *paths),
        ],
        timeout=300,
    )
    assert done.returncode == 0
    found = [item for item in diagnose(tmp_path / "run").findings if item.code == "HD708"]
    if len(names) == 2:  # saved elsewhere
        assert not found
        return
    assert "HD708 checkpoint-not-saved" in done.stderr
    (finding,) = found
    assert f"{paths[0]} could not be saved: the folder does not exist" in finding.message
    line = 1 + [text.endswith("# the line") for text in LATE.splitlines()].index(True)
    assert (finding.where.file, finding.where.line) == (str(script), line)
