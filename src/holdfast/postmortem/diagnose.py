"""Reading what is left of a run, and saying what went wrong, when and why."""

from __future__ import annotations

from pathlib import Path

from holdfast.config import Settings
from holdfast.engine import Engine
from holdfast.errors import UnreadableInput
from holdfast.report import Report
from holdfast.sources import run_dir


def diagnose(path: str | Path, *, settings: Settings | None = None) -> Report:
    """Read a run and say what went wrong, when and why. Does not import torch.

    Raises `UnreadableInput` when there is nothing at `path` that can be read.
    """
    place = Path(path)
    if not place.exists():
        raise UnreadableInput(f"there is nothing at {place}")
    if run_dir.recognise(place):
        return _own(place, settings)
    # A run of our own needs no numpy: loaded only where it is used.
    from holdfast.sources import formats
    from holdfast.sources.log.stream import Stream

    log = formats.read(place)
    engine = Engine(settings)
    engine.run(Stream(log).records())
    said = f"read as {log.format}: {log.used} of {log.lines} lines used"
    return Report.from_engine(engine, command="diagnose", notes=[said, *log.notes])


def _own(place: Path, settings: Settings | None) -> Report:
    source = run_dir.RunDir(place)
    engine = Engine(settings)
    engine.run(source.records())
    notes = [f"{source.torn} of {source.lines} lines were torn and skipped"] if source.torn else []
    return Report.from_engine(engine, command="diagnose", notes=notes)
