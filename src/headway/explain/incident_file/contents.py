"""The contents of an incident folder, and its index with checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from headway._version import __version__
from headway.core.numbers import say_bytes
from headway.errors import UnreadableInput
from headway.explain.explanation import Explanation
from headway.explain.incident_file import packing, sample_preview
from headway.explain.incident_file.packing import ChosenRows, Packed, format_path
from headway.torch_adapters import nested_state
from headway.torch_adapters.nested_state import (
    compute_seal,
    make_loadable,
    numbered_folders,
    sync_folder,
    write_synced_text,
)

# The folder and its index. The index has the length and checksum of each tensor file, and a
# checksum of its own content. The folder is filled under a temporary name, synced, and renamed: it
# appears complete or not at all.

LARGEST_INDEX = 1 << 26
"""Maximum bytes of an index; a larger file is not read."""
UNFINISHED_PREFIX = ".new-"
"""Prefix of folders that are being written."""
STALE_SECONDS = 3600.0
"""Age at which an unfinished folder belongs to a killed process."""


def write_folder(
    home: Path, step: int, fill: Callable[[Path], None], name: Callable[[Path, Path], None]
) -> Path:
    """Create the folder `<n>-step<k>` in `home` and fill it with `fill`; `name` adds files that
    depend on its final path. Exceptions of both propagate."""
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    fresh = home / f"{UNFINISHED_PREFIX}{uuid.uuid4().hex}"
    fresh.mkdir()
    try:
        fill(fresh)
        folder = _rename_into_place(home, step, fresh, name)
    except BaseException:  # also KeyboardInterrupt: leave no unfinished folder
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    sync_folder(home)
    return folder


def _sweep(home: Path) -> None:
    """Remove unfinished folders of killed processes."""
    for left in home.glob(f"{UNFINISHED_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _rename_into_place(
    home: Path, step: int, fresh: Path, name: Callable[[Path, Path], None]
) -> Path:
    number = max((found for found, _, _ in numbered_folders(home)), default=0)
    while True:  # another rank may have taken the number meanwhile
        number += 1
        folder = home / f"{number}-step{step}"
        if folder.exists():
            continue
        name(fresh, folder)
        sync_folder(fresh)
        try:
            os.rename(fresh, folder)
        except OSError:
            if not folder.exists():
                raise
            continue
        return folder


def write_index(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data with a checksum of itself."""
    plain = json.loads(json.dumps(content, allow_nan=False, default=_encode_json))
    write_synced_text(path, json.dumps({**plain, "seal": _checksum(plain)}, indent=2) + "\n")


def _encode_json(value: Any) -> Any:
    """NumPy scalars as numbers, other objects as text."""
    scalar = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if scalar else str(value)


def read_index(path: Path) -> dict[str, Any]:
    """Read what `write_index` wrote. Raises UnreadableInput for anything else."""
    try:
        if path.stat().st_size > LARGEST_INDEX:
            raise ValueError("the file is too large")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(
            f"{path} is damaged or not an incident of headway: {str(error)[:80]}"
        ) from error
    if not isinstance(content, dict) or "seal" not in content:
        raise UnreadableInput(f"{path} is not an incident of headway: it has no seal")
    seal = content.pop("seal")
    if seal != _checksum(content):
        raise UnreadableInput(
            f"{path} is damaged or was edited: its checksum does not match. "
            "Copy the incident again from its source"
        )
    return content


def check_checksum(path: Path, seal: Mapping[str, Any]) -> None:
    """Raise UnreadableInput unless a file has its recorded length and checksum."""
    again = "copy the incident again from its source"
    try:
        if not path.is_file():
            raise UnreadableInput(f"{path} is missing: {again}")
        found = compute_seal(path, seal["bytes"])
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    if found["bytes"] != seal["bytes"]:
        raise UnreadableInput(
            f"{path} is damaged: {found['bytes']} bytes instead of {seal['bytes']}; {again}"
        )
    if found["sha256"] != seal["sha256"]:
        raise UnreadableInput(f"{path} is damaged: its checksum does not match; {again}")


def load_tensors(path: Path) -> Any:
    """Load tensors and plain data without running code."""
    try:
        return nested_state.load_file(path)
    except Exception as error:  # torch raises various errors for unsafe files
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnreadableInput(f"{path} cannot be loaded safely: {first[:120]}") from error


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


# What is stored of an incident, and what is left out and why.

Capture = Literal["off", "guilty-rows", "batch"]
GuiltyRows = Mapping[int, Sequence[int]]
"""Batch of the step → its failing rows."""

BATCH, RNG, STATE = "batch.pt", "rng.pt", "state.pt"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part that the incident folder does not contain, and why."""

    what: str
    why: str


class IncidentContents:
    """Collects the files of an incident folder."""

    def __init__(self, run_dir: Path, explanation: Explanation, most_bytes: int) -> None:
        self.files: dict[str, Any] = {}
        self.left_out: list[LeftOut] = []
        self.devices: set[str] = set()
        """Devices of the tensors, except the CPU."""
        self._run_dir = run_dir
        self._explanation = explanation
        self._most_bytes = most_bytes

    def add_rng(self, rng: Mapping[str, Any] | None) -> None:
        if rng is None:
            self._leave("the random state", "it was not recorded")
        else:
            self.files[RNG] = make_loadable(rng)

    def add_batches(
        self, batches: Sequence[Any], capture: Capture, rows: GuiltyRows | None
    ) -> Capture:
        """Add the batches; returns how much of the data is stored."""
        if capture == "off":
            self._leave("the data", "private: capture is off")
            return "off"
        if not batches:
            self._leave("the data", "no loader returned it: the loop builds its own batches")
            return "off"
        chosen: Sequence[tuple[Any, ChosenRows | None]] = [(batch, None) for batch in batches]
        if capture == "guilty-rows":
            found = _guilty(batches, rows or _rows_of(self._explanation, batches))
            if isinstance(found, str):
                self._leave("the data", f"{found}, and only failing rows may be stored")
                return "off"
            chosen = found
            if len(found) < len(batches):
                self._leave(
                    f"{len(batches) - len(found)} of the step's {len(batches)} batches",
                    "none of their rows fails",
                )
        try:
            packed = [packing.pack(batch, cut) for batch, cut in chosen]
        except Exception as error:  # a user class whose attributes cannot be read
            self._leave("the data", f"it cannot be read: {type(error).__name__}: {error!s:.80}")
            return "off"
        self._note_devices(*packed)
        size = sum(packing.size_of(one.data) for one in packed)
        if size > self._most_bytes:
            self._leave("the data", self._too_large(size))
            return "off"
        for number, one in enumerate(packed):
            root = "batch" if len(packed) == 1 else f"batches[{number}]"
            for at, why in one.left:
                self._leave(format_path(at, root), why)
        self.files[BATCH] = {"batches": [one.to_plain() for one in packed]}
        return capture

    def preview(
        self, batches: Sequence[Any], rows: GuiltyRows | None, sources: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """The failing samples for people; only where the data may be stored."""
        chosen = rows or _rows_of(self._explanation, batches)
        if BATCH not in self.files or isinstance(chosen, str):
            return []
        try:
            return sample_preview.preview_samples(
                batches, chosen, self._explanation.samples, sample_preview.find_decoder(sources)
            )
        except Exception as error:  # the user's classes, and a tokenizer
            why = f"it cannot be made: {type(error).__name__}: {error!s:.80}"
            self._leave("the preview of the samples", why)
            return []

    def add_state(self, state: Mapping[str, Any] | None) -> None:
        """Add models and other forward state; a replay needs no optimizer state."""
        if state is None:
            self._leave_state("they were not recorded")
            return
        wanted = {name: part for name, part in state.items() if name != "optimizers"}
        size = packing.size_of(wanted)
        if size > self._most_bytes:  # checked first: packing copies to the CPU
            self._leave_state(self._too_large(size))
            return
        packed = packing.pack(wanted)
        self._note_devices(packed)
        tensors = [item for item in packed.left if item[1].startswith("a tensor")]
        if tensors:
            at, why = tensors[0]
            self._leave_state(f"{format_path(at, 'state')} is {why}")
        else:
            for at, why in packed.left:
                self._leave(format_path(at, "state"), why)
            self.files[STATE] = packed.data

    def _note_devices(self, *packed: Packed) -> None:
        self.devices.update(device for one in packed for _, device in one.devices)

    def _leave(self, what: str, why: str) -> None:
        self.left_out.append(LeftOut(what, why))

    def _leave_state(self, why: str) -> None:
        snapshot = _snapshot_before(self._run_dir, self._explanation.step)
        instead = "" if snapshot is None else f"; the nearest snapshot of the run is {snapshot}"
        self._leave("the weights", why + instead)

    def _too_large(self, size: int) -> str:
        return f"too large: {say_bytes(size)} (limit {say_bytes(self._most_bytes)})"


def _rows_of(explanation: Explanation, batches: Sequence[Any]) -> GuiltyRows | str:
    culprit = explanation.origin or explanation.spike
    rows = explanation.guilty_rows
    which = 0 if culprit is None or len(batches) == 1 else culprit.batch
    if which >= len(batches):
        return f"the step has {len(batches)} batches, and which of them fails is unknown"
    return {which: rows}


def _guilty(
    batches: Sequence[Any], rows: GuiltyRows | str
) -> list[tuple[Any, ChosenRows | None]] | str:
    """The batches and rows to store, or why they are unknown."""
    if isinstance(rows, str):
        return rows
    if not any(rows.values()):
        return "the failing samples are unknown"
    chosen: list[tuple[Any, ChosenRows | None]] = []
    for number, batch in enumerate(batches):
        wanted = tuple(sorted(set(rows.get(number, ()))))
        size = packing.leading_size(batch)
        if wanted and (size is None or not 0 <= wanted[0] <= wanted[-1] < size):
            return "the samples of the batch cannot be separated"
        if wanted and size is not None:
            chosen.append((batch, ChosenRows(size, wanted)))
    return chosen or "the failing batch is unknown"


def _snapshot_before(run_dir: Path, step: int) -> str | None:
    """The newest snapshot of the run that was taken before the step."""
    for _, steps, folder in nested_state.numbered_folders(run_dir / "snapshots"):
        if steps <= step and any(folder.glob("*.json")):
            return f"{folder.parent.name}/{folder.name}"
    return None


# The environment of an incident: versions, device and script.


def read_versions(devices: Collection[str] = ()) -> dict[str, str]:
    """Versions of headway, torch and Python, and the device; `devices`: devices besides the CPU."""
    return {
        "headway": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": _device_name(devices),
    }


def version_differences(recorded: Mapping[str, Any]) -> list[str]:
    """Versions that differ here: a replay may depend on them."""
    here = read_versions()
    return [
        f"{name} {recorded[name]} then, {here[name]} now"
        for name in ("torch", "python", "headway")
        if name in recorded and recorded[name] != here[name]
    ]


def running_script() -> dict[str, Any] | None:
    """How this process was started; None without a script file (notebook, shell)."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    spec = getattr(main, "__spec__", None)
    path = Path(file).absolute()
    return {
        "file": str(path),
        "module": None if spec is None else spec.name,
        "sha256": file_sha256(path),
        "argv": [str(word) for word in sys.argv[1:]],
        "cwd": os.getcwd(),
    }


def file_sha256(path: Path) -> str | None:
    """None if the file cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _device_name(devices: Collection[str]) -> str:
    if not devices:
        return f"cpu ({platform.machine()})"
    first = torch.device(min(devices))
    return torch.cuda.get_device_name(first) if first.type == "cuda" else first.type
