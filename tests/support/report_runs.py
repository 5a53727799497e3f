"""Runs for reports to be made of: a sick one with everything in it, and a hostile one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Record,
    SetupRecord,
    StepRecord,
)
from headway.core.signals import SYSTEM_SIGNALS, Signal
from headway.engine import Engine
from headway.report import Report
from headway.rundir.writer import RunDirWriter

BAD = 83
LAYERS = [f"blocks.{number}.{part}" for number in range(6) for part in ("weight", "bias")]
SCRIPT = "<script>window.pwned = 1</script>"
NASTY = (
    SCRIPT,
    "</script><img src=x onerror='window.pwned = 2'>",
    "../../../etc/passwd",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "evil\u202egnp.exe\u2066",
    "-->\u2028<!--<script>",
    "quo\"te' onmouseover=alert(1)",
    "x" * 5000,
)


def write(folder: Path, records: Iterable[Record]) -> Path:
    """A run directory of these records."""
    writer = RunDirWriter(folder, notify=pytest.fail)
    for record in records:
        writer.write(record)
    writer.flush()
    return folder


def _header(names: Iterable[str], signals: Iterable[str], facts: dict[str, Any]) -> Header:
    described = {name: Signal() for name in signals}
    return Header("headway", described, {"param": list(names)}, facts)


def incident(step: int, text: str = "kl = p * (p.log() - logq)") -> dict[str, Any]:
    """What a replay writes down."""
    tensor = {
        "name": "batch[1]",
        "role": "batch",
        "shape": [8, 4],
        "dtype": "float32",
        "low": 0.0,
        "high": 0.5,
        "nan": 0,
        "inf": 0,
        "zero": 1,
    }
    return {
        "step": step,
        "symptom": "nonfinite",
        "nature": "deterministic",
        "headline": "Log of 0: 1 of 32 inputs is exactly 0, at losses.py:178, sample 4.",
        "origins": [
            {
                "kind": "log-of-zero",
                "phase": "forward",
                "op": "log",
                "module": "",
                "place": {
                    "file": "/home/me/losses.py",
                    "line": 178,
                    "function": "kl",
                    "source": text,
                },
                "inputs": [tensor],
                "output": {**tensor, "name": "output", "inf": 1, "low": -1.9, "high": -0.7},
                "rows": [4],
            }
        ],
        "trials": [
            {"text": "At losses.py:178 clamp `p`", "tried": "cured", "why": ""},
            {"text": "Run the loss in float32", "tried": "not cured", "why": "still -Inf"},
            {"text": "Lower the rate", "tried": "not tried", "why": "the loss itself was bad"},
        ],
        "guilt": "batch",
        "samples": [1043],
    }


def sick_records() -> list[Record]:
    """A hundred and twenty steps; at one of them a NaN, held back, run again and explained."""
    signals = ("loss", "grad_norm", "lr", "loss_scale", "clip_coef", "incident", "param/grad_norm")
    stream: list[Record] = [_header(LAYERS, signals, {"torch": "2.13.0", "models": ["Speller"]})]
    seq = 1
    for step in range(120):
        bad = step == BAD
        wave = 0.03 * math.sin(step * 1.7)
        values = {
            "loss": math.nan if bad else 3.0 / (1 + step / 30) + wave,
            "loss/ce": math.nan if bad else 2.5 / (1 + step / 30) + wave,
            "loss/kl": 0.5 / (1 + step / 30),
            "eval/accuracy": step / 150,
            "grad_norm": math.nan if bad else 1.5 + 10 * wave,
            "clip_coef": 0.6,
            "lr": 0.001 * min(step + 1, 20) / 20,
            "loss_scale": 65536.0,
            "host_rss_bytes": 4e8 + 1e5 * step,
        }
        columns = {}
        if step % 10 == 0 or bad:
            norms = [0.01 * (at + 1) * (1 + wave) for at in range(len(LAYERS))]
            norms[3] = math.nan if bad else norms[3]
            columns["param/grad_norm"] = Column(norms)
            columns["param/update_ratio"] = Column([norm / 50 for norm in norms])
        stream.append(StepRecord(0, seq, step, values, columns, held=bad))
        seq += 1
        if bad:
            reason = {"action": "skip", "reason": "non-finite loss or gradient"}
            stream.append(EventRecord(0, seq, step, "action", reason))
            stream.append(EventRecord(0, seq + 1, step, "incident", incident(step)))
            seq += 2
    return stream


def sick_run(folder: Path) -> Report:
    """The report on it."""
    return headway.diagnose(write(folder, sick_records()))


def spiked_run(folder: Path) -> Report:
    """Four thousand steps at two speeds with a cosine rate; one value of the loss is a spike."""
    signals = ("loss", "lr", "step_time_s", "samples_per_s", "tokens_per_s", "param/grad_norm")
    stream: list[Record] = [_header(LAYERS, signals, {})]
    for step in range(4000):
        values = {
            "loss": 400.0 if step == 1500 else 2 / (1 + step / 400) + 0.1 * math.sin(step * 1.7),
            "lr": 1.5e-4 * (1 + math.cos(math.pi * step / 4000)),
            "step_time_s": 0.5 if step < 2000 else 1.0,
            "samples_per_s": 64.0 if step < 2000 else 32.0,
            "tokens_per_s": 6400.0 if step < 2000 else 3200.0,
        }
        columns = {}
        if step % 10 == 0:
            columns["param/grad_norm"] = Column([0.01 * (at + 1) for at in range(len(LAYERS))])
        stream.append(StepRecord(0, step + 1, step, values, columns))
    return headway.diagnose(write(folder, stream))


def well_run(folder: Path) -> Report:
    """A healthy run of two signals."""
    stream: list[Record] = [_header((), ("loss", "grad_norm"), {})]
    for step in range(80):
        values = {"loss": 2.0 - step / 200, "grad_norm": 1.0 + 0.1 * math.sin(step)}
        stream.append(StepRecord(0, step + 1, step, values))
    return headway.diagnose(write(folder, stream))


def hostile_run(folder: Path) -> Report:
    """Every name and every text is somebody's attempt; numbers are as large as they get."""
    facts: dict[str, Any] = {name[:60]: name for name in NASTY}
    facts["huge"] = 10**400
    stream: list[Record] = [_header(NASTY, ("loss", "grad_norm", "incident"), facts)]
    huge = (1.7e308, -1.7e308, 5e-324, math.inf, -math.inf, math.nan, 0.0, 1.0)
    for step in range(80):
        value = huge[step % len(huge)] if step > 40 else 1.0
        values = {"loss": value, "grad_norm": abs(value), "lr": 5e-324}
        values |= {f"loss/{name}": value for name in NASTY}
        columns = {"param/grad_norm": Column([value] * len(NASTY))}
        stream.append(StepRecord(0, 3 * step + 1, step, values, columns))
        text = NASTY[step % len(NASTY)]
        action = {"action": text, "reason": text}
        stream.append(EventRecord(0, 3 * step + 2, step, "action", action))
    told = incident(60, SCRIPT)
    told["headline"] = SCRIPT
    told["origins"][0] |= {"op": SCRIPT, "module": NASTY[1], "rows": [10**400, SCRIPT]}
    told["trials"][0]["text"] = NASTY[4]
    told["origins"][0]["place"]["file"] = "/etc/passwd"
    stream.append(EventRecord(0, 1000, 60, "incident", told))
    return headway.diagnose(write(folder, stream))


def only_a_loss(folder: Path) -> Report:
    """A log that holds a step and a loss, and nothing more."""
    folder.mkdir(parents=True)
    rows = [f'{{"step": {step}, "loss": {2.0 - step / 100}}}' for step in range(60)]
    (folder / "log.jsonl").write_text("\n".join(rows) + "\n")
    return headway.diagnose(folder / "log.jsonl")


def nothing(folder: Path) -> Report:
    """A report without any run behind it."""
    return Report.from_engine(Engine(), command="check")


BUSY_NAMES = ["embed.weight", *(f"blocks.{at}.fc.weight" for at in range(5)), "head.weight"]
BUSY_TYPES = ["Embedding", *["Linear"] * 6]
BUSY_BAD, BUSY_DRIFT = 700, 620
"""The step with the NaN, and the one from which a layer's gradient grows."""


def busy_records() -> list[Record]:
    """Eight hundred steps on a GPU with the load of the machine; one layer grows, then a NaN."""
    signals = (
        *("loss", "grad_norm", "step_time_s", "samples_per_s", "loader_wait_s", "incident"),
        *("gpu_busy_share", "gpu_power_w", "gpu_temperature_c", "gpu_memory_used_bytes"),
        *("process_cpu_cores", "host_cpu_cores", "disk_read_bytes_per_s"),
        *("param/grad_norm", "param/update_ratio", "param/weight_norm"),
    )
    named = {"names": BUSY_NAMES, "types": BUSY_TYPES}
    stream: list[Record] = [_header(BUSY_NAMES, signals, {})]
    stream.append(SetupRecord(0, 0, "parameters", named))
    for step in range(800):
        bad = step == BUSY_BAD
        wave = math.sin(step * 1.7)
        values = {
            "loss": math.nan if bad else 2 / (1 + step / 200) + 0.02 * wave,
            "grad_norm": math.nan if bad else 1.0 + 0.1 * wave,
            "step_time_s": 0.25,
            "samples_per_s": 256.0,
            "loader_wait_s": 0.05 if step < 400 else 0.2,
        }
        if step % 4 == 0:
            values |= {
                "gpu_busy_share": 0.9 if step < 400 else 0.3,
                "gpu_power_w": 300.0 if step < 400 else 120.0,
                "gpu_temperature_c": 61.0 + wave,
                "gpu_memory_used_bytes": 4e9,
                "process_cpu_cores": 1.2,
                "host_cpu_cores": 3.5 + wave,
                "disk_read_bytes_per_s": 2e6 * (1 + wave),
            }
        columns = {}
        if step % 10 == 0 or bad:
            norms = [0.1 * (at + 1) * (1 + 0.1 * wave) for at in range(len(BUSY_NAMES))]
            if step >= BUSY_DRIFT:
                norms[3] *= 10 ** ((step - BUSY_DRIFT + 20) / 40)
            if bad:
                norms[3:] = [math.nan] * len(norms[3:])
            columns["param/grad_norm"] = Column(norms)
        if step % 10 == 0 and not bad:  # a few tensors of all, in rotation
            at = step // 10 % len(BUSY_NAMES)
            some = [at, (at + 1) % len(BUSY_NAMES)]
            columns["param/update_ratio"] = Column([1e-3, 2e-3], some)
            columns["param/weight_norm"] = Column([5.0 + one for one in some], some)
        stream.append(StepRecord(0, 2 * step + 1, step, values, columns, held=bad))
        if bad:
            stream.append(EventRecord(0, 2 * step + 2, step, "action", {"action": "skip"}))
    return stream


def busy_run(folder: Path) -> Report:
    """The report on it."""
    return headway.diagnose(write(folder, busy_records()))


def ranks_run(folder: Path, ranks: int = 4, hosts: int = 1) -> Report:
    """Ranks with a GPU each; the last one is half as busy as the others."""
    signals = {name: Signal() for name in ("loss", "grad_norm", "host_rss_bytes", *SYSTEM_SIGNALS)}
    for rank in range(ranks):
        writer = RunDirWriter(folder, rank=rank, notify=pytest.fail)
        facts = {"host": f"node-{rank * hosts // ranks}"}
        writer.write(Header("headway", signals, {}, facts, world_size=ranks))
        for step in range(400):
            values = {"loss": 2.0 / (1 + step / 50), "grad_norm": 1.0}
            if step % 4 == 0:
                idle = 0.5 if rank == ranks - 1 else 1.0
                values["host_rss_bytes"] = 2.0e9 + 1e8 * rank
                values["process_cpu_cores"] = 1.0 + rank / 10
                values["host_cpu_cores"] = 6.0
                values["host_memory_used_bytes"] = 4e10 + 1e9 * (rank * hosts // ranks)
                values["gpu_busy_share"] = 0.9 * idle
                values["gpu_power_w"] = 300.0 * idle + step % 8
            writer.write(StepRecord(0, step + 1, step, values, rank=0))
        writer.flush()
        writer.close()
    return headway.diagnose(folder)


def many_ranks_run(folder: Path) -> Report:
    """More ranks than there are curves in a chart."""
    return ranks_run(folder, 16, 2)
