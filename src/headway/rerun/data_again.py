"""Finds the line of the data set or the collate function that made the bad values of a batch.

The batch is fetched again in a child process, with every op traced. What the child gets must be the
batch that was bad; otherwise nothing is claimed.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

from headway.explain.explanation import Explanation, Origin
from headway.output.notices import logger
from headway.rerun.recorded_batch import RecordedBatch, content_hash
from headway.rerun.worker_origins import bad_value_marks
from headway.torch_adapters.loaders.batch_fetching import BatchRecipe
from headway.torch_adapters.process_state.isolated_child import run_isolated

SECONDS = 20.0
"""How long a child may take: it begins an iterable data set from the start."""


def find_data_origin(kept: RecordedBatch) -> Origin | None:
    """The op that made the bad values of a batch; None: it is not known."""
    known = kept.origin
    recipe = None if known is None or known.loader is None else BatchRecipe.of(known.loader())
    if known is None or recipe is None:
        return None
    return _find(recipe, known.indices, _identify(kept.batch, known.indices))


def find_bad_sample(recipe: BatchRecipe, indices: Any) -> Origin | None:
    """The op that makes bad values in a batch that is no longer there; None: none does."""
    return None if indices is None else _find(recipe, indices, None)


def _find(recipe: BatchRecipe, indices: Any, wanted: object) -> Origin | None:
    if not recipe.can_fetch(indices):
        return None
    try:
        told = run_isolated(lambda: _trace_again(recipe, indices, wanted), SECONDS)
        return Explanation.from_dict(json.loads(told)).origin if told else None
    except Exception:  # ours: the explanation goes without
        logger.debug("a batch could not be fetched again", exc_info=True)
        return None


def _trace_again(recipe: BatchRecipe, indices: Any, wanted: object) -> bytes:
    """In the child: the origin, as JSON; empty if the wanted batch does not come again."""
    lasting_trace = importlib.import_module("headway.explain.lasting_trace")
    failing_step = importlib.import_module("headway.explain.failing_step")
    locate = importlib.import_module("headway.explain.locate")
    nothing = lasting_trace.StepFacts(failing_step.FailingStep((), (), (), {}), ())
    trace = lasting_trace.LastingTrace(lambda: nothing, lambda: (), lambda: None)
    with trace:
        for data in recipe.fetch(indices):
            if trace.suspicious and wanted in (None, _identify(data, indices)):
                origins = locate.find_origins(trace, trace.look_at_batch(data))
                if origins and origins[0].output is not None:
                    found = Explanation(0, "nonfinite", "deterministic", origins=origins[:1])
                    return json.dumps(found.to_dict()).encode()
                return b""
            trace.next_step()
    return b""


def _identify(batch: Any, indices: Any) -> object:
    """Of known samples, where the bad values are: an augmentation may have drawn other numbers."""
    return content_hash(batch) if indices is None else _listed(bad_value_marks(batch))


def _listed(marks: Iterator[str]) -> list[str]:
    return sorted(marks)
