"""The matrix of resumes: strategies x faults x moments of a kill or damage x numbers of ranks.

Every cell must end exact, or refused with a reason. `python -m support.resume_cells OUT.json` runs
all of them and writes what became of each; with a number as the second argument in a random order,
so that a run which is stopped early is a sample.
"""

from __future__ import annotations

import json
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from support.resumable_trainings import (
    BY_BUCKET,
    EPOCHS,
    RESIZABLE,
    SAME_DATA,
    SAME_SIZE,
    SAMPLES,
    STRATEGIES,
    Job,
    Result,
    run_job,
)
from support.snapshot_folders import complete_snapshots
from support.trainings import assert_same

DAMAGE = ("part missing", "part cut", "part changed", "manifest missing", "metadata missing", "all")


@dataclass(frozen=True)
class Cell:
    """One way to be interrupted and resumed."""

    strategy: str
    moment: str
    """`step N`, `write RANK OPERATION`, or what happens to the files afterwards."""
    size: int = 2
    after: int = 2
    fault: str = ""

    @property
    def name(self) -> str:
        fault = f", {self.fault}" if self.fault else ""
        return f"{self.strategy}, {self.size} to {self.after} ranks, {self.moment}{fault}"

    @property
    def expected(self) -> str:
        resized = self.size != self.after and self.strategy in SAME_SIZE
        return "refused" if resized or self.moment in ("all", "node local") else "exact"


def every_cell() -> list[Cell]:
    """All of them, those of one reference next to each other."""
    cells = []
    for strategy in STRATEGIES:
        for fault in ("", "nan"):
            cells += [Cell(strategy, f"step {at}", fault=fault) for at in (2, 6, 9)]
        cells += [Cell(strategy, what) for what in ("part missing", "all", "node local")]
        if strategy not in RESIZABLE:
            cells.append(Cell(strategy, "step 9", after=1))
    for strategy in ("ddp", "fsdp", "flat", "pipeline", "zero"):
        for rank in (0, 1):
            cells += [Cell(strategy, f"write {rank} {at}") for at in range(1, 11)]
    for strategy in ("ddp", "fsdp", "pipeline"):
        cells += [Cell(strategy, what) for what in DAMAGE if what not in ("part missing", "all")]
    for strategy in ("ddp", "fsdp", "by hand", "hsdp", "flat", "pipeline", "zero", "tensor"):
        cells += [Cell(strategy, f"step {at}", size=4, after=4) for at in (2, 5)]
    for strategy in RESIZABLE:
        for size, after in ((2, 4), (4, 2), (4, 1), (1, 2), (2, 1), (1, 4)):
            cells += [Cell(strategy, f"step {at}", size, after) for at in (5, 6)]
    for strategy in BY_BUCKET:
        cells += [Cell(strategy, f"step {at}", size=4, after=4) for at in (2, 5)]
        cells += [Cell(strategy, "step 6", fault="nan"), Cell(strategy, "step 5", 4, 2)]
    for size, after in ((4, 2), (2, 4)):
        cells += [Cell("hsdp", f"step {at}", size, after) for at in (5, 6)]
    return cells


class References:
    """Runs that nothing interrupts, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[str, int, str], list[Result]] = {}

    def of(self, cell: Cell) -> list[Result]:
        key = (cell.strategy, cell.size, cell.fault)
        if key not in self._known:
            run_dir = self._folder / f"reference{len(self._known)}"
            found = run_job(cell.size, Job(cell.strategy, run_dir, fault=cell.fault))
            self._known[key] = [one for one in found if one is not None]
            assert len(self._known[key]) == cell.size
        return self._known[key]


def judge(cell: Cell, references: References, folder: Path) -> str:
    """Interrupt, resume, compare: `exact`, or `refused` with the reason."""
    run_dir = folder / "run"
    job = Job(cell.strategy, run_dir, fault=cell.fault, node_local=cell.moment == "node local")
    kind, *numbers = cell.moment.split()
    if kind == "write":
        run_job(cell.size, job.but(kill_in_write=(int(numbers[0]), int(numbers[1]))))
    else:
        at = int(numbers[0]) if kind == "step" else 9
        # Damage to the newest snapshot leaves one to resume from only if two were written.
        written = 0 if kind in ("step", "node") else 2
        run_job(cell.size, job.but(kill_at=(cell.size - 1, at), kill_after=written))
    before = _seen(run_dir, 1 if cell.strategy in SAME_DATA else cell.size)
    damage(run_dir / "snapshots", cell.moment)
    steps = [step for _, step in complete_snapshots(run_dir / "snapshots")]
    results = run_job(cell.after, job.but(resume=True))
    refused = {one.refused for one in results if one is not None}
    if any(refused):
        assert len(results) == cell.after
        assert all(one is not None and one.refused and not one.losses for one in results)
        return f"refused: {min(refused)}"
    resumed = [one for one in results if one is not None]
    assert len(resumed) == cell.after
    (start,) = {one.start for one in resumed}
    assert start == max(steps, default=0), "the newest complete snapshot is the one to use"
    compare(cell, references.of(cell), resumed, [row for row in before if row[0] < start])
    return "exact"


def compare(
    cell: Cell,
    reference: list[Result],
    resumed: list[Result],
    before: list[tuple[int, int, int]],
) -> None:
    if cell.size == cell.after:
        for one, other in zip(reference, resumed, strict=True):
            assert_same(one.state, other.state)
            for step, loss in other.losses.items():
                assert repr(one.losses[step]) == repr(loss), f"the loss of step {step}"
            assert sorted(one.losses)[-len(other.losses) :] == sorted(other.losses)
            assert set(other.held) <= set(one.held)
        return
    start = resumed[0].start
    assert resumed[0].marks[start] == reference[0].marks[start], "weights and moments at the start"
    ends = {one.marks[max(one.marks)] for one in resumed}
    assert len(ends) == 1, "all ranks end with the same weights"
    seen = Counter((epoch, sample) for _, epoch, sample in before)
    for one in resumed:
        seen.update((epoch, sample) for _, epoch, sample in one.seen)
    missing = [(e, s) for e in range(EPOCHS) for s in range(SAMPLES) if (e, s) not in seen]
    assert not missing
    # DistributedSampler itself repeats samples where an epoch cannot be divided evenly.
    assert sum(seen.values()) - len(seen) < cell.after * EPOCHS


def _seen(run_dir: Path, size: int) -> list[tuple[int, int, int]]:
    rows = []
    for rank in range(size):
        file = run_dir.with_suffix(f".seen{rank}")
        for line in file.read_text().splitlines() if file.exists() else ():
            step, epoch, sample = map(int, line.split())
            rows.append((step, epoch, sample))
    return rows


def damage(folder: Path, how: str) -> None:
    """Do something to the newest complete snapshot, or to all of them."""
    homes = [folder / f"{number}-step{step}" for number, step in complete_snapshots(folder)]
    for home in homes[: None if how == "all" else 1]:
        part = home / "dcp" / "__1_0.distcp"
        if how in ("part missing", "all"):
            part.unlink()
        elif how == "part cut":
            part.write_bytes(part.read_bytes()[:-7])
        elif how == "part changed":
            data = bytearray(part.read_bytes())
            data[len(data) // 2] ^= 1
            part.write_bytes(data)
        elif how == "manifest missing":
            (home / "manifest.json").unlink()
        elif how == "metadata missing":
            (home / "dcp" / ".metadata").unlink()


def main() -> None:
    out, cells = Path(sys.argv[1]), every_cell()
    if len(sys.argv) > 2:
        random.Random(int(sys.argv[2])).shuffle(cells)
    outcomes: dict[str, str] = {}
    began = time.time()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        references = References(Path(folder))
        for number, cell in enumerate(cells):
            home = Path(folder) / str(number)
            home.mkdir()
            try:
                outcomes[cell.name] = judge(cell, references, home)
            except Exception as error:
                outcomes[cell.name] = f"WRONG: {type(error).__name__}: {str(error)[-600:]}"
            shutil.rmtree(home)
            print(number, cell.name, "->", outcomes[cell.name][:150], flush=True)
            counts = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
            out.write_text(
                json.dumps(
                    {
                        "script": "python -m support.resume_cells",
                        "date": time.strftime("%Y-%m-%d"),
                        "torch": torch.__version__,
                        "python": platform.python_version(),
                        "machine": f"{platform.machine()}, 2 cores, gloo",
                        "seconds": round(time.time() - began),
                        "cells": len(outcomes),
                        "of": len(cells),
                        "counts": counts,
                        "kills_during_a_write": sum(", write " in name for name in outcomes),
                        "outcomes": outcomes,
                    },
                    indent=1,
                )
            )


if __name__ == "__main__":
    main()
