"""Batches that were drawn and led to no update: a loop may skip a batch whose loss is bad, but its
forward pass has changed the statistics of batch normalisation.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Sequence

from headway.rerun.protocol import RerunHost
from headway.rerun.recorded_batch import BatchOrigin, RecordedBatch
from headway.rerun.step_tracer import record_origins
from headway.torch_adapters.loaders.batch_fetching import BatchRecipe

MAX_KEPT = 32
MAX_FETCHED = 8
"""Maximum number of batches that are fetched again."""


class UnusedBatches:
    """The origins of such batches, since buffers were last known to be finite."""

    def __init__(self) -> None:
        self._kept: deque[tuple[BatchOrigin, BatchRecipe]] = deque(maxlen=MAX_KEPT)

    def add(self, batches: Sequence[RecordedBatch]) -> None:
        for origin in (kept.origin for kept in batches):
            if origin is not None and origin.loader is not None:
                recipe = BatchRecipe.of(origin.loader())
                if recipe is not None:
                    self._kept.append((origin, recipe))

    def clear(self) -> None:
        self._kept.clear()

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
