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
from headway.sinks.trackers import alerts
from headway.sinks.trackers.base import Row, bring

FINDINGS = "headway/findings"
FLUSH_SECONDS = 5


class OwnFile:
    """An event file of ours."""

    def __init__(self, folder: Path) -> None:
        writer = bring("tensorboard.summary.writer.event_file_writer", extra="tensorboard")
        self._events = bring("tensorboard.compat.proto.event_pb2", extra="tensorboard")
        self._summaries = bring("tensorboard.compat.proto.summary_pb2", extra="tensorboard")
        self._tensors = bring("tensorboard.compat.proto.tensor_pb2", extra="tensorboard")
        self._types = bring("tensorboard.compat.proto.types_pb2", extra="tensorboard")
        self._text = bring("tensorboard.plugins.text.metadata", extra="tensorboard")
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer.EventFileWriter(str(folder), flush_secs=FLUSH_SECONDS)

    def step(self, row: Row) -> None:
        value = self._summaries.Summary.Value
        self._write(
            row.step,
            [value(tag=key, simple_value=number) for key, number in row.values.items()],
        )

    def finding(self, finding: Finding) -> None:
        about = self._text.create_summary_metadata(display_name="", description="")
        words = self._tensors.TensorProto(
            dtype=self._types.DT_STRING, string_val=[alerts.markdown(finding).encode()]
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


class UsersWriter:
    """A SummaryWriter of the user's."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def step(self, row: Row) -> None:
        for key, number in row.values.items():
            self._writer.add_scalar(key, number, row.step)

    def finding(self, finding: Finding) -> None:
        self._writer.add_text(FINDINGS, alerts.markdown(finding), finding.step or 0)

    def close(self) -> None:
        self._writer.flush()


def opened(about: Any, run_dir: Path | None) -> OwnFile | UsersWriter:
    """For a SummaryWriter or a folder; without either, `tensorboard` in the run directory."""
    if about is not None and not isinstance(about, str):
        return UsersWriter(about)
    if about:
        return OwnFile(Path(about))
    if run_dir is not None:
        return OwnFile(run_dir / "tensorboard")
    return OwnFile(Path("runs") / time.strftime("headway-%Y%m%d-%H%M%S"))
