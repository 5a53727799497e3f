"""Finds an origin in a child process, and hands it to this one."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

from headway.explain.explanation import Explanation, Origin
from headway.output.notices import logger
from headway.torch_adapters.process_state.isolated_child import run_isolated

SECONDS = 20.0
"""How long a child may take: an iterable data set is read from its start."""


def find_in_child(work: Callable[[], Origin | None]) -> Origin | None:
    """The origin that `work()` finds in an isolated child; None: none, or it fails there."""

    def answer() -> bytes:
        try:
            found = work()
        except Exception:
            return json.dumps({"failed": traceback.format_exc()}).encode()
        if found is None or found.output is None:
            return b""
        explanation = Explanation(0, "nonfinite", "deterministic", origins=(found,))
        return json.dumps(explanation.to_dict()).encode()

    try:
        told = run_isolated(answer, SECONDS)
        data = json.loads(told) if told else {}
        if "failed" in data:
            logger.debug("no origin from the child process: %s", data["failed"])
        elif data:
            return Explanation.from_dict(data).origin
    except Exception:  # ours: the explanation goes without
        logger.debug("a child process could not be asked", exc_info=True)
    return None
