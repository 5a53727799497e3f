"""Notices when the process ends while a guard is open: by an exception, or without `close()`.

`sys.excepthook` and `threading.excepthook` are chained while a guard is open. A process that
`multiprocessing` starts calls neither of them, so there a finalizer reads the exception in flight.
Neither sees `sys.exit`, and `os._exit` calls nothing: both are wrapped while a guard is open.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import util
from types import TracebackType
from typing import Any

from headway.core.ending_facts import KILLED
from headway.guard.endings.failure import (
    FailureMoment,
    describe_error,
    find_signal,
    keep_reserve,
    read_stack,
    record_failure,
)
from headway.guard.endings.supervisor import is_supervised
from headway.guard.recorder import Recorder
from headway.guard.step_outcomes import StepCounter
from headway.torch_adapters.frames import (
    Location,
    current_frame,
    describe_frame,
    find_user_frame,
    find_user_location,
)
from headway.torch_adapters.patching import wrap_function

_open: weakref.WeakSet[OpenRun] = weakref.WeakSet()
_previous: list[Any] = []
"""The hooks that were installed before ours: (sys.excepthook, threading.excepthook, what restores
os._exit and sys.exit)."""
failed_threads: deque[dict[str, Any]] = deque(maxlen=8)
"""The last threads that an exception has ended, as `FailedThread` facts. The run goes on without
them, and may wait for one of them for ever."""
MAX_FRAMES = 50
FLUSH_SECONDS = 2.0
"""How long `os._exit` may wait for the buffer. Another thread may be stuck while it writes."""


class OpenRun:
    """A run whose end has not been recorded yet."""

    def __init__(
        self, recorder: Recorder, moment: Callable[[], FailureMoment], counter: StepCounter
    ) -> None:
        """`moment` is a method that describes what the training is doing now.

        Its object is not kept alive: a guard that is dropped must not keep its model in memory.
        """
        self._recorder = recorder
        self._method = weakref.WeakMethod(moment)
        self._counter = counter
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._cells = CellWatch(counter)
        self._left: tuple[int, SystemExit, Location | None] | None = None
        """Steps, status and line of the last `sys.exit`."""
        _open.add(self)
        _install()
        keep_reserve()
        if multiprocessing.parent_process() is not None:
            util.Finalize(self, _end_child, args=(weakref.ref(self),), exitpriority=100)

    def _moment(self) -> FailureMoment:
        describe = self._method()
        return FailureMoment(steps=self._counter.made) if describe is None else describe()

    def record(self, error: BaseException, *, thread: str | None = None) -> None:
        """An exception leaves the code that trains."""
        record_failure(self._recorder, error, self._moment(), thread=thread)

    def finish(self, error: BaseException | None = None, *, thread: str | None = None) -> None:
        """The process is about to end, or the guard was dropped: complete the record.

        Nothing that waits for a device is done any more. In a forked child nothing is recorded.
        """
        writer = self._recorder.writer
        gone = writer is not None and not writer.path.exists()
        if os.getpid() != self._pid or gone:
            return
        if error is not None:
            self.record(error, thread=thread)
        self._record_left()
        self._record_cell()
        self._recorder.end(self._moment().steps)

    def _record_cell(self) -> None:
        """The exception of a notebook's cell, if no other cell has continued after it."""
        failed, ending = self._cells.failed, self._recorder.ending
        if failed is not None and ending.status == "finished":
            if (error := failed.error) is not None:
                self.record(error)
            elif failed.signal is not None:
                self._recorder.interrupted(failed.steps, failed.signal)
            else:
                ending.status, ending.error = "failed", failed.text
        self._cells.close()

    def left(self, status: object, place: Location | None) -> None:
        """`sys.exit` is called: if nothing catches it, it ends the run."""
        if threading.get_ident() == self._thread:
            error = SystemExit(status)
            error.__context__ = sys.exc_info()[1]
            self._left = (self._counter.made, error, place)

    def _record_left(self) -> None:
        if self._left is not None and self._left[0] == self._counter.made:
            _, error, place = self._left
            stack = [] if place is None else [place]
            record_failure(self._recorder, error, self._moment(), stack=stack)

    def vanishes(self, status: int, place: Location | None) -> None:
        """`os._exit` is called: record it, unless a supervisor will. In a forked child, nothing."""
        recorder, steps = self._recorder, self._counter.made
        if os.getpid() != self._pid:
            return
        if is_supervised():
            recorder.flush()
            return
        if status and recorder.ending.status == "finished" and not recorder.ended:
            recorder.ending.status, recorder.ending.exit = "failed", status
            at = {} if place is None else place.to_dict()
            facts = {"exit": status, "steps": steps, "phase": "user", "place": at}
            recorder.event(self._counter.current, KILLED, facts)
        recorder.end(steps)

    def thread_failed(self, error: BaseException, name: str) -> None:
        """An exception ended a thread; if it is the one that trains, the run is over."""
        if threading.get_ident() == self._thread:
            self.finish(error, thread=name)

    def close(self) -> None:
        """The guard is closed: the process may do something else from now on."""
        self._record_cell()
        _open.discard(self)
        if not _open:
            _uninstall()


def _end_child(run: weakref.ref[OpenRun]) -> None:
    known, error = run(), sys.exc_info()[1]
    if known is None or known not in _open:
        return
    # torch.multiprocessing.spawn catches the exception and leaves with `sys.exit(1)`.
    cause = error.__context__ if isinstance(error, SystemExit) and error.code == 1 else None
    known.finish(cause or error)


def _install() -> None:
    if not _previous:
        undo = (wrap_function(os, "_exit", _before_exit), wrap_function(sys, "exit", _before_left))
        _previous.append((sys.excepthook, threading.excepthook, undo))
        sys.excepthook = _exception_hook
        threading.excepthook = _thread_hook


def _uninstall() -> None:
    # Code that has replaced the hooks since still calls ours, so they stay.
    if _previous and sys.excepthook is _exception_hook and threading.excepthook is _thread_hook:
        sys.excepthook, threading.excepthook, undo = _previous.pop()
        for restore in undo:
            restore()


def _caller() -> Location | None:
    """The line of the user's code that calls one of the wrapped functions."""
    frame = find_user_frame(current_frame(2), MAX_FRAMES)
    return None if frame is None else describe_frame(frame)


def _vanish_all(status: int, place: Location | None, runs: list[OpenRun]) -> None:
    for run in runs:
        run.vanishes(status, place)


def _before_exit(leave: Callable[[int], Any]) -> Callable[[int], Any]:
    owner = os.getpid()

    def _exit(status: int) -> None:
        if os.getpid() == owner:  # a forked worker leaves this way, too
            with suppress(Exception):
                work = threading.Thread(
                    target=_vanish_all, args=(status, _caller(), list(_open)), daemon=True
                )
                work.start()
                work.join(FLUSH_SECONDS)
        leave(status)

    return _exit


def _before_left(leave: Callable[..., Any]) -> Callable[..., Any]:
    def exit(status: object = None, /) -> None:
        with suppress(Exception):
            place = _caller()
            for run in list(_open):
                run.left(status, place)
        leave(status)

    return exit


def _exception_hook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    with suppress(Exception):  # the traceback is printed, whatever happens to the record
        for run in list(_open):
            run.finish(error)
    _previous[0][0](kind, error, trace)


def _describe_thread(name: str, error: BaseException) -> dict[str, Any]:
    place = find_user_location(read_stack(error))
    return {
        "name": name,
        "error": describe_error(error),
        "place": {} if place is None else place.to_dict(),
    }


def _thread_hook(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        with suppress(Exception):
            name = args.thread.name if args.thread is not None else "a thread"
            failed_threads.append(_describe_thread(name, args.exc_value))
            for run in list(_open):
                run.thread_failed(args.exc_value, name)
    _previous[0][1](args)


# A cell of a notebook that trains ends with an exception. IPython catches it and the process goes
# on, so no hook of the interpreter is called. The run has failed only if no later cell goes on.

_EVENTS = ("pre_run_cell", "post_run_cell")


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that made steps and raised.

    The exception itself is not kept: its frames keep the tensors of the step alive.
    """

    steps: int
    """Steps of the guard until then."""
    identity: int
    text: str
    signal: int | None
    """The signal that the exception stands for."""

    @property
    def error(self) -> BaseException | None:
        """The exception, while the shell still knows it."""
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        return last if id(last) == self.identity else None


class CellWatch:
    """Remembers the exception that ended the last cell with steps of a guard."""

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter
        self._began = counter.made
        """Steps that were made before the current cell."""
        self._failed: FailedCell | None = None
        self._events = _shell_events()
        self._each(lambda events, name: events.register(name, getattr(self, f"_{name}")))

    def close(self) -> None:
        """Stop watching."""
        self._each(lambda events, name: events.unregister(name, getattr(self, f"_{name}")))
        self._events = None

    @property
    def failed(self) -> FailedCell | None:
        """The cell whose exception ended the training; None if it went on or ended well."""
        known = self._failed
        return known if known is not None and known.steps == self._counter.made else None

    def _pre_run_cell(self, *_: Any) -> None:
        self._began = self._counter.made

    def _post_run_cell(self, result: Any = None) -> None:
        error = getattr(result, "error_in_exec", None)
        if isinstance(error, BaseException) and self._counter.made > self._began:
            self._failed = FailedCell(
                self._counter.made, id(error), describe_error(error), find_signal(error)
            )

    def _each(self, act: Callable[[Any, str], Any]) -> None:
        if self._events is not None:
            for name in _EVENTS:
                with suppress(Exception):  # another kind of shell
                    act(self._events, name)


def _shell_events() -> Any:
    """The cells of an IPython shell; None outside of one."""
    ipython = sys.modules.get("IPython")
    try:
        return None if ipython is None else ipython.get_ipython().events
    except Exception:  # no shell
        return None
