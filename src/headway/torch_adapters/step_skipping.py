"""Hooks around the step of any optimizer, and steps that are skipped without a trace.

An optimizer from outside torch may count its steps in `param_groups` or in attributes, keep slow
weights, wrap another optimizer, or read `parameter.grad` without looking for None. So the function
behind a skipped `step` is not called at all. It is the variable `func` of the wrapper that torch
puts around every `step` for its hooks: while a hook runs, that variable can still be replaced.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from headway.torch_adapters.frames import current_frame, walk_callers
from headway.torch_adapters.nested_state import OptimizerSnapshot, optimized_parameters
from headway.torch_adapters.optimizer_adapter import Closure, find_closure
from headway.torch_adapters.private_parts import private_part

MAX_FRAMES = 60
"""Frames between a hook and the wrapper that called it; most of them are our own."""

PreHook = Callable[[Any, Any, Any], Any]
PostHook = Callable[[Any, Any, Any], None]


# Hooks around `step`.


_HOOK_TABLES = tuple(
    f"_optimizer_{kind}_{moment}_hooks"
    for kind in ("step", "state_dict", "load_state_dict")
    for moment in ("pre", "post")
)


def complete_optimizer(optimizer: Any) -> None:
    """Give an `Optimizer` whose class does not call `super().__init__()` its tables of hooks.

    Without them `state_dict` fails. The class is left alone: others of it are not guarded.
    """
    if isinstance(optimizer, Optimizer):
        for name in _HOOK_TABLES:
            if not hasattr(optimizer, name):
                setattr(optimizer, name, OrderedDict())


def add_step_hooks(optimizer: Any, before: PreHook, after: PostHook) -> Callable[[], None]:
    """Call `before` and `after` around every step; what is returned removes both.

    Wrappers such as Lookahead may not call `Optimizer.__init__`, or be no `Optimizer` at all: their
    `step` gets a wrapper of ours.
    """
    if hasattr(optimizer, "_optimizer_step_pre_hooks") and getattr(
        type(optimizer).step, "hooked", False
    ):
        handles = [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
        ]

        def remove() -> None:
            for handle in handles:
                handle.remove()

        return remove
    return _hook_instance(optimizer, before, after)


_all_before: dict[int, PreHook] = private_part(
    "torch.optim.optimizer._global_optimizer_pre_hooks",
    {},
    without="`headway run` does not count the steps of some wrappers around optimizers",
)
_all_after: dict[int, PostHook] = private_part(
    "torch.optim.optimizer._global_optimizer_post_hooks",
    {},
    without="`headway run` does not count the steps of some wrappers around optimizers",
)


def _hook_instance(optimizer: Any, before: PreHook, after: PostHook) -> Callable[[], None]:
    original, hooked = optimizer.step, True

    def call_original(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    func = call_original

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooked:  # another library has wrapped it since
            return original(*args, **kwargs)
        args = (self, *args)
        for hook in (*_all_before.values(), before):  # those for all optimizers, as torch does
            args, kwargs = hook(self, args, kwargs) or (args, kwargs)
        result = func(*args, **kwargs)
        for done in (after, *_all_after.values()):
            done(self, args, kwargs)
        return result

    # A bound method: schedulers ask for its `__func__`.
    method = types.MethodType(functools.wraps(original)(step), optimizer)
    before_us = vars(optimizer).get("step")
    optimizer.step = method

    def remove() -> None:
        nonlocal hooked, func
        hooked = False
        func = call_original  # also makes `func` a variable of its own, which can be replaced
        if vars(optimizer).get("step") is not method:
            return  # wrapped by another library since: ours passes calls on
        if before_us is None:
            del optimizer.step
        else:
            optimizer.step = before_us

    return remove


def count_running_steps(optimizers: Iterable[Any]) -> int:
    """How many steps of these optimizers run now, one inside another."""
    known = {id(optimizer) for optimizer in optimizers}
    return sum(id(frame.f_locals.get("self")) in known for frame in _running_wrappers())


# Replacing the function of a step that has begun.


def _torch_wrapper() -> types.CodeType | None:
    wrap = private_part(
        "torch.optim.Optimizer.profile_hook_step",
        None,
        without="a skipped step is taken with zero gradients, and all its changes are undone",
    )
    code = None if wrap is None else wrap(lambda optimizer: None).__code__
    return code if code is not None and "func" in code.co_freevars else None


_OWN_WRAPPER = next(
    item
    for item in _hook_instance.__code__.co_consts
    if isinstance(item, types.CodeType) and item.co_name == "step"
)
_WRAPPERS = frozenset(code for code in (_torch_wrapper(), _OWN_WRAPPER) if code is not None)


def _find_running_step(optimizer: Any) -> Any:
    """The function behind the innermost step of this optimizer that runs now."""
    for frame in _running_wrappers():
        variables = frame.f_locals
        if variables.get("self") is optimizer:
            return variables.get("func")
    return None


def _running_wrappers() -> Iterator[types.FrameType]:
    frames = walk_callers(current_frame(1), MAX_FRAMES)
    return (frame for frame in frames if frame.f_code in _WRAPPERS)


def _find_cell(optimizer: Any, function: Any) -> Any:
    """The variable of the wrapper that holds this function."""
    steps = [
        vars(optimizer).get("step"),
        *(vars(kind).get("step") for kind in type(optimizer).__mro__),
    ]
    for step in steps:
        while step is not None:
            step = getattr(step, "__func__", step)
            if getattr(step, "__code__", None) in _WRAPPERS:
                cell = step.__closure__[step.__code__.co_freevars.index("func")]
                if cell.cell_contents is function:
                    return cell
            step = getattr(step, "__wrapped__", None)
    return None


class _StepReplacement:
    """Runs in place of one step of one optimizer."""

    def __init__(self, cell: Any, optimizer: Any, instead: Callable[..., Any]) -> None:
        self.original = cell.cell_contents
        self.waiting = True
        self._cell = cell
        self._optimizer = optimizer
        self._instead = instead
        cell.cell_contents = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The variable belongs to the class: other optimizers of the class may step meanwhile.
        if not self.waiting or args[0] is not self._optimizer:
            return self.original(*args, **kwargs)
        self.waiting = False
        return self._instead(self.original, *args, **kwargs)

    def remove(self) -> None:
        self.waiting = False
        present = self._cell.cell_contents
        while isinstance(present, _StepReplacement) and not present.waiting:
            present = present.original
        self._cell.cell_contents = present


def replace_step(optimizer: Any, instead: Callable[..., Any]) -> _StepReplacement | None:
    """Let `instead(original, *args, **kwargs)` run in place of the step that has begun.

    None where the wrapper is not found.
    """
    function = _find_running_step(optimizer)
    cell = None if function is None else _find_cell(optimizer, function)
    return None if cell is None else _StepReplacement(cell, optimizer, instead)


class HostBrake:
    """Skips steps of one optimizer, for the host."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._instead: _StepReplacement | None = None
        self._undo: list[Callable[[], None]] = []

    def skip(self) -> None:
        """The step that has begun changes nothing. Gradients stay as they are."""
        self.release()
        self._instead = replace_step(self._optimizer, _answer_closure)
        if self._instead is None:
            self._make_harmless()

    def release(self) -> None:
        """The step is over."""
        if self._instead is not None:
            self._instead.remove()
            self._instead = None
        while self._undo:
            self._undo.pop()()

    @torch.no_grad()
    def _make_harmless(self) -> None:
        # Zeros, not None: some optimizers fail without a gradient. What they do is restored.
        self._undo.append(OptimizerSnapshot(self._optimizer).put_back)
        for parameter in optimized_parameters(self._optimizer):
            gradient = parameter.grad
            if gradient is not None:
                parameter.grad = torch.zeros_like(gradient)
                self._undo.append(functools.partial(setattr, parameter, "grad", gradient))


def _answer_closure(original: Any, *args: Any, **kwargs: Any) -> Any:
    closure = find_closure(args, kwargs)
    return None if closure is None else closure()


# Closures of optimizers from outside torch.

# They may move the weights before they call their closure (schedule-free optimizers, SAM), so it
# cannot be called before the step, as that of torch's own is. The step is judged at the first call
# instead. If it is bad, the step is left from there, and what it changed is restored.


class ClosureAborted(BaseException):
    """Leaves a step from within its closure; no optimizer catches it by accident."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss


class JudgedClosure:
    """A closure after whose first call the step is judged."""

    def __init__(self, closure: Closure, judge: Callable[[], bool], *, can_leave: bool) -> None:
        """`judge` says whether the step is bad."""
        self._closure = closure
        self._judge: Callable[[], bool] | None = judge
        self._can_leave = can_leave

    def __call__(self) -> Any:
        loss = self._closure()
        judge, self._judge = self._judge, None
        if judge is not None and judge() and self._can_leave:
            raise ClosureAborted(loss)
        return loss


class ClosureStep:
    """A step with a closure, of an optimizer from outside torch."""

    def __init__(self, optimizer: Any) -> None:
        self.saved = OptimizerSnapshot(optimizer)
        self._instead = replace_step(optimizer, _leave_on_request)

    def judged(self, closure: Closure, judge: Callable[[], bool]) -> JudgedClosure:
        return JudgedClosure(closure, judge, can_leave=self._instead is not None)

    def over(self) -> None:
        if self._instead is not None:
            self._instead.remove()


def _leave_on_request(original: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(*args, **kwargs)
    except ClosureAborted as left:
        return left.loss
