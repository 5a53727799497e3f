"""Batches that were drawn and led to no update: a loop may skip a batch whose loss is bad, but its
forward pass has changed the statistics of batch normalisation.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from headway.rerun.protocol import RerunHost
from headway.rerun.recorded_batch import BatchOrigin, RecordedBatch
from headway.rerun.step_tracer import record_origins
from headway.torch_adapters.loaders.batch_fetching import BatchRecipe

if TYPE_CHECKING:
    from headway.explain.explanation import Origin, Trial

MAX_KEPT = 32
MAX_FETCHED = 8
"""Maximum number of batches that are fetched again."""


class UnusedBatches:
    """The origins of such batches, since buffers were last known to be finite."""

    def __init__(self) -> None:
        self._kept: deque[tuple[BatchOrigin, BatchRecipe]] = deque(maxlen=MAX_KEPT)
        self._added: list[tuple[BatchOrigin, BatchRecipe]] = []
        """Those before the latest step."""

    def add(self, batches: Sequence[RecordedBatch]) -> None:
        self._added = []
        for origin in (kept.origin for kept in batches):
            if origin is not None and origin.loader is not None:
                recipe = BatchRecipe.of(origin.loader())
                if recipe is not None:
                    self._added.append((origin, recipe))
        self._kept.extend(self._added)

    def clear(self) -> None:
        self._kept.clear()

    def attempt(self, host: RerunHost, frame: FrameType | None, origin: Origin) -> Sequence[Trial]:
        """The remedy for the origin in a batch that was skipped before this step, as it was tried:
        the loop's body is called with each of them. `frame`: that of the step."""
        in_child = importlib.import_module("headway.rerun.step_in_child")
        for known, recipe in self._added[-MAX_FETCHED:]:
            if known.indices is None or not recipe.can_fetch(known.indices):
                continue
            fetch = partial(_fetch, recipe, known.indices)
            trials: Sequence[Trial] = in_child.try_batch(host, frame, origin, fetch)
            if trials:
                return trials
        return ()

    def explain(self, host: RerunHost, step: int) -> None:
        """Buffers are bad: record the line that made a bad batch, of the loader that trains."""
        latest = None if host.latest is None else host.latest.origin
        kept, self._kept = self._kept, deque(maxlen=MAX_KEPT)
        # References to one loader are one object, also when it is gone.
        alike = [one for one in kept if latest is not None and one[0].loader is latest.loader]
        for origin, recipe in alike[:MAX_FETCHED]:
            data_again = importlib.import_module("headway.rerun.data_again")
            made, trials = data_again.explain_bad_sample(recipe, origin.indices)
            if made is not None:
                record_origins(host, step, (made,), trials)
                return


def _fetch(recipe: BatchRecipe, indices: Any) -> Any:
    return next(iter(recipe.fetch(indices)))
