"""The incident on disk: everything needed to reproduce it on another machine.

    incidents/<n>-step<k>/incident.json   explanation, environment, what is stored and what is not
                          README.md       the same for readers
                          samples.json    previews of the failing samples: text, pictures
                          batch.pt        the data, or its failing rows
                          rng.pt          the random number generators before the step
                          state.pt        weights, buffers, scaler

Tensor files load with `weights_only=True`. A folder is complete; one that was damaged later is
rejected with an error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from headway.core.numbers import decode_number, decode_numbers, encode_numbers
from headway.errors import UnreadableInput
from headway.explain.explanation import Explanation
from headway.explain.incident_file import contents as checksummed_index
from headway.explain.incident_file import contents as versions
from headway.explain.incident_file import unpacking
from headway.explain.incident_file.contents import (
    BATCH,
    RNG,
    STATE,
    Capture,
    GuiltyRows,
    IncidentContents,
    LeftOut,
)
from headway.explain.incident_file.incident_readme import render_readme
from headway.explain.incident_file.packing import Packed
from headway.output.incident_view import SAMPLES
from headway.torch_adapters import nested_state
from headway.torch_adapters.rng import is_valid_state

SCHEMA = 1
INDEX, PAGE = "incident.json", "README.md"
FOLDER = "incidents"
MOST_BYTES = 256 << 20
"""Limit on the stored bytes of the weights, and of the data."""


@dataclass(frozen=True, slots=True)
class IncidentFolder:
    """An incident read from disk and verified; tensors are loaded on demand."""

    folder: Path
    index: Mapping[str, Any]
    """All of incident.json."""
    explanation: Explanation
    step: int
    symptom: str
    rank: int
    limit: float | None
    """For a spike: the gradient norm that was allowed."""
    script: Mapping[str, Any] | None
    left_out: tuple[LeftOut, ...]

    @property
    def has_batch(self) -> bool:
        return BATCH in self.index["files"]

    @property
    def has_state(self) -> bool:
        return STATE in self.index["files"]

    @property
    def has_rng(self) -> bool:
        return RNG in self.index["files"]

    @property
    def rows_only(self) -> bool:
        """Whether the batch consists of its failing rows, repeated."""
        return bool(self.index["captured"]["batch"] == "guilty-rows")

    @property
    def needs_template(self) -> bool:
        """Whether the batch has classes that only a batch of the loader provides."""
        return any(unpacking.needs_template(packed) for packed in self._packed())

    def batches(self, template: Any = None) -> list[Any]:
        """The batches of the step, in plain containers or in those of `template`, a batch of the
        same loader.

        If only the failing rows were stored, they also replace the other rows: the size is the
        same, the content is not.
        """
        return [unpacking.unpack(packed, template) for packed in self._packed()]

    def sample_names(self, which: int, rows: Sequence[int]) -> Sequence[Any]:
        """Data set indices of these rows, if recorded."""
        guilty = self.explanation.guilty_rows
        known = dict(zip(guilty, self.explanation.samples, strict=False))
        return [known[row] for row in rows] if all(row in known for row in rows) else ()

    def state(self) -> dict[str, Any] | None:
        """The state that was passed to `write_incident`; None if not stored."""
        return self._load(STATE) if self.has_state else None

    def rng(self) -> dict[str, Any] | None:
        """The random state before the step; None if not stored."""
        state = self._load(RNG) if self.has_rng else None
        if state is not None and not is_valid_state(state):
            raise UnreadableInput(
                f"{self.folder / RNG} is not the state of random number generators: the incident "
                "is damaged and cannot be replayed"
            )
        return cast("dict[str, Any] | None", state)

    def _packed(self) -> list[Packed]:
        if not self.has_batch:
            return []
        kept = self._load(BATCH)
        try:
            return [Packed.from_plain(item) for item in kept["batches"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableInput(
                f"{self.folder / BATCH} contains no batches of headway"
            ) from error

    def _load(self, name: str) -> Any:
        return checksummed_index.load_tensors(self.folder / name)


def write_incident(
    run_dir: Path,
    explanation: Explanation,
    *,
    batches: Sequence[Any],
    rng: Mapping[str, Any] | None,
    state: Mapping[str, Any] | None,
    capture: Capture = "guilty-rows",
    most_bytes: int = MOST_BYTES,
    rank: int = 0,
    limit: float | None = None,
    rows: GuiltyRows | None = None,
    sources: Sequence[Any] = (),
) -> Path:
    """Write an incident to a run directory; returns its folder. Raises OSError, or torch's
    RuntimeError if the disk is full.

    `state` restores the models: {"models": [...], "others": {...}}, as in snapshots; optimizer
    state ("optimizers") is left out, because a replay does not step. `limit` is the gradient norm
    limit of a spike. `rows` has the failing rows of each batch, by its index; default: those of the
    explanation, if there is only one batch. `sources`, such as loaders, are asked for a
    tokenizer.
    """
    contents = IncidentContents(run_dir, explanation, most_bytes)
    contents.add_rng(rng)
    kept = contents.add_batches(batches, capture, rows)
    samples = contents.preview(batches, rows, sources)
    contents.add_state(state)
    index: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": "headway",
        "kind": "incident",
        "step": explanation.step,
        "symptom": explanation.symptom,
        "rank": rank,
        "limit": limit,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions.read_versions(contents.devices),
        "script": versions.running_script(),
        "captured": {"batch": kept, "rng": RNG in contents.files, "state": STATE in contents.files},
        "left_out": [asdict(item) for item in contents.left_out],
        "files": {},
        "explanation": explanation.to_dict(),
    }

    def fill(folder: Path) -> None:
        for name, content in contents.files.items():
            index["files"][name] = nested_state.save_file(folder / name, content)
        checksummed_index.write_index(folder / INDEX, encode_numbers(index))
        if samples:
            nested_state.write_synced_text(folder / SAMPLES, json.dumps({"samples": samples}))

    def name(folder: Path, shown: Path) -> None:
        nested_state.write_synced_text(folder / PAGE, render_readme(explanation, index, shown))

    return checksummed_index.write_folder(run_dir / FOLDER, explanation.step, fill, name)


def read_incident(folder: Path) -> IncidentFolder:
    """Read an incident. Raises UnreadableInput if it is not one, or was changed."""
    if not folder.exists():
        raise UnreadableInput(f"{folder} does not exist")
    path = folder / INDEX
    if not folder.is_dir() or not path.is_file():
        raise UnreadableInput(f"{folder} is not an incident: {_hint(folder)}")
    index = checksummed_index.read_index(path)
    try:
        _demand_ours(index, path)
        for name, seal in index["files"].items():
            if name not in (BATCH, RNG, STATE):
                raise UnreadableInput(f"{path} lists an unknown file: {name!r:.40}")
            checksummed_index.check_checksum(folder / name, seal)
        limit = index.get("limit")
        return IncidentFolder(
            folder=folder,
            index=index,
            explanation=Explanation.from_dict(_decode_explanation(index["explanation"])),
            step=int(index["step"]),
            symptom=str(index["symptom"]),
            rank=int(index["rank"]),
            limit=None if limit is None else decode_number(limit),
            script=index["script"],
            left_out=tuple(LeftOut(item["what"], item["why"]) for item in index["left_out"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        writer = index.get("versions", {}) if isinstance(index.get("versions"), dict) else {}
        raise UnreadableInput(
            f"{path} is not an incident that this headway can read "
            f"(written by headway {writer.get('headway', '?')}): {error!r:.80}"
        ) from error


def _demand_ours(index: Mapping[str, Any], path: Path) -> None:
    if index.get("tool") != "headway" or index.get("kind") != "incident":
        raise UnreadableInput(f"{path} is not an incident of headway")
    if index.get("schema") != SCHEMA:
        raise UnreadableInput(
            f"{path} has schema {index.get('schema')!r:.20}, this headway reads {SCHEMA}: "
            "upgrade headway"
        )
    script = index["script"]
    valid = {
        "script": script is None or _is_script(script),
        "captured": index["captured"]["batch"] in ("off", "guilty-rows", "batch"),
        "versions": isinstance(index["versions"], dict),
    }
    wrong = [name for name, ok in valid.items() if not ok]
    if wrong:
        raise ValueError(f"{wrong[0]} is invalid")


def _is_script(script: Mapping[str, Any]) -> bool:
    words = [script["file"], script["cwd"], *script["argv"]]
    module = script["module"]
    return all(isinstance(word, str) for word in words) and isinstance(module, (str, type(None)))


def _hint(folder: Path) -> str:
    inside = folder if folder.name == FOLDER else folder / FOLDER
    found = [found for *_, found in nested_state.numbered_folders(inside)]
    if found:
        return f"use one of its folders, such as {found[0]}"
    return f"it has no {INDEX}; incidents are in RUN/{FOLDER}/"


def _decode_explanation(explanation: Mapping[str, Any]) -> dict[str, Any]:
    """Decode "NaN" and "Infinity" in number fields only: a sample may be named NaN."""
    found = dict(explanation)
    for name in ("loss", "seconds"):
        if found.get(name) is not None:
            found[name] = decode_number(found[name])
    if found.get("spike") is not None:
        found["spike"] = {**found["spike"], "growth": decode_numbers(found["spike"]["growth"])}
    found["origins"] = [_decode_origin(item) for item in found.get("origins", ())]
    return found


def _decode_origin(item: Mapping[str, Any]) -> dict[str, Any]:
    inputs = [_decode_operand(operand) for operand in item["inputs"]]
    return {**item, "inputs": inputs, "output": item["output"] and _decode_operand(item["output"])}


def _decode_operand(operand: Mapping[str, Any]) -> dict[str, Any]:
    ends = {name: operand[name] for name in ("low", "high") if operand[name] is not None}
    return {**operand, **{name: decode_number(value) for name, value in ends.items()}}
