"""TensorBoard: scalars, and findings as text.

Event files are written with TensorBoard's own writer, which needs no torch. A SummaryWriter of the
user's (torch's or tensorboardX's) is used as it is, and stays open. TensorBoard keeps scalars as
32-bit floats, NaN and infinities included.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headway.core.findings import Finding
from headway.output.trackers import base
from headway.output.trackers.base import MetricsRow, import_tracker

FINDINGS = "headway/findings"
FLUSH_SECONDS = 5


class EventFileTracker:
    """Writes an event file."""

    def __init__(self, folder: Path) -> None:
        writer = import_tracker("tensorboard.summary.writer.event_file_writer", extra="tensorboard")
        self._events = import_tracker("tensorboard.compat.proto.event_pb2", extra="tensorboard")
        self._summaries = import_tracker(
            "tensorboard.compat.proto.summary_pb2", extra="tensorboard"
        )
        self._tensors = import_tracker("tensorboard.compat.proto.tensor_pb2", extra="tensorboard")
        self._types = import_tracker("tensorboard.compat.proto.types_pb2", extra="tensorboard")
        self._text = import_tracker("tensorboard.plugins.text.metadata", extra="tensorboard")
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer.EventFileWriter(str(folder), flush_secs=FLUSH_SECONDS)

    def step(self, row: MetricsRow) -> None:
        value = self._summaries.Summary.Value
        self._write(
            row.step,
            [value(tag=key, simple_value=number) for key, number in row.values.items()],
        )

    def finding(self, finding: Finding) -> None:
        about = self._text.create_summary_metadata(display_name="", description="")
        words = self._tensors.TensorProto(
            dtype=self._types.DT_STRING, string_val=[base.finding_markdown(finding).encode()]
        )
        value = self._summaries.Summary.Value(tag=FINDINGS, metadata=about, tensor=words)
        self._write(finding.step or 0, [value])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, values: list[Any]) -> None:
        summary = self._summaries.Summary(value=values)
        event = self._events.Event(wall_time=time.time(), step=step, summary=summary)
        self._writer.add_event(event)


class SummaryWriterTracker:
    """Uses the user's SummaryWriter."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def step(self, row: MetricsRow) -> None:
        for key, number in row.values.items():
            self._writer.add_scalar(key, number, row.step)

    def finding(self, finding: Finding) -> None:
        self._writer.add_text(FINDINGS, base.finding_markdown(finding), finding.step or 0)

    def close(self) -> None:
        self._writer.flush()


def opened(about: Any, run_dir: Path | None) -> EventFileTracker | SummaryWriterTracker:
    """For a SummaryWriter or a folder; without either, `tensorboard` in the run directory."""
    if about is not None and not isinstance(about, str):
        return SummaryWriterTracker(about)
    if about:
        return EventFileTracker(Path(about))
    if run_dir is not None:
        return EventFileTracker(run_dir / "tensorboard")
    return EventFileTracker(Path("runs") / time.strftime("headway-%Y%m%d-%H%M%S"))
