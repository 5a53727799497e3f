"""A run with too many steps is screened, and what is found in it stays what it was."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.core.findings import Severity
from headway.engine import Engine
from headway.postmortem import diagnose as postmortem
from headway.rundir import triage
from headway.rundir.run_reader import RunDir
from headway.rundir.step_columns import decode_steps
from headway.rundir.triage import LongRun, RunScreen, SelectionLimits

STEPS, TENSORS, EVERY = 6000, 6, 10
SMALL = SelectionLimits(head=300, tail=300, stretch=60, stretches=12, most=4000)

Step = dict[str, Any]
Spoil = Callable[[int, Step], None]


def healthy(at: int, step: Step) -> None:
    pass


def one_nan(at: int, step: Step) -> None:
    if at == 3700:
        step["v"]["loss"] = "NaN"


def nan_from_there_on(at: int, step: Step) -> None:
    if at >= 3700:
        step["v"]["loss"] = step["v"]["grad_norm"] = "NaN"


def resumed_with_a_fresh_schedule(at: int, step: Step) -> None:
    if at >= 4800:
        step["seg"], step["v"]["lr"] = 1, 3e-4


def frozen(at: int, step: Step) -> None:
    for name, value in (("param/update_ratio", 0.0), ("param/weight_norm", 5.0)):
        if "c" in step:
            step["c"][name][3] = value


def held_back(at: int, step: Step) -> None:
    if 3600 < at < 3640:
        step["held"], step["v"]["grad_norm"] = True, "Infinity"


def one_tensor(at: int, step: Step) -> None:
    if at == 2707:
        step["v"] |= {"grad_norm": "NaN", "grad_nonfinite_tensors": 1.0}
        step["c"] = {"param/grad_norm": [0.1, 0.1, "NaN", 0.1, 0.1, 0.1]}


def _write(run: Path, spoil: Spoil, steps: int = STEPS) -> Path:
    rng = random.Random(1)
    plain = ("loss", "grad_norm", "lr", "grads_carried", "grad_nonfinite_tensors")
    columns = ("param/grad_norm", "param/weight_norm", "param/update_ratio")
    header = {
        "kind": "header",
        "schema": 1,
        "seg": 0,
        "seq": 0,
        "source": "headway",
        "signals": {name: {} for name in plain} | {name: {"every": EVERY} for name in columns},
        "axes": {"param": [f"layers.{at}.weight" for at in range(TENSORS)]},
    }
    run.mkdir()
    (run / "run.json").write_text(json.dumps(header))
    lines, events, segment = [], [], 0
    for at in range(steps):
        rate = 3e-4 * min(1, at / 200) * 0.5 * (1 + math.cos(math.pi * at / steps)) + 1e-6
        loss = 1.5 + 2.5 / (1 + at / 120) + rng.gauss(0, 0.05)
        norm = abs(0.8 + rng.gauss(0, 0.1))
        step: Step = {"seg": 0, "seq": at + 1, "step": at}
        step["v"] = {"loss": loss, "grad_norm": norm, "lr": rate}
        if at % EVERY == 0:
            step["c"] = {
                "param/grad_norm": [norm * (0.2 + 0.02 * i) for i in range(TENSORS)],
                "param/weight_norm": [3.0 + i + at * 1e-5 for i in range(TENSORS)],
                "param/update_ratio": [rate * 3 * (1 + rng.gauss(0, 0.05)) for _ in range(TENSORS)],
            }
        spoil(at, step)
        if step["seg"] != segment:
            segment = step["seg"]
            events.append(json.dumps(header | {"seg": segment, "seq": at + 1}))
        lines.append(json.dumps(step))
    (run / "steps.rank0.jsonl").write_text("\n".join(lines) + "\n")
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in events))
    return run


def _told(engine: Engine) -> list[tuple[str, int | None]]:
    return [(item.code, item.step) for item in engine.findings if item.severity > Severity.INFO]


SPOILT = [
    healthy,
    one_nan,
    nan_from_there_on,
    resumed_with_a_fresh_schedule,
    frozen,
    held_back,
    one_tensor,
]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_the_same_is_found(tmp_path: Path, spoil: Spoil) -> None:
    run = _write(tmp_path / "run", spoil)
    whole = Engine()
    whole.run(RunDir(run).records())
    long = LongRun.of(run, SMALL, long=1000)
    assert long is not None
    assert long.steps == STEPS
    assert long.close <= 4400
    screened = Engine(distance=long.distance)
    screened.run(RunDir(run).records(long.records()))
    assert _told(screened) == _told(whole)
    assert bool(_told(whole)) == (spoil is not healthy)


def test_turns_and_held_steps_are_looked_at() -> None:
    """In a run whose numbers are the same at every step."""
    screen = RunScreen()
    for piece in range(0, 40_000, 1000):
        lines = [
            json.dumps(
                {
                    "seg": int(at >= 20_011),
                    "seq": at,
                    "step": at - 5000 * (at >= 30_022),
                    "v": {"loss": 1.0},
                    "held": at == 10_033,
                }
            ).encode()
            for at in range(piece, piece + 1000)
        ]
        screen.feed(decode_steps(lines))
    assert sorted(set(screen.places())) == [10_033, 20_011, 30_022]


def test_a_short_run_is_looked_at_whole(tmp_path: Path) -> None:
    assert LongRun.of(_write(tmp_path / "run", healthy, 500), long=500) is None
    assert LongRun.of(tmp_path / "nowhere") is None


def test_the_report_says_so_and_reads_the_steps_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _write(tmp_path / "run", one_nan)
    with open(run / "steps.rank0.jsonl", "ab") as file:
        file.write(b'\x00\xff\n{"seg":0,"se')
    monkeypatch.setattr(postmortem, "SHORT", 1000)
    monkeypatch.setattr(triage, "LONG_RUN_STEPS", 1000)
    monkeypatch.setattr(triage, "SelectionLimits", lambda: SMALL)
    report = postmortem.diagnose(run)
    assert [item.code for item in report.causes] == ["HD101"]
    assert any(f"of {STEPS} steps were checked in detail" in note for note in report.notes)
    assert "1 of 6001 lines skipped: damaged" in report.notes
    (run / "steps.rank0.jsonl").unlink()
    assert report.charts is not None
    assert report.charts().series["loss"].gaps()[0].first == 3700


def test_lines_that_are_no_steps_move_nothing(tmp_path: Path) -> None:
    run = _write(tmp_path / "run", one_nan)
    path = run / "steps.rank0.jsonl"
    lines = path.read_bytes().split(b"\n")
    for at in (4000, 1500, 1500, 10):
        lines[at:at] = [b"", b"\x00\xff torn", b"[]"]
    path.write_bytes(b"\n".join(lines))
    long = LongRun.of(run, SMALL, long=1000)
    assert long is not None
    assert long.torn == 8
    records = {record.seq: record for record in long.records()}
    assert len(records) == long.close
    assert all(record.seq == record.step + 1 for record in records.values())
    assert {3401, 3701, 3790} <= records.keys()
