"""How many of our files and functions the interpreter enters for one piece of work.

    python benchmarks/files_passed.py

Three cases are measured on the CPU:

    healthy step   one step of a guarded training that has already made 30 steps
    NaN step       one step whose loss is NaN, from its batch to the printed fix
    diagnose       `headway.diagnose` and the printed report of a small JSONL log

A file counts when at least one of its functions is called; a function counts once, however often
it is called. Not counted: code that runs while a module is imported, comprehensions and generator
expressions, other threads, and anything outside of headway. The NaN step and diagnose are measured
the first time they happen in the process.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import Tensor, nn

import headway

OURS = f"{Path(str(headway.__file__)).parent}/"
NOT_FUNCTIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
WARM = 33
"""A step without the measurements that are made only every 10 or 25 steps."""


class Tracer:
    """Records which code objects of headway are entered between `start` and `stop`."""

    def __init__(self) -> None:
        self.entered: set[CodeType] = set()
        self._imports = 0

    def start(self) -> None:
        self._imports = 0
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return
        if code.co_name == "<module>":
            self._imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._imports and code.co_name not in NOT_FUNCTIONS:
            self.entered.add(code)

    @property
    def files(self) -> set[str]:
        return {code.co_filename.removeprefix(OURS) for code in self.entered}

    def __str__(self) -> str:
        return f"files {len(self.files)} functions {len(self.entered)}"


class Batches:
    """A loader that starts the tracer with one batch, and stops it with the batch after that."""

    def __init__(self, tracer: Tracer, count: int, traced: int) -> None:
        self.tracer, self.count, self.traced = tracer, count, traced

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for number in range(self.count):
            x = torch.randn(8, 6, generator=generator)
            if number == self.traced:
                self.tracer.start()
            elif number == self.traced + 1:
                self.tracer.stop()
            yield x, x.sum(dim=1, keepdim=True)


def trace_step(folder: Path, *, bad: bool) -> Tracer:
    """The step number `WARM` of a guarded training; the last one if it is to be bad."""
    tracer = Tracer()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = headway.Guard(model, optimizer, run_dir=folder)
    loader = Batches(tracer, WARM + (1 if bad else 3), WARM)
    for number, (x, y) in enumerate(guard(loader)):
        error = model(x) - y
        shift = 100.0 if bad and number == WARM else 0.0
        loss = torch.sqrt(error * error + 1.0 - shift).mean()
        guard.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    tracer.stop()
    guard.close()
    if bad and not any(item.remedies for item in guard.findings if item.where.line):
        raise RuntimeError("the bad step was not explained")
    return tracer


def trace_diagnose(folder: Path) -> Tracer:
    """A log of 60 rows whose loss is NaN from row 40 on."""
    log = folder / "log.jsonl"
    rows = [{"step": at, "loss": 3.0 - at / 40 if at < 40 else float("nan")} for at in range(60)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracer = Tracer()
    tracer.start()
    report = headway.diagnose(log)
    print(report)
    tracer.stop()
    return tracer


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        with contextlib.redirect_stderr(io.StringIO()):
            traced = {
                "healthy step": trace_step(folder / "healthy", bad=False),
                "NaN step": trace_step(folder / "bad", bad=True),
                "diagnose": trace_diagnose(folder),
            }
    for case, tracer in traced.items():
        print(f"{case}: {tracer}")


if __name__ == "__main__":
    main()
