"""What of an incident goes into its files, and what does not, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headway.core.numbers import say_bytes
from headway.replay import packing
from headway.replay.explanation import Explanation
from headway.replay.packing import Packed, Rows, say_path
from headway.torch_tools import sealed_files
from headway.torch_tools.nested import plain

Capture = Literal["off", "guilty-rows", "batch"]
GuiltyRows = Mapping[int, Sequence[int]]
"""Which batch of the step → which of its rows."""

BATCH, RNG, STATE = "batch.pt", "rng.pt", "state.pt"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something the capsule does not hold."""

    what: str
    why: str


class Contents:
    """Fills up, one kind after the other."""

    def __init__(self, run_dir: Path, explanation: Explanation, most_bytes: int) -> None:
        self.files: dict[str, Any] = {}
        self.left_out: list[LeftOut] = []
        self.devices: set[str] = set()
        """Where tensors were, besides the host."""
        self._run_dir = run_dir
        self._explanation = explanation
        self._most_bytes = most_bytes

    def add_rng(self, rng: Mapping[str, Any] | None) -> None:
        if rng is None:
            self._leave("the random numbers", "they were not recorded")
        else:
            self.files[RNG] = plain(rng)

    def add_batches(
        self, batches: Sequence[Any], capture: Capture, rows: GuiltyRows | None
    ) -> Capture:
        """How much of the data was kept."""
        if capture == "off":
            self._leave("the data", "private: capture is off")
            return "off"
        if not batches:
            self._leave("the data", "the loop makes it itself, or nobody handed it out")
            return "off"
        chosen: Sequence[tuple[Any, Rows | None]] = [(batch, None) for batch in batches]
        if capture == "guilty-rows":
            found = _guilty(batches, rows or _rows_of(self._explanation, batches))
            if isinstance(found, str):
                self._leave("the data", f"{found}, and only guilty rows may be kept")
                return "off"
            chosen = found
            if len(found) < len(batches):
                self._leave(
                    f"{len(batches) - len(found)} of the step's {len(batches)} batches",
                    "none of their rows is guilty",
                )
        try:
            packed = [packing.pack(batch, cut) for batch, cut in chosen]
        except Exception as error:  # a class of the user's that cannot even be looked at
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
                self._leave(say_path(at, root), why)
        self.files[BATCH] = {"batches": [one.to_plain() for one in packed]}
        return capture

    def add_state(self, state: Mapping[str, Any] | None) -> None:
        """Models, and what else belongs to a forward; moments no replay needs."""
        if state is None:
            self._leave_state("they were not recorded")
            return
        wanted = {name: part for name, part in state.items() if name != "optimizers"}
        size = packing.size_of(wanted)
        if size > self._most_bytes:  # looked at first: it would be brought to the host
            self._leave_state(self._too_large(size))
            return
        packed = packing.pack(wanted)
        self._note_devices(packed)
        tensors = [item for item in packed.left if item[1].startswith("a tensor")]
        if tensors:
            at, why = tensors[0]
            self._leave_state(f"{say_path(at, 'state')} is {why}")
        else:
            for at, why in packed.left:
                self._leave(say_path(at, "state"), why)
            self.files[STATE] = packed.data

    def _note_devices(self, *packed: Packed) -> None:
        self.devices.update(device for one in packed for _, device in one.devices)

    def _leave(self, what: str, why: str) -> None:
        self.left_out.append(LeftOut(what, why))

    def _leave_state(self, why: str) -> None:
        snapshot = _snapshot_before(self._run_dir, self._explanation.step)
        instead = "" if snapshot is None else f"; the run's snapshot {snapshot} is the nearest"
        self._leave("the weights", why + instead)

    def _too_large(self, size: int) -> str:
        return f"too large: {say_bytes(size)}, at most {say_bytes(self._most_bytes)} are kept"


def _rows_of(explanation: Explanation, batches: Sequence[Any]) -> GuiltyRows | str:
    culprit = explanation.birth or explanation.spike
    rows = explanation.guilty_rows
    which = 0 if culprit is None or len(batches) == 1 else culprit.batch
    if which >= len(batches):
        return f"the step had {len(batches)} batches and it is not known which of them was guilty"
    return {which: rows}


def _guilty(batches: Sequence[Any], rows: GuiltyRows | str) -> list[tuple[Any, Rows | None]] | str:
    """The batches and rows to keep, or why that cannot be said."""
    if isinstance(rows, str):
        return rows
    if not any(rows.values()):
        return "the guilty samples could not be told"
    chosen: list[tuple[Any, Rows | None]] = []
    for number, batch in enumerate(batches):
        wanted = tuple(sorted(set(rows.get(number, ()))))
        size = packing.batch_size(batch)
        if wanted and (size is None or not 0 <= wanted[0] <= wanted[-1] < size):
            return "the batch's samples could not be told apart"
        if wanted and size is not None:
            chosen.append((batch, Rows(size, wanted)))
    return chosen or "the guilty batch could not be told"


def _snapshot_before(run_dir: Path, step: int) -> str | None:
    """The newest snapshot of the run that was taken before the step."""
    for _, steps, folder in sealed_files.numbered(run_dir / "snapshots"):
        if steps <= step and any(folder.glob("*.json")):
            return f"{folder.parent.name}/{folder.name}"
    return None
