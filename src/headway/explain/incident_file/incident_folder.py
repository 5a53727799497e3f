"""The incident on disk: everything needed to see it again on another machine.

    incidents/<n>-step<k>/incident.json   what happened, under what, what was kept, what was not
                          README.md       the same for people
                          batch.pt        the data, or the guilty rows of it
                          rng.pt          the random number generators before the step
                          state.pt        weights, buffers, scaler

Tensor files load with `weights_only=True`. A folder that is there is whole; one that was damaged
afterwards is refused with a sentence.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
from headway.torch_adapters import nested_state

SCHEMA = 1
INDEX, PAGE = "incident.json", "README.md"
FOLDER = "incidents"
MOST_BYTES = 256 << 20
"""More than this is neither kept of the weights nor of the data."""


@dataclass(frozen=True, slots=True)
class IncidentFolder:
    """An incident that was read. Whatever it holds was verified; tensors are loaded when asked."""

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
        """Whether the batch is made of its guilty rows, repeated."""
        return bool(self.index["captured"]["batch"] == "guilty-rows")

    @property
    def needs_template(self) -> bool:
        """Whether the batch is of classes that only the loader's own batches can tell."""
        return any(unpacking.needs_template(packed) for packed in self._packed())

    def batches(self, template: Any = None) -> list[Any]:
        """The batches of the step: plain containers, or as `template`, a batch of the same loader.

        Of a batch whose guilty rows alone were kept, each other row is one of these: the size is
        the same, the content is not.
        """
        return [unpacking.unpack(packed, template) for packed in self._packed()]

    def sample_names(self, which: int, rows: Sequence[int]) -> Sequence[Any]:
        """What the data set calls these rows of a batch, as far as that was recorded."""
        guilty = self.explanation.guilty_rows
        known = dict(zip(guilty, self.explanation.samples, strict=False))
        return [known[row] for row in rows] if all(row in known for row in rows) else ()

    def state(self) -> dict[str, Any] | None:
        """Models and what else was given to `write`; None if it was not kept."""
        return self._load(STATE) if self.has_state else None

    def rng(self) -> dict[str, Any] | None:
        """The random number generators before the step; None if they were not kept."""
        return self._load(RNG) if self.has_rng else None

    def _packed(self) -> list[Packed]:
        if not self.has_batch:
            return []
        kept = self._load(BATCH)
        try:
            return [Packed.from_plain(item) for item in kept["batches"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableInput(f"{self.folder / BATCH} holds no batches of headway") from error

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
) -> Path:
    """Put an incident into a run directory; its folder. Raises OSError, or torch's RuntimeError
    where the disk is full.

    `state` is what a model needs to be as it was: {"models": [...], "others": {...}}, as snapshots
    have it; moments ("optimizers") are left out, for no replay takes a step. `limit` is the
    gradient norm a spike was held to. `rows` names the guilty rows of each batch, by its position;
    unset, those of the explanation, if there is one batch only.
    """
    contents = IncidentContents(run_dir, explanation, most_bytes)
    contents.add_rng(rng)
    kept = contents.add_batches(batches, capture, rows)
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

    def name(folder: Path, shown: Path) -> None:
        nested_state.write_synced_text(folder / PAGE, render_readme(explanation, index, shown))

    return checksummed_index.write_folder(run_dir / FOLDER, explanation.step, fill, name)


def read_incident(folder: Path) -> IncidentFolder:
    """An incident. Raises UnreadableInput if it is none, or no longer what was written."""
    if not folder.exists():
        raise UnreadableInput(f"there is no {folder}")
    path = folder / INDEX
    if not folder.is_dir() or not path.is_file():
        raise UnreadableInput(f"{folder} is no incident: {_hint(folder)}")
    index = checksummed_index.read_index(path)
    try:
        _demand_ours(index, path)
        for name, seal in index["files"].items():
            if name not in (BATCH, RNG, STATE):
                raise UnreadableInput(f"{path} names a file of no incident: {name!r:.40}")
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
            f"{path} is no incident this headway can read "
            f"(written by headway {writer.get('headway', '?')}): {error!r:.80}"
        ) from error


def _demand_ours(index: Mapping[str, Any], path: Path) -> None:
    if index.get("tool") != "headway" or index.get("kind") != "incident":
        raise UnreadableInput(f"{path} is no incident of headway")
    if index.get("schema") != SCHEMA:
        raise UnreadableInput(
            f"{path} has schema {index.get('schema')!r:.20}, this headway reads {SCHEMA}: "
            "upgrade headway"
        )
    script = index["script"]
    told = {
        "script": script is None or _is_script(script),
        "captured": index["captured"]["batch"] in ("off", "guilty-rows", "batch"),
        "versions": isinstance(index["versions"], dict),
    }
    wrong = [name for name, fine in told.items() if not fine]
    if wrong:
        raise ValueError(f"{wrong[0]} is not as it should be")


def _is_script(script: Mapping[str, Any]) -> bool:
    words = [script["file"], script["cwd"], *script["argv"]]
    module = script["module"]
    return all(isinstance(word, str) for word in words) and isinstance(module, (str, type(None)))


def _hint(folder: Path) -> str:
    inside = folder if folder.name == FOLDER else folder / FOLDER
    found = [found for *_, found in nested_state.numbered_folders(inside)]
    if found:
        return f"name one of those in it, such as {found[0]}"
    return f"it has no {INDEX}; incidents are in RUN/{FOLDER}/"


def _decode_explanation(explanation: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers by their names where there are numbers: a sample may be called NaN."""
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
