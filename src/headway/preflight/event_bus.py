"""Receives the events of a running script (torch calls, modules, backward, optimizer steps,
batches) and passes them to the observers.

A torch-function mode sees calls of torch functions; global hooks see modules and optimizers;
`torch_adapters.patching` reports backward, clipping and scaling. An observer that fails is removed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

from headway.guard.fail_safe import FailSafe
from headway.guard.script.launcher import ScriptLauncher
from headway.output.notices import logger
from headway.preflight.observer import (
    CallListeners,
    Evidence,
    Handlers,
    ListenersByFunction,
    Observer,
    TorchCall,
    find_handlers,
)
from headway.preflight.script_context import ScriptContext
from headway.rerun.step_tracer import StepTracer
from headway.torch_adapters import patching
from headway.torch_adapters.compat import current_transform, forward_hooks_with_kwargs
from headway.torch_adapters.modes import ModePause
from headway.torch_adapters.optimizer_adapter import find_closure
from headway.torch_adapters.patching import call_after

if TYPE_CHECKING:
    from headway.explain.lasting_trace import LastingTrace


class EventBus(patching.TorchListener):
    """Passes the events of the script to the observers."""

    def __init__(
        self, launch: ScriptLauncher, kinds: Sequence[type[Observer]], *, overfit: bool = False
    ) -> None:
        self.script = ScriptContext(launch, overfit=overfit)
        self.evidence = Evidence(launch)
        self.failed: list[str] = []
        """Observers that were removed, each with its error."""
        self._launch = launch
        self._observers: list[Observer] = []
        self.by_function = ListenersByFunction({}, ())
        self._tables: dict[tuple[Observer, ...], ListenersByFunction] = {}
        self._by_event: dict[str, Handlers] = {}
        self._mode = _FunctionMode(self)
        self._aside = ObservationPause(self._mode, launch.tracer)
        self._strict = os.environ.get("HEADWAY_STRICT") == "1"
        self._forks = _FORK_COUNT[0]
        self.busy = False
        self._paused = False
        self._stack = ExitStack()
        for kind in kinds:
            self._add(kind)
        self._sort()
        launch.on_event.append(self._dispatch)

    def __enter__(self) -> EventBus:
        enter = self._stack.callback
        enter(self._launch.tracer.stop)  # last: other modes are on top of its mode
        enter(self.script.undo.close)
        for hook in (
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ended, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._resume),
        ):
            enter(hook.remove)
            # torch does not remove this entry together with the hook.
            enter(forward_hooks_with_kwargs().pop, hook.id, None)
        patching.add_listener(self)
        enter(patching.remove_listener, self)
        self._stack.enter_context(call_after(Optimizer, "__init__", self._optimizer_made))
        for kind in (nn.Module, Optimizer):
            self._stack.enter_context(call_after(kind, "load_state_dict", self._state_loaded))
        self._stack.enter_context(self._mode)
        FailSafe.apart = self._aside
        enter(setattr, FailSafe, "apart", None)
        self._launch.tracer.trace_every_step(self._running_module)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resume()
        self._stack.close()

    def crashed(self, error: BaseException) -> None:
        """The script raised an exception."""
        self._dispatch("crashed", error)

    def finished(self) -> None:
        """The script has ended."""
        self._dispatch("finished")

    @property
    def listening(self) -> bool:
        """False while an observer runs, while a bad step is re-run, and in loader workers.

        Also inside `vmap` and similar transforms, where tensors have no values to inspect.
        """
        if self.busy or self._forks != _FORK_COUNT[0]:
            return False
        guard = self._launch.guard
        return (guard is None or not guard.replaying) and current_transform() is None

    def dispatch_call(self, handlers: Handlers, call: TorchCall) -> None:
        """Pass on a call. Written for speed: a step makes thousands."""
        was, self.busy = self.busy, True
        trace = self._launch.tracer.trace
        was_paused = trace is None or trace.paused
        if trace is not None:
            trace.paused = True
        try:
            for observer, method in handlers:
                try:
                    method(call)
                except Exception as error:
                    self._fails(observer, error)
        finally:
            self.busy = was
            if trace is not None:
                trace.paused = was_paused

    # Events of the patches.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._dispatch("backward_begins", roots)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._dispatch("backward_ended", roots)

    def clipping(self, parameters: Sequence[Tensor], norms: Any, total: Tensor) -> None:
        self._dispatch("clipping", parameters, total)

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._dispatch("scaled", scaler, loss, result)

    # Events of the hooks.

    def _running_module(self) -> nn.Module | None:
        return self.script.stack[-1] if self.script.stack else None

    def _module_begins(self, module: nn.Module, args: Any) -> None:
        if not self.listening or any(map(_is_symbolic, args)):
            return
        self._resume()
        if not self.script.stack:
            self._launch.tracer.module_inputs(args)
        self.script.stack.append(module)
        every = self._every_module if len(self.script.stack) > 1 else self._root_module
        if every.begins:
            with self._aside:
                self._notify(every.begins, module, args)

    def _module_ended(self, module: nn.Module, args: Any, *rest: Any) -> None:
        stack = self.script.stack
        if not self.listening or not any(module is entered for entered in stack):
            return
        while stack and stack[-1] is not module:  # modules whose forward raised
            stack.pop()
        every = self._every_module if len(stack) > 1 else self._root_module
        if len(rest) == 2 and every.ended:  # otherwise its forward raised
            with self._aside:
                self._notify(every.ended, module, args, *rest)
        stack.pop()

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._dispatch("step_begins", optimizer)
        # Without a closure no user code runs in the optimizer, which calls many functions.
        if not (self._paused or find_closure(args, kwargs)) and self.listening:
            self._paused = True
            self._aside.__enter__()

    def _resume(self, *_: Any) -> None:
        """The optimizer has stepped or raised."""
        if self._paused:
            self._paused = False
            self._aside.__exit__()

    def _optimizer_made(self, optimizer: Optimizer, args: Any, result: Any) -> None:
        self._dispatch("optimizer_made", optimizer)

    def _state_loaded(self, owner: Any, args: Any, result: Any) -> None:
        self._dispatch("state_loaded", owner, args[0] if args else None, result)

    # Passing on.

    def _dispatch(self, what: str, *about: Any) -> None:
        if not self.listening:
            return
        self._resume()
        handlers = self._by_event.get(what)
        if handlers is None:
            handlers = self._by_event[what] = find_handlers(self._observers, what)
        with self._aside:
            self._notify(handlers, *about)
        self._update_unfiltered()

    def _update_unfiltered(self) -> None:
        """Update the observers of all functions; they change between events of a step."""
        unfiltered = tuple([item for item in self._observers if item.every_function])
        if self.script.step >= self._next_rest:
            self._find_own()
        table = self._tables.get(unfiltered)
        if table is None:
            table = self._tables[unfiltered] = ListenersByFunction(self._own, unfiltered)
        self.by_function = table

    def _notify(self, handlers: Handlers, *about: Any) -> None:
        was, self.busy = self.busy, True
        try:
            for observer, method in handlers:
                try:
                    method(*about)
                except Exception as error:
                    self._fails(observer, error)
        finally:
            self.busy = was

    def _fails(self, observer: Observer, error: Exception) -> None:
        if str(error).startswith(_NO_HISTORY):
            return
        self._note_failure(type(observer).__name__, error)
        self._observers = [item for item in self._observers if item is not observer]
        self._sort()

    def _note_failure(self, name: str, error: Exception) -> None:
        if self._strict:
            raise error
        logger.debug("observer %s failed", name, exc_info=error)
        # One sentence: torch appends its table of dispatch keys to some messages.
        said = re.split(r"\n|(?<=\.) ", str(error).strip(), maxsplit=1)[0][:MAX_FAILURE_TEXT]
        self.failed.append(f"{name}: {type(error).__name__}: {said}".rstrip(": "))

    def _add(self, kind: type[Observer]) -> None:
        self.busy = True
        try:
            self._observers.append(kind(self.script, self.evidence))
        except Exception as error:
            self._note_failure(kind.__name__, error)
        finally:
            self.busy = False

    def _sort(self) -> None:
        self._by_event = {}
        self._find_own()
        self._update_unfiltered()
        inner = [item for item in self._observers if item.every_module]
        self._root_module, self._every_module = (
            CallListeners(find_handlers(some, "module_begins"), find_handlers(some, "module_ended"))
            for some in (self._observers, inner)
        )

    def _find_own(self) -> None:
        """Find the observers of each function, without those that have seen enough steps."""
        self._tables = {}
        self._own: dict[Callable[..., Any], list[Observer]] = {}
        self._next_rest = math.inf
        step = self.script.step
        for observer in self._observers:
            last = math.inf if observer.calls_before is None else observer.calls_before
            if step >= last:
                continue
            self._next_rest = min(self._next_rest, last)
            for function in observer.functions:
                self._own.setdefault(function, []).append(observer)


_FORK_COUNT = [0]
"""Number of forks since headway was loaded: cheaper than os.getpid() at every call."""


def _count_fork() -> None:
    _FORK_COUNT[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)

MAX_FAILURE_TEXT = 200
"""Characters of a message of torch that a note shows."""
_NO_HISTORY = "A view was created in no_grad mode"
"""Torch raises this for the history of `weight[0]` after `weight[0] += 1` without gradients."""


class ObservationPause:
    """Hides our own torch calls from the function mode and from the trace of the step."""

    def __init__(self, mode: TorchFunctionMode, tracer: StepTracer) -> None:
        self._pause = ModePause(mode)
        self._tracer = tracer
        self._entered: list[tuple[LastingTrace | None, bool]] = []

    def __enter__(self) -> None:
        trace = self._tracer.trace
        self._entered.append((trace, trace is None or trace.paused))
        if trace is not None:
            trace.paused = True
        self._pause.__enter__()

    def __exit__(self, *_: object) -> None:
        self._pause.__exit__()
        trace, paused = self._entered.pop()
        if trace is not None:
            trace.paused = paused


class _FunctionMode(TorchFunctionMode):
    """Observes calls of torch functions without changing them."""

    def __init__(self, hub: EventBus) -> None:
        super().__init__()
        self._hub = hub

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        hub = self._hub
        watchers = hub.by_function[func]
        if watchers is None or hub.busy or not hub.listening:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        call = TorchCall(func, args, kwargs)
        if watchers.begins:
            hub.dispatch_call(watchers.begins, call)
        call.result = func(*args, **kwargs)
        if watchers.ended:
            hub.dispatch_call(watchers.ended, call)
        return call.result


def _is_symbolic(argument: Any) -> bool:
    """Whether a module is called to find out shapes. Keras does so while it builds a model, whose
    parameters do not exist then: to ask for them would create wrong ones."""
    if isinstance(argument, Tensor):
        return argument.is_meta
    return type(argument).__name__ == "KerasTensor"
