"""Batches that a loop drew and skipped: one of them may have made buffers bad, or its data is."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

from headway.explain.explanation import Origin, Trial
from headway.rerun.protocol import RerunHost
from headway.rerun.recorded_batch import BatchOrigin, RecordedBatch
from headway.rerun.step_tracer import StepOrigins, record_origins
from headway.torch_adapters.loaders.batch_fetching import BatchRecipe
from headway.torch_adapters.tensor_values import count_nonfinite

MAX_KEPT = 32
MAX_FETCHED = 8
"""Maximum number of batches that are fetched again."""


class UnusedBatches:
    """The origins of batches that were drawn and led to no update, since buffers were last known to
    be finite: a loop may skip a batch whose loss is bad, but its forward pass has changed the
    statistics of batch normalisation.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[BatchOrigin, BatchRecipe]] = deque(maxlen=MAX_KEPT)
        self._added: list[tuple[BatchOrigin, BatchRecipe]] = []
        """Those before the latest step."""
        self.unseen = False
        """Whether there are some that no step has followed yet."""
        self._made_bad: StepOrigins | None = None
        """What a skipped batch has made bad, until a finding needs it."""

    def add(self, batches: Sequence[RecordedBatch]) -> None:
        self._added = []
        for origin in (kept.origin for kept in batches):
            if origin is not None and origin.loader is not None:
                recipe = BatchRecipe.of(origin.loader())
                if recipe is not None:
                    self._added.append((origin, recipe))
        self._kept.extend(self._added)
        self.unseen = bool(self._added)

    def clear(self) -> None:
        self._kept.clear()
        self._made_bad = None

    def attempt(self, host: RerunHost, frame: FrameType | None, origin: Origin) -> Sequence[Trial]:
        """The remedy for the origin in a batch that was skipped before this step, as it was tried:
        the loop's body is called with each of them. `frame`: that of the step."""
        in_child = importlib.import_module("headway.rerun.step_in_child")
        for fetch in self._fetches():
            trials: Sequence[Trial] = in_child.try_batch(host, frame, origin, fetch)
            if trials:
                return trials
        return ()

    def explain_skipped(self, host: RerunHost, frame: FrameType | None) -> bool:
        """Find the origin of what a skipped batch has made bad; whether buffers are bad. Looks at
        buffers on the host only: no step waits for a device."""
        buffers = [buffer for model in host.models for buffer in model.buffers()]
        if not any(any(count_nonfinite(one)) for one in buffers if one.device.type == "cpu"):
            return False
        in_child = importlib.import_module("headway.rerun.step_in_child")
        for fetch in self._fetches():
            found: StepOrigins | None = in_child.explain_batch(host, frame, fetch)
            if found is not None:
                self._made_bad = found
                break
        return True

    def _fetches(self) -> Iterator[Callable[[], Any]]:
        """Ways to draw the last skipped batches again."""
        for known, recipe in self._added[-MAX_FETCHED:]:
            if known.indices is not None and recipe.can_fetch(known.indices):
                yield partial(_fetch, recipe, known.indices)

    def explain(self, host: RerunHost, step: int) -> None:
        """Buffers are bad: record the line that made a bad batch, of the loader that trains."""
        latest = None if host.latest is None else host.latest.origin
        kept, self._kept = self._kept, deque(maxlen=MAX_KEPT)
        if self._made_bad is not None:
            record_origins(host, step, self._made_bad.origins, self._made_bad.trials)
            return
        # References to one loader are one object, also when it is gone.
        alike = [one for one in kept if latest is not None and one[0].loader is latest.loader]
        for origin, recipe in alike[:MAX_FETCHED]:
            child_origin = importlib.import_module("headway.rerun.child_origin")
            made, trials = child_origin.explain_bad_sample(recipe, origin.indices)
            if made is not None:
                record_origins(host, step, (made,), trials)
                return


def _fetch(recipe: BatchRecipe, indices: Any) -> Any:
    return next(iter(recipe.fetch(indices)))
