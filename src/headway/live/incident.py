"""A bad step that can be run again, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headway.live.batch_identity import Kept
from headway.live.turns import Turn
from headway.replay.scene import SampleNames
from headway.torch_tools.put_back import PutBack
from headway.torch_tools.rng import Moment

Rerun = Callable[[Sequence[Any]], None]
"""Runs the step once more, over these batches: forward and backward at least."""


@dataclass(slots=True)
class Incident:
    """A bad step that waits to be looked into."""

    step: int
    symptom: str
    batches: Sequence[Kept]
    before: Moment | None
    """The random numbers before its first batch; None where nobody handed one out."""
    scale: Tensor | None
    limit: float | None
    parameters: Sequence[Tensor] = ()
    """Those whose gradients were bad; empty: any."""
    inexact: str = ""
    """Why the step cannot be run again just as it was; empty: it can."""
    turn: Turn | None = None
    """The turn of its loop that it was, where the loop makes its own data."""
    sample_names: SampleNames | None = None
    """What the data set calls the samples; unset, as its loader has told."""

    def named(self) -> SampleNames:
        """What the data set calls the samples."""
        return self.sample_names or _names_of(self.batches)


class InTurn:
    """The batches of a step, each run as its framework runs it."""

    def __init__(self, runs: Sequence[Callable[[Any], Any]]) -> None:
        self._runs = runs

    def __call__(self, batches: Sequence[Any]) -> None:
        for run, batch in zip(self._runs, batches, strict=True):
            run(batch)

    def keep(self, trained: Sequence[nn.Module], *, tensors: bool) -> PutBack | None:
        """What the framework wants to have put back afterwards."""
        keep = getattr(self._runs[0], "keep", None)
        return None if keep is None else keep(trained, tensors=tensors)


def _names_of(batches: Sequence[Kept]) -> SampleNames:
    def names(which: int, rows: Sequence[int]) -> Sequence[Any]:
        # A step may have more backward passes than batches.
        indices = batches[min(which, len(batches) - 1)].indices()
        return [indices[row] for row in rows] if rows and max(rows) < len(indices) else ()

    return names
