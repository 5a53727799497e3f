"""Receives the events of a running script (torch calls, modules, backward, optimizer steps,
batches) and passes them to the observers.

A torch-function mode sees the calls of torch functions with their arguments; global hooks see the
modules and the optimizers; the seams of `live/` see backward, clipping and scaling. An observer
that fails is taken out and the script goes on. Everything is undone at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

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
from headway.preflight.observer import Evidence, Observer, TorchCall
from headway.preflight.script_context import ScriptContext
from headway.torch_adapters import patching
from headway.torch_adapters.compat import current_transform, forward_hooks_with_kwargs
from headway.torch_adapters.modes import ModePause
from headway.torch_adapters.patching import call_after

CallHandler = Callable[[TorchCall], None]


@dataclass(frozen=True, slots=True)
class FunctionListeners:
    """Who hears of a function, before it runs and after."""

    observers: tuple[Observer, ...]
    begins: tuple[tuple[Observer, CallHandler], ...]
    ended: tuple[tuple[Observer, CallHandler], ...]


def _find_listeners(observers: Sequence[Observer]) -> FunctionListeners:
    return FunctionListeners(
        tuple(observers),
        tuple(
            (item, item.function_begins)
            for item in observers
            if type(item).function_begins is not Observer.function_begins
        ),
        tuple(
            (item, item.function_ended)
            for item in observers
            if type(item).function_ended is not Observer.function_ended
        ),
    )


class EventBus:
    """The ears of a check."""

    def __init__(
        self, launch: ScriptLauncher, kinds: Sequence[type[Observer]], *, overfit: bool = False
    ) -> None:
        self.script = ScriptContext(launch, overfit=overfit)
        self.evidence = Evidence(launch)
        self.failed: list[str] = []
        """Observers that were taken out, each with its error."""
        self._launch = launch
        self._observers: list[Observer] = []
        self._curious: list[Observer] = []
        self._with_curious: dict[Callable[..., Any], FunctionListeners] = {}
        self._mode = _FunctionMode(self)
        self._strict = os.environ.get("HEADWAY_STRICT") == "1"
        self._forks = _FORK_COUNT[0]
        self._busy = False
        self._deaf = False
        self._stack = ExitStack()
        for kind in kinds:
            self._add(kind)
        self._sort()
        launch.on_batch.append(lambda loader, batch: self._tell("batch_drawn", loader, batch))
        launch.on_pass.append(lambda loader: self._tell("pass_begun", loader))
        launch.on_step.append(lambda optimizer: self._tell("step_ended", optimizer))
        launch.on_skip.append(lambda optimizer: self._tell("step_skipped", optimizer))

    def __enter__(self) -> EventBus:
        enter = self._stack.callback
        enter(self.script.undo.close)
        for hook in (
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ended, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._hear_again),
        ):
            enter(hook.remove)
            # torch forgets this one, and takes it for a hook that is still there.
            enter(forward_hooks_with_kwargs().pop, hook.id, None)
        patching.add_listener(self)
        enter(patching.remove_listener, self)
        self._stack.enter_context(call_after(Optimizer, "__init__", self._optimizer_made))
        for kind in (nn.Module, Optimizer):
            self._stack.enter_context(call_after(kind, "load_state_dict", self._state_loaded))
        self._stack.enter_context(self._mode)
        FailSafe.apart = self._mode.aside
        enter(setattr, FailSafe, "apart", None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hear_again()
        self._stack.close()

    def crashed(self, error: BaseException) -> None:
        """The script raised."""
        self._tell("crashed", error)

    def finished(self) -> None:
        """The script is over."""
        self._tell("finished")

    @property
    def listening(self) -> bool:
        """Not while an observer works, a bad step is run again, or in a loader's worker.

        Nor inside `vmap` and its like, where tensors have no values that could be looked at.
        """
        if self._busy or self._forks != _FORK_COUNT[0]:
            return False
        guard = self._launch.guard
        return (guard is None or not guard.replaying) and current_transform() is None

    def watchers(self, function: Callable[..., Any]) -> FunctionListeners | None:
        """Who wants to hear of a function."""
        if not self._curious:
            return self._by_function.get(function)
        found = self._with_curious.get(function)
        if found is None:
            own = self._by_function.get(function)
            heard = [*(() if own is None else own.observers), *self._curious]
            found = self._with_curious[function] = _find_listeners(heard)
        return found

    def tell_call(self, told: Sequence[tuple[Observer, CallHandler]], call: TorchCall) -> None:
        """A call begins or has ended. Written for speed: there are thousands in a step."""
        was, self._busy = self._busy, True
        try:
            for observer, method in told:
                try:
                    method(call)
                except Exception as error:
                    self._fails(observer, error)
        finally:
            self._busy = was

    # What the seams tell.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._tell("backward_begins", roots)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._tell("backward_ended", roots)

    def clipping(self, parameters: Sequence[Tensor], norms: Any, total: Tensor) -> None:
        self._tell("clipping", parameters, total)

    def clipped(self, total: Tensor, max_norm: float) -> None:
        pass

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._tell("scaled", scaler, loss, result)

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        pass

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        pass

    # What the hooks tell.

    def _module_begins(self, module: nn.Module, args: Any) -> None:
        if not self.listening:
            return
        self._hear_again()
        self.script.stack.append(module)
        outermost = len(self.script.stack) == 1
        with self._mode.aside:
            for observer in self._hearing_modules(outermost):
                self._ask(observer, "module_begins", module, args)

    def _module_ended(self, module: nn.Module, args: Any, *rest: Any) -> None:
        stack = self.script.stack
        if not self.listening or not any(module is entered for entered in stack):
            return
        while stack and stack[-1] is not module:  # one that raised on its way
            stack.pop()
        if len(rest) == 2:  # else its forward has raised, and there is nothing to be told
            with self._mode.aside:
                for observer in self._hearing_modules(len(stack) == 1):
                    self._ask(observer, "module_ended", module, args, *rest)
        stack.pop()

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._tell("step_begins", optimizer)
        if len(args) < 2 and not kwargs and not self._deaf and self.listening:
            # No closure: nothing of the script runs in there, and an optimizer calls a lot.
            self._deaf = True
            self._mode.aside.__enter__()

    def _hear_again(self, *_: Any) -> None:
        """The optimizer is through, or has raised and something else begins."""
        if self._deaf:
            self._deaf = False
            self._mode.aside.__exit__()

    def _optimizer_made(self, optimizer: Optimizer, args: Any, result: Any) -> None:
        self._tell("optimizer_made", optimizer)

    def _state_loaded(self, owner: Any, args: Any, result: Any) -> None:
        self._tell("state_loaded", owner, args[0] if args else None, result)

    # Telling.

    def _tell(self, what: str, *about: Any) -> None:
        if not self.listening:
            return
        self._hear_again()
        with self._mode.aside:
            for observer in list(self._observers):
                if getattr(type(observer), what) is not getattr(Observer, what):
                    self._ask(observer, what, *about)
        self._look_who_is_curious()

    def _look_who_is_curious(self) -> None:
        """Observers begin and end to hear everything between the events of a step."""
        curious = [item for item in self._observers if item.every_function]
        if curious != self._curious:
            self._curious = curious
            self._with_curious = {}

    def _ask(self, observer: Observer, what: str, *about: Any) -> None:
        was, self._busy = self._busy, True
        try:
            getattr(observer, what)(*about)
        except Exception as error:
            self._fails(observer, error)
        finally:
            self._busy = was

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
        self.failed.append(f"{name}: {type(error).__name__}: {error}")

    def _add(self, kind: type[Observer]) -> None:
        self._busy = True
        try:
            self._observers.append(kind(self.script, self.evidence))
        except Exception as error:
            self._note_failure(kind.__name__, error)
        finally:
            self._busy = False

    def _hearing_modules(self, outermost: bool) -> list[Observer]:
        return self._hear_roots if outermost else self._hear_all

    def _sort(self) -> None:
        hearing_of: dict[Callable[..., Any], list[Observer]] = {}
        for observer in self._observers:
            for function in observer.functions:
                hearing_of.setdefault(function, []).append(observer)
        self._by_function = {
            function: _find_listeners(some) for function, some in hearing_of.items()
        }
        self._curious, self._with_curious = [], {}
        self._look_who_is_curious()
        hearing = [
            item
            for item in self._observers
            if type(item).module_begins is not Observer.module_begins
            or type(item).module_ended is not Observer.module_ended
        ]
        self._hear_roots = hearing
        self._hear_all = [item for item in hearing if item.every_module]


_FORK_COUNT = [0]
"""How often this process is a fork of one that had us loaded: asking for its id at every call of
torch would cost more."""


def _count_fork() -> None:
    _FORK_COUNT[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)

_NO_HISTORY = "A view was created in no_grad mode"
"""Torch refuses to tell the history of `weight[0]` after `weight[0] += 1` without gradients."""


class _FunctionMode(TorchFunctionMode):
    """Sees the calls of torch functions, and lets them through unchanged."""

    def __init__(self, hub: EventBus) -> None:
        super().__init__()
        self._hub = hub
        self.aside = ModePause(self)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        hub = self._hub
        watchers = hub.watchers(func)
        if watchers is None or not hub.listening:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        call = TorchCall(func, args, kwargs)
        if watchers.begins:
            hub.tell_call(watchers.begins, call)
        call.result = func(*args, **kwargs)
        if watchers.ended:
            hub.tell_call(watchers.ended, call)
        return call.result
