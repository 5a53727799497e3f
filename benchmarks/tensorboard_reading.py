"""Reading an event file of 20,000 points, against TensorBoard's own reader.

    python benchmarks/tensorboard_reading.py        # needs tensorboard, for the comparison alone

Both read the same file, written by TensorBoard's own writer, in one process; the best of several
runs counts. TensorBoard is configured to keep every scalar (`size_guidance={"scalars": 0}`; its
default keeps half of these points and loses the only NaN).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorboard as theirs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from headway.logs.formats import tensorboard

POINTS = 20_000
BAD = 12_345
LIMIT = 10.0
"""How many times faster the reading should be."""


def write(folder: Path, points: int) -> Path:
    """One loss, NaN at one step."""
    writer = EventFileWriter(str(folder))
    for step in range(points):
        value = math.nan if step == BAD else 2.5 * 0.9999**step
        summary = Summary(value=[Summary.Value(tag="train/loss", simple_value=value)])
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
    writer.close()
    return next(folder.iterdir())


def their_points(path: Path) -> list[tuple[int, float]]:
    reader = EventAccumulator(str(path), size_guidance={"scalars": 0})
    reader.Reload()
    return [(point.step, point.value) for point in reader.Scalars("train/loss")]


def our_points(path: Path) -> list[tuple[int, float]]:
    table = tensorboard.read(path).table
    series = table.series["train/loss"]
    return [
        (table.steps[row], value) for row, value in zip(series.rows, series.values, strict=True)
    ]


def best(read: Callable[[Path], Any], path: Path, times: int) -> tuple[float, Any]:
    took, found = math.inf, None
    for _ in range(times):
        began = time.perf_counter()
        found = read(path)
        took = min(took, time.perf_counter() - began)
    return took, found


def measure(points: int, times: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), points)
        their_time, expected = best(their_points, path, times)
        our_time, found = best(our_points, path, times)
    same = len(found) == len(expected) == points and all(
        one == other or (one[0] == other[0] and math.isnan(one[1]) and math.isnan(other[1]))
        for one, other in zip(found, expected, strict=True)
    )
    return {
        "points": points,
        "theirs_s": round(their_time, 4),
        "ours_s": round(our_time, 4),
        "times_faster": round(their_time / our_time, 1),
        "limit": LIMIT,
        "none_lost": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.points, args.times)
    print(
        f"{result['points']} points: TensorBoard {result['theirs_s']} s, headway "
        f"{result['ours_s']} s, {result['times_faster']} times faster (at least {LIMIT:g}); "
        f"every point the same: {result['none_lost']}"
    )
    if args.json:
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "tensorboard": theirs.__version__,
        }
        args.json.write_text(json.dumps({**about, **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
