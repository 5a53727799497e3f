"""An incident (a bad step that was re-run and explained) as plain data, built once.

The HTML report, the live page, `headway replay` and the README.md of the incident lay this out and
add no words of their own. It is read from the data of the incident's event, which is the
explanation as JSON; a log may contain anything, so every part is checked.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.findings import say_line
from headway.core.numbers import say
from headway.core.records import EventRecord

NATURE_TEXTS = {
    "deterministic": "fails every time",
    "transient": "does not fail again",
    "compiler": "fails only in the compiled model",
}
CAUSE_TEXTS = {
    "batch": "the batch (it fails with other weights, too)",
    "weights": "the weights (they fail with other batches, too)",
    "together": "this batch with these weights (neither fails alone)",
}
TRIAL_MARKS = {"cured": "✓", "not cured": "✗", "not tried": "–"}
INCIDENT_EVIDENCE = ("why", "source", "nature", "guilt", "samples", "data_set", "reached", "phase")
"""Evidence of a finding that the incident shows."""
MAX_ORIGINS = 3
MAX_OPERANDS = 12


@dataclass(frozen=True, slots=True)
class LineView:
    """A source line as the incident recorded it. No file that a log names is opened."""

    file: str
    line: str
    function: str
    """Empty at module level."""
    source: str

    @property
    def at(self) -> str:
        return say_line(self.file, self.line) + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True)
class OperandView:
    """A tensor that went into an op or came out of it."""

    name: str
    role: str
    shape: str
    dtype: str
    low: Any
    high: Any
    """The range of its finite elements; None if there are none."""
    nan: Any
    inf: Any
    zero: Any

    @property
    def finite_range(self) -> str:
        if not all(isinstance(value, (int, float)) for value in (self.low, self.high)):
            return "none"
        return f"{say(self.low)} … {say(self.high)}"


@dataclass(frozen=True, slots=True)
class OriginView:
    """The op where a non-finite value first appeared."""

    cause: str
    op: str
    phase: str
    module: str
    place: LineView | None
    called_from: LineView | None
    inputs: Sequence[OperandView]
    output: OperandView | None
    rows: Sequence[Any]
    reached: Sequence[Any]
    details: Sequence[tuple[str, str]]
    """Further facts: autograd node, loss component, autocast dtype."""

    @property
    def operands(self) -> list[OperandView]:
        """The inputs, as many as are shown, and the output."""
        if self.output is None:
            return list(self.inputs[:MAX_OPERANDS])
        return [*self.inputs[: MAX_OPERANDS - 1], self.output]

    @property
    def where(self) -> str:
        module = f", module {self.module}" if self.module else ""
        return f"op {self.op}, {self.phase} pass{module}"


@dataclass(frozen=True, slots=True)
class TrialView:
    """A remedy that was tried on the failing step, and its outcome."""

    text: str
    outcome: str
    """`cured`, `not cured` or `not tried`."""
    why: str

    @property
    def mark(self) -> str:
        return TRIAL_MARKS.get(self.outcome, "·")


@dataclass(frozen=True, slots=True)
class IncidentView:
    """The result of re-running a bad step."""

    headline: str
    summary: str
    origins: Sequence[OriginView]
    rows: Sequence[Any]
    """Rows of the batch that it comes from."""
    samples: Sequence[Any]
    """The same as indices of the data set."""
    nature: str
    caused_by: str
    rank: Any
    notes: Sequence[Any]
    trials: Sequence[TrialView]
    spike: Mapping[str, Any]
    """What a gradient spike consists of; empty for a non-finite step."""

    def facts(self) -> list[tuple[str, Any]]:
        """Labels and values of the other known facts."""
        rows = [
            ("rows of the batch", self.rows),
            ("samples of the data set", self.samples),
            ("when re-run", self.nature),
            ("caused by", self.caused_by),
            ("rank", self.rank),
            ("notes", self.notes),
        ]
        return [(label, value) for label, value in rows if value not in (None, "", [], ())]


def read_incident_view(data: Mapping[str, Any]) -> IncidentView:
    """The view of an explanation, given as the data of an incident event."""
    origins = [_origin(item) for item in _list(data.get("origins")) if isinstance(item, Mapping)]
    spike = data.get("spike")
    spike = spike if isinstance(spike, Mapping) else {}
    nature, guilt = str(data.get("nature") or ""), str(data.get("guilt") or "")
    headline = str(data.get("headline") or "The cause of this step's failure was not found.")
    return IncidentView(
        headline=headline,
        summary=str(data.get("summary") or headline),
        origins=origins,
        rows=origins[0].rows if origins else _list(spike.get("rows")),
        samples=_list(data.get("samples")),
        nature="" if nature == "unknown" else NATURE_TEXTS.get(nature, nature),
        caused_by="" if guilt == "unknown" else CAUSE_TEXTS.get(guilt, guilt),
        rank=data.get("rank"),
        notes=_list(data.get("notes")),
        trials=[
            TrialView(str(item["text"]), str(item.get("tried") or ""), str(item.get("why") or ""))
            for item in _list(data.get("trials"))
            if isinstance(item, Mapping) and item.get("text")
        ],
        spike=spike,
    )


def _origin(data: Mapping[str, Any]) -> OriginView:
    details = (("autograd node", "node"), ("loss component", "component"), ("autocast", "autocast"))
    output = data.get("output")
    return OriginView(
        cause=str(data.get("cause") or ""),
        op=str(data.get("op") or ""),
        phase=str(data.get("phase") or ""),
        module=str(data.get("module") or ""),
        place=_line(data.get("place")),
        called_from=_line(data.get("called_from")),
        inputs=[_operand(x) for x in _list(data.get("inputs")) if isinstance(x, Mapping)],
        output=_operand(output) if isinstance(output, Mapping) else None,
        rows=_list(data.get("rows")),
        reached=_list(data.get("reached")),
        details=[(label, str(data[key])) for label, key in details if data.get(key)],
    )


def _operand(data: Mapping[str, Any]) -> OperandView:
    shape = " × ".join(str(size) for size in _list(data.get("shape"))) or "scalar"
    name, role, dtype = (str(data.get(key) or "") for key in ("name", "role", "dtype"))
    counts = (data.get(key, 0) for key in ("nan", "inf", "zero"))
    return OperandView(name, role, shape, dtype, data.get("low"), data.get("high"), *counts)


def _line(place: Any) -> LineView | None:
    if not isinstance(place, Mapping) or not place.get("file"):
        return None
    function, source = place.get("function"), place.get("source")
    return LineView(
        file=str(place["file"]),
        line=str(place.get("line")),
        function="" if function in (None, "<module>") else str(function),
        source=source.strip() if isinstance(source, str) else "",
    )


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


# The source around the failing line, from the README.md in the incident's own folder. It is
# untrusted like everything in a run directory, and is shown as text.

MAX_SOURCE_LINES = 40
MAX_SOURCE_BYTES = 1 << 16
_SOURCE_LINE = re.compile(r"^(?P<mark>[> ])\s*(?P<number>\d+) \|(?P<code>.*)$")

SourceLine = tuple[str, str, bool]
"""Line number, code, whether it is the failing line."""


Read = Callable[[Path, int], bytes | None]
"""Reads that number of bytes from the start of a file; None if it must not be read."""


def read_source_lines(
    run: Path, incidents: Sequence[EventRecord], number: int, read: Read
) -> list[SourceLine]:
    """The source lines of an incident; empty if they were not kept."""
    folder = _folder(run, incidents, number)
    if folder is None:
        return []
    lines: list[SourceLine] = []
    page = read(folder / "README.md", MAX_SOURCE_BYTES) or b""
    for line in page.decode("utf-8", "replace").splitlines():
        match = _SOURCE_LINE.match(line)
        if match is not None:
            code = match["code"].removeprefix(" ").replace("\t", "    ")
            lines.append((match["number"], code.rstrip(), match["mark"] == ">"))
        elif lines:
            break
    return lines[:MAX_SOURCE_LINES]


def _folder(run: Path, incidents: Sequence[EventRecord], number: int) -> Path | None:
    """The folder of an incident in the run directory."""
    step = incidents[number].step
    earlier = sum(event.step == step for event in incidents[:number])
    try:
        folders = sorted(
            (item for item in (run / "incidents").iterdir() if item.name.endswith(f"-step{step}")),
            key=lambda item: (len(item.name), item.name),
        )
    except (OSError, ValueError):
        return None
    return folders[earlier] if earlier < len(folders) else None


# The failing samples, as previews that the guard has made: the page decodes nothing.

SAMPLES = "samples.json"
MAX_PREVIEW_BYTES = 1 << 20
MAX_SAMPLES, MAX_PARTS = 4, 8
LONGEST_TEXT = 2000
MAX_PICTURE = 64 << 10
MAX_SIDE = 512
"""Pixels; what claims to be larger is not shown."""
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class SamplePart:
    """One value of a sample: its text, its picture or its first numbers."""

    name: str
    kind: str
    text: str
    picture: str
    """A PNG file in base64; empty for other kinds."""
    about: str

    @property
    def lines(self) -> list[str]:
        """The text in lines."""
        return self.text.splitlines()[:MAX_SOURCE_LINES]


@dataclass(frozen=True, slots=True)
class SampleView:
    """A failing sample."""

    title: str
    parts: Sequence[SamplePart]


def read_samples(
    run: Path, incidents: Sequence[EventRecord], number: int, read: Read
) -> list[SampleView]:
    """The previews of an incident's samples; empty if there are none."""
    folder = _folder(run, incidents, number)
    if folder is None:
        return []
    try:
        found = json.loads(read(folder / SAMPLES, MAX_PREVIEW_BYTES) or b"{}")
    except (ValueError, RecursionError):
        return []
    items = _list(found.get("samples")) if isinstance(found, dict) else []
    return [_sample(item) for item in items[:MAX_SAMPLES] if isinstance(item, Mapping)]


def _sample(data: Mapping[str, Any]) -> SampleView:
    row, name = str(data.get("row"))[:20], str(data.get("sample") or "")[:80]
    title = f"Sample {name} (row {row} of the batch)" if name else f"Row {row} of the batch"
    parts = [_part(item) for item in _list(data.get("parts")) if isinstance(item, Mapping)]
    return SampleView(title, parts[:MAX_PARTS])


def _part(data: Mapping[str, Any]) -> SamplePart:
    words = [str(data["about"])[:120]] if data.get("about") else []
    if isinstance(data.get("tokens"), int):
        words.append(f"{data['tokens']} tokens, decoded")
    if isinstance(data.get("bad"), int) and data["bad"]:
        is_picture = data.get("kind") == "image"
        words.append(f"{data['bad']} not finite" + (", in magenta" if is_picture else ""))
    text = str(data.get("text") or "")[:LONGEST_TEXT] + ("…" if data.get("cut") is True else "")
    return SamplePart(
        name=str(data.get("name") or "")[:120],
        kind=str(data.get("kind") or ""),
        text=text,
        picture=_picture(data.get("png")),
        about="; ".join(words),
    )


def _picture(data: Any) -> str:
    """A small PNG, unchanged; empty for anything else."""
    if not isinstance(data, str) or len(data) > MAX_PICTURE * 4 // 3 + 4:
        return ""
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError:
        return ""
    if content[:8] != _PNG or content[12:16] != b"IHDR" or len(content) < 24:
        return ""
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    return data if 0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE else ""


def read_head(path: Path, most: int) -> bytes | None:
    """The start of a regular file. O_NONBLOCK, because a pipe in its place would never end."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            return file.read(most) if stat.S_ISREG(os.fstat(handle).st_mode) else None
        except OSError:
            return None
