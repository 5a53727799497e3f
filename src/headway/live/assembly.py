"""The record of a step, put together from the parts of its optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from headway.core.bound import LARGEST
from headway.core.numbers import round_digits
from headway.core.records import Column
from headway.live.note import Note
from headway.live.ranks import Ranks
from headway.live.samples import EVERY
from headway.live.tally import Tally
from headway.live.transfer import Readings
from headway.policy import Verdict

SHARED = (
    "step_time_s",
    "loader_wait_s",
    "samples_per_s",
    "host_rss_bytes",
    "device_allocated_bytes",
    "graphs_kept",
)
"""Values of the step as a whole, not of one of its optimizers."""

READ = {"loss": "loss", "total": "grad_norm", "coef": "clip_coef", "scale": "loss_scale"}
"""Readings that are signals as they come."""

MANY = 1000
"""So many ranks are written down at every sample, more of them accordingly less often."""

Positions = Callable[[Sequence[Tensor]], list[int]]


@dataclass(slots=True)
class Assembly:
    """Values and columns of one step."""

    step: int
    optimizers: int = 1
    values: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    held: bool = False
    verdicts: list[tuple[Verdict, Note, str]] = field(default_factory=list)

    def add(self, suffix: str, note: Note, readings: Readings, positions: Positions) -> None:
        """One optimizer's part; `suffix` tells its signals from those of the first."""
        self.held = self.held or note.held
        self._add_values(suffix, note, readings)
        self._add_columns(suffix, note, readings, positions)

    def add_ranks(self, tally: Tally, note: Note, ranks: Ranks, *, bad: bool) -> None:
        """What each rank said. The first rank writes it down for all, now and then and at bad
        steps; the others only who made a bad number, so that what is written grows with the
        number of ranks and not with its square."""
        first = ranks.rank == 0
        often = note.step // EVERY % max(ranks.size // MANY, 1) == 0
        if bad or (first and note.sampled and often):
            chosen = list(range(ranks.size)) if first else tally.culprits()
            self.columns.update(tally.columns(chosen))
            if bad:
                self.columns.update(tally.nonfinite(chosen))

    def _add_values(self, suffix: str, note: Note, readings: Readings) -> None:
        found = {name: readings[source][0] for source, name in READ.items() if source in readings}
        if "clip_divisor" in readings:
            found["clip_coef"] = 1.0 / readings["clip_divisor"][0]
        if "lr" in readings:
            found["lr"] = readings["lr"][0]
        elif not math.isnan(note.lr):
            found["lr"] = note.lr
        if note.limit < LARGEST:
            found["grad_norm_limit"] = note.limit
        found.update(_nonfinite(note, readings))
        found.update({name: value for name, value in note.values.items() if name not in SHARED})
        self.values.update({name + suffix: value for name, value in found.items()})
        self.values.update({name: v for name, v in note.values.items() if name in SHARED})
        for name, value in zip(note.components, readings.get("components", ()), strict=True):
            self.values[f"loss/{name}"] = value
        if self.optimizers > 1:
            self.values["optimizers"] = float(self.optimizers)

    def _add_columns(
        self, suffix: str, note: Note, readings: Readings, positions: Positions
    ) -> None:
        if (note.sampled or note.held) and "each" in readings:
            self._join("param/grad_norm", positions(note.parameters), readings["each"])
        if "factors" in readings and not note.held:
            self._join("param/clip_coef", positions(note.parameters), readings["factors"])
        if "zeros" in readings:
            self._join("param/grad_zero_share", positions(note.parameters), readings["zeros"])
        if note.updated and not note.held:
            index, weights = positions(note.updated), readings["weight_norms"]
            self._join("param/weight_norm", index, weights)
            ratios = map(_ratio, readings["update_norms"], weights)
            known = {at: ratio for at, ratio in zip(index, ratios, strict=True) if ratio < math.inf}
            self._join("param/update_ratio", list(known), list(known.values()))
        if note.buffers:
            norms = [round_digits(norm) for norm in readings["buffer_norms"]]
            self.columns["buffer/norm"] = Column(norms, list(note.buffers))
        if len(note.rates) > 1 and not suffix and not any(map(math.isnan, note.rates)):
            self.columns["group/lr"] = Column(list(note.rates))

    def _join(self, name: str, index: Sequence[int], values: Sequence[float]) -> None:
        known = self.columns.get(name, Column((), ()))
        rounded = [round_digits(value) for value in values]
        self.columns[name] = Column([*known.values, *rounded], [*(known.index or ()), *index])


def _ratio(update: float, weight: float) -> float:
    """‖update‖ / ‖weight‖; infinite (so: left out) where a weight of 0, or one past help, moved."""
    if weight > 0:
        ratio = update / weight
        return ratio if math.isfinite(ratio) else math.inf
    return math.inf if update > 0 else 0.0


def _nonfinite(note: Note, readings: Readings) -> dict[str, float]:
    """How many gradients, and elements where the host could look, are not finite."""
    if note.nonfinite_counts is not None:
        tensors, elements = note.nonfinite_counts
        return {"grad_nonfinite_tensors": float(tensors), "grad_nonfinite": float(elements)}
    if not note.held:
        return {}
    tensors = sum(1 for norm in readings.get("each", ()) if not math.isfinite(norm))
    return {"grad_nonfinite_tensors": float(tensors)} if tensors else {}
