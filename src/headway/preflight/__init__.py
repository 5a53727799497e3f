"""Before a run: a few real steps with every observer active.

    runner.py          runs a few steps of a script or a function, and builds the report
    python_api.py      `headway.preflight(model, optimizer, loss_fn, batch)`
    event_bus.py       receives the events of the running script and passes them to the observers
    observer.py        the base class of observers, and the evidence they write facts to
    script_context.py  what observers can ask: the step, names, the user's line, call sites
    source_lines.py    finds lines in the user's source
    worker_seeds.py    runs inside a loader's workers
    observers/         what is measured: loss/, model/, optimizer/, data/, precision, ranks
    trial/             trial updates on recorded steps, and overfitting one batch

Observers measure and never judge: judging is what checks do.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """`headway.preflight` is this package and, for users, a function: the module can be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from headway.preflight.python_api import preflight

        return preflight(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
