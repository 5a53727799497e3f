"""Reads the machine readings of other ranks: every rank below 64 writes its own step file.

Of those files only the lines with a reading of the machine are decoded, about one a second. They
are read after the steps of the rank that is drawn, because its axis places them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headway.core.signals import GPU_SIGNALS
from headway.rundir.derived_series import LOADER_SHARE, derive_columns
from headway.rundir.downsample import Downsampler, Floats, Ints
from headway.rundir.run_files import FileTail
from headway.rundir.run_reader import RunDir
from headway.rundir.step_columns import SEQ_BITS, StepColumns, decode_steps
from headway.rundir.timeline import AxisJump, find_offsets

MARKS = (b'"process_cpu_cores":', b'"host_rss_bytes":')
"""In a line with a reading."""
OF_A_RANK = (
    *GPU_SIGNALS,
    "process_cpu_cores",
    "host_memory_used_bytes",
    "host_rss_bytes",
    "device_allocated_bytes",
    LOADER_SHARE,
)
BUCKETS = 512
"""Intervals that are kept of each curve."""
MAX_RANKS = 64

MachineSeries = dict[str, Downsampler]


class RankMachines:
    """Reads the step files of the other ranks of a training, as they grow."""

    def __init__(self, run: RunDir, drawn: int = 0) -> None:
        """`drawn` is the rank whose steps are drawn."""
        self.series: dict[int, MachineSeries] = {}
        self._run = run
        self._drawn = drawn
        self._files: dict[int, FileTail] = {}

    def read(self, jumps: Sequence[AxisJump]) -> bool:
        """Read a part of each file; whether there may be more."""
        for rank in self._run.ranks()[:MAX_RANKS]:
            if rank != self._drawn and rank not in self._files:
                self._files[rank] = self._run.tail(f"steps.rank{rank}.jsonl")
        more = False
        for rank, file in self._files.items():
            piece = file.read()
            if file.renewed:
                self.series.pop(rank, None)
                file.renewed = 0
            if piece is None:
                continue
            more = True
            rows = decode_steps(
                [line for line in piece.lines if any(mark in line for mark in MARKS)]
            )
            if len(rows):
                self._add(rank, rows, jumps)
        return more

    def _add(self, rank: int, rows: StepColumns, jumps: Sequence[AxisJump]) -> None:
        series = self.series.setdefault(rank, {})
        x = rows.step + find_offsets(jumps, rows.order, SEQ_BITS)
        found: dict[str, tuple[Ints, Floats]] = {**rows.values}
        found |= {name: (at, numbers) for name, at, numbers in derive_columns(rows.values)}
        for name in OF_A_RANK:
            if name in found:
                at, numbers = found[name]
                known = series.setdefault(name, Downsampler(BUCKETS))
                last = known.points()[0][-1:]
                known.extend(np.maximum.accumulate(np.r_[last, x[at]])[len(last) :], numbers)


def cut_machines(
    ranks: Mapping[int, MachineSeries], begin: int, end: int
) -> dict[int, MachineSeries]:
    """The part between two x, both included."""
    return {
        rank: {name: one.narrowed(begin, end, BUCKETS) for name, one in series.items()}
        for rank, series in ranks.items()
    }
