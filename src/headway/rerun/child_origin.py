"""Finds an origin in a child process, tries its remedy there, and returns both to this one."""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from headway.explain.explanation import Explanation, Origin, Trial
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.one_line_remedies import GuardInput
from headway.output.notices import logger
from headway.rerun.recorded_batch import RecordedBatch, content_hash
from headway.rerun.worker_origins import bad_value_marks
from headway.torch_adapters.loaders.batch_fetching import BatchRecipe
from headway.torch_adapters.process_state.isolated_child import run_isolated

SECONDS = 20.0
"""How long a child may take: an iterable data set is read from its start."""


def find_in_child(work: Callable[[], Origin | None]) -> Origin | None:
    """The origin that `work()` finds in an isolated child; None: none, or it fails there."""

    def explain() -> Explanation | None:
        found = work()
        if found is None or found.output is None:
            return None
        return Explanation(0, "nonfinite", "deterministic", origins=(found,))

    answered = _ask_child(explain)
    return None if answered is None else answered.origin


def try_in_child(origin: Origin | None, is_cured: Callable[[], bool]) -> tuple[Trial, ...]:
    """The remedy for an origin, tried in an isolated child: `is_cured()` runs the code again and
    looks at its results. Empty: there is none, or it could not be tried."""
    remedy = None if origin is None else GuardInput.fitting(origin)
    if remedy is None:
        return ()

    def explain() -> Explanation | None:
        with remedy.applied(FailingStep((), (), (), {})):
            cured = is_cured()
        if not remedy.engaged:
            return None
        tried = Trial(
            remedy.key,
            remedy.text,
            "cured" if cured else "not cured",
            "" if cured else "the values are still not finite",
            remedy.edits,
        )
        return Explanation(0, "nonfinite", "deterministic", trials=(tried,))

    answered = _ask_child(explain)
    return () if answered is None else answered.trials


def _ask_child(explain: Callable[[], Explanation | None]) -> Explanation | None:
    def answer() -> bytes:
        try:
            found = explain()
        except Exception:  # logged by the parent
            return json.dumps({"failed": traceback.format_exc()}).encode()
        return b"" if found is None else json.dumps(found.to_dict()).encode()

    try:
        answered = run_isolated(answer, SECONDS)
        data = json.loads(answered) if answered else {}
        if "failed" in data:
            logger.debug("no answer from the child process: %s", data["failed"])
        elif data:
            return Explanation.from_dict(data)
    except Exception:  # ours: the explanation goes without
        logger.debug("a child process could not be asked", exc_info=True)
    return None


# The line of the data set or the collate function that made the bad values of a batch. The batch is
# fetched again in a child process, with every op traced. What the child gets must be the batch that
# was bad; otherwise nothing is claimed.

Made = tuple[Origin | None, Sequence[Trial]]
"""The op that made bad values, None if it is not known, and its remedy as it was tried."""


def explain_bad_batch(kept: RecordedBatch) -> Made:
    """What made the bad values of a batch."""
    known, loader = kept.origin, kept.loader()
    recipe = None if loader is None else BatchRecipe.of(loader)
    if known is None or recipe is None:
        return None, ()
    recipe = replace(recipe, finish=getattr(kept.run, "finish", None))
    return _find(recipe, known.indices, _identify(kept.batch, known.indices), known.number + 1)


def explain_bad_sample(recipe: BatchRecipe, indices: Any) -> Made:
    """What makes bad values in a batch that is no longer there."""
    return (None, ()) if indices is None else _find(recipe, indices, None, 1)


def _find(recipe: BatchRecipe, indices: Any, wanted: object, most: int) -> Made:
    """`most`: how many batches of an iterable data set come before the wanted one, and itself."""
    if not recipe.can_fetch(indices):
        return None, ()
    made = find_in_child(lambda: _trace_again(recipe, indices, wanted))
    return made, try_in_child(made, lambda: _is_good(recipe, indices, most))


def _is_good(recipe: BatchRecipe, indices: Any, most: int) -> bool:
    """In the child: whether no batch that is fetched now has bad values."""
    fetched = islice(recipe.fetch(indices), most)
    return not any(mark for data in fetched for mark in bad_value_marks(data))


def _trace_again(recipe: BatchRecipe, indices: Any, wanted: object) -> Origin | None:
    """In the child: the origin; None if the wanted batch does not come again."""
    lasting_trace = importlib.import_module("headway.explain.lasting_trace")
    failing_step = importlib.import_module("headway.explain.failing_step")
    locate = importlib.import_module("headway.explain.locate")
    nothing = lasting_trace.StepFacts(failing_step.FailingStep((), (), (), {}), ())
    trace = lasting_trace.LastingTrace(lambda: nothing, lambda: (), lambda: None)
    with trace:
        for data in recipe.fetch(indices):
            if trace.suspicious and wanted in (None, _identify(data, indices)):
                origins = locate.find_origins(trace, trace.look_at_batch(data))
                return next(iter(origins), None)
            trace.next_step()
    return None


def _identify(batch: Any, indices: Any) -> object:
    """Of known samples, where the bad values are: an augmentation may have drawn other numbers."""
    return content_hash(batch) if indices is None else sorted(bad_value_marks(batch))
