"""Finds an origin in a child process and tries its remedy there, and hands both to this one."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

from headway.explain.explanation import Explanation, Origin, Trial
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.one_line_remedies import GuardInput
from headway.output.notices import logger
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

    told = _ask_child(explain)
    return None if told is None else told.origin


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

    told = _ask_child(explain)
    return () if told is None else told.trials


def _ask_child(explain: Callable[[], Explanation | None]) -> Explanation | None:
    def answer() -> bytes:
        try:
            found = explain()
        except Exception:
            return json.dumps({"failed": traceback.format_exc()}).encode()
        return b"" if found is None else json.dumps(found.to_dict()).encode()

    try:
        told = run_isolated(answer, SECONDS)
        data = json.loads(told) if told else {}
        if "failed" in data:
            logger.debug("no answer from the child process: %s", data["failed"])
        elif data:
            return Explanation.from_dict(data)
    except Exception:  # ours: the explanation goes without
        logger.debug("a child process could not be asked", exc_info=True)
    return None
