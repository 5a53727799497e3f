"""Before a run: a few real steps under full watch.

    hub.py         hears everything torch does while a script runs, and tells the observers
    observer.py    what an observer is: one idea, one file in `observers/`
    scene.py       what every observer may ask: the step, the names, the user's line
    evidence.py    where observers put what they saw; the checks read it from the stream
    check_run.py   all of it together around a script or a function
    in_python.py   `headway.preflight(model, optimizer, loss_fn, batch)`
    guarded_run.py a whole training of an unmodified script, guarded

Observers measure and never judge: judging is what checks do.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """`headway.preflight` is this package and, for users, a function: the module can be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from headway.preflight.in_python import preflight

        return preflight(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
