"""Function and dispatch modes: the base classes, and what switches modes off for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from inspect import unwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headway.torch_adapters.autocast_regions import autocast_off
from headway.torch_adapters.op_schema import OpSchema, read_schema, tensor_arguments
from headway.torch_adapters.private_parts import private_part
from headway.torch_adapters.runtime_state import in_compiled_call, skip_code
from headway.torch_adapters.tensor_values import plain_tensor, storage_address

# Switching modes off, for our own work in the middle of the user's.

no_function_modes: Callable[[], AbstractContextManager[Any]] = private_part(
    "torch._C.DisableTorchFunction",
    nullcontext,
    without="active function modes also observe headway's own calls",
)
"""A context manager: no function mode and no `__torch_function__` is called."""

no_dispatch_modes: Callable[[], AbstractContextManager[Any]] = private_part(
    "torch.utils._python_dispatch._disable_current_modes",
    nullcontext,
    without="active dispatch modes also observe headway's own reads",
)
"""A context manager: no dispatch mode is in force."""

no_python_dispatch: Callable[[], AbstractContextManager[Any]] = private_part(
    "torch._C._DisableTorchDispatch",
    no_dispatch_modes,
    without="dispatch modes are taken off one by one, which takes longer than a small op",
)
"""The same in a fiftieth of the time, for plain tensors: tensor subclasses do not work in it."""

no_autocast: Callable[[], AbstractContextManager[Any]] = private_part(
    "torch._C._DisableAutocast",
    autocast_off,
    without="autocast is switched off device by device, which takes a little longer",
)
"""A context manager: no autocast on any device."""

current_dispatch_mode: Callable[[], Any] = private_part(
    "torch.utils._python_dispatch._get_current_dispatch_mode",
    lambda: None,
    without="a trace that cannot be removed in order stays in force and observes nothing",
)
"""The innermost dispatch mode in force; None where there is none."""

_UNKNOWN_DEPTH = 2
_dispatch_depth: Callable[[], int] = private_part(
    "torch._C._len_torch_dispatch_stack",
    lambda: _UNKNOWN_DEPTH,
    without="ops are not recorded for trial updates: another mode may be active",
)


# Dispatch modes: they see every op below autograd.


class _InertMode:
    """Stands for a dispatch mode where torch has none."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass


if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:
    TorchDispatchMode = private_part(
        "torch.utils._python_dispatch.TorchDispatchMode",
        _InertMode,
        without="no op is observed: steps are not traced, recorded or undone",
    )


class UncompiledDispatchMode(TorchDispatchMode):
    """A dispatch mode whose handler is called directly: torch wraps other handlers, which takes as
    long as a small op. Compiled code must be off meanwhile; the compiler passes over the handler,
    which may run inside a call of compiled code that began before."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)  # type: ignore[no-untyped-call]
        handler = cls.__dict__.get("__torch_dispatch__")
        if handler is not None:
            skip_code(handler.__code__, below=True)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class LastingModes:
    """Counts the dispatch modes that are active from the beginning of a script to its end."""

    count = 0


def modes_may_change() -> bool:
    """Whether a lasting dispatch mode may be entered here: no other one is in force that will end
    before the script does, and no call of a compiled function is under way."""
    return _dispatch_depth() == LastingModes.count and not in_compiled_call()


class OutermostDispatchMode(UncompiledDispatchMode):
    """A dispatch mode that is entered only where no other but lasting ones is in force, and left
    only when every mode that was entered after it has been left; neither within a call of a
    compiled function."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.in_force = False

    def enter_outermost(self) -> bool:
        """Enter it; False where another mode is in force, which would end before this one."""
        if not self.in_force and modes_may_change():
            self.__enter__()  # type: ignore[no-untyped-call]
            self.in_force = True
        return self.in_force

    def leave_outermost(self) -> bool:
        """Leave it; False where one that was entered later is still in force."""
        alone = _dispatch_depth() == LastingModes.count + 1
        if self.in_force and alone and not in_compiled_call():
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.in_force = False
        return not self.in_force


# A torch function mode that stays active inside torch's own Python functions.

# A function mode is switched off while it handles a call. For a function written in Python, such
# as `F.normalize`, that hides everything it calls. Called again with the mode on, it would only
# hand itself to the mode again. So a copy of it is called that does not ask.

_CALLS_BACK = {"backward", "grad"}


def find_user_callback(func: Any) -> FunctionType | None:
    """torch's function itself, if it runs code of the user's: hooks, and the forwards that
    activation checkpointing recomputes in the backward. Who watches it may stand in its place."""
    if getattr(func, "__name__", "") not in _CALLS_BACK:
        return None
    func = unwrap(func)
    return func if can_reenter(func) else None


@cache
def can_reenter(func: Any) -> bool:
    return isinstance(func, FunctionType) and bool(_override_checks(func))


def _override_checks(func: FunctionType) -> list[str]:
    return [name for name in func.__globals__ if name.startswith("has_torch_function")]


class ReentrantFunctionMode(TorchFunctionMode):
    """A function mode that can stay on inside of a function it handles."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[FunctionType] = []

    def call_reentrant(
        self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call it so that this mode sees what it calls."""
        if func in self._open:  # such as `unflatten`, which calls the C function of its own name
            return func(*args, **kwargs)
        self._open.append(func)
        try:
            with self:
                return _without_override_check(func)(*args, **kwargs)
        finally:
            self._open.remove(func)


@cache
def _without_override_check(func: FunctionType) -> FunctionType:
    """The function, without its check for overrides."""
    within = {**func.__globals__, **dict.fromkeys(_override_checks(func), _no_override)}
    copy = FunctionType(func.__code__, within, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _no_override(*values: Any) -> bool:
    return False


_function_depth: Callable[[], int] = private_part(
    "torch._C._len_torch_function_stack",
    lambda: 0,
    without="headway's own calls are observed by its function mode, too",
)
_function_mode_at: Callable[[int], Any] = private_part(
    "torch._C._get_function_stack_at",
    lambda position: None,
    without="headway's own calls are observed by its function mode, too",
)
_pop_function_mode: Callable[[], Any] | None = private_part(
    "torch._C._pop_torch_function_stack",
    None,
    without="headway's own calls are observed by its function mode, too",
)
_push_function_mode: Callable[[Any], None] | None = private_part(
    "torch._C._push_on_torch_function_stack",
    None,
    without="headway's own calls are observed by its function mode, too",
)


class ModePause:
    """Switches a function mode off while headway's own code runs, which it would observe.

    Only where it is on top of the stack: another mode in front of it is left alone.
    """

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        self._taken: list[bool] = []

    def __enter__(self) -> None:
        depth = _function_depth()
        pop = _pop_function_mode
        ours = (
            depth > 0
            and pop is not None
            and _push_function_mode is not None
            and _function_mode_at(depth - 1) is self._mode
        )
        self._taken.append(ours)
        if ours and pop is not None:
            pop()

    def __exit__(self, *_: object) -> None:
        if self._taken.pop() and _push_function_mode is not None:
            _push_function_mode(self._mode)


# Undoing the writes of a pass that is run again.

# A loop's body does not only train: it updates a teacher, fills a memory bank, adds up losses in a
# tensor. Running it again must not update, fill or add a second time.

MAX_KEPT_BYTES = 1 << 30
"""Bytes of one tensor; a larger one is left as the pass leaves it."""

UNDECLARED_WRITES = ("running_mean", "running_var")
"""What batch normalisation changes without saying so in its schema."""


class _OpEffect:
    """What an op does to memory."""

    __slots__ = ("facts", "func", "makes", "writes")

    def __init__(self, func: Any, facts: OpSchema) -> None:
        self.func, self.facts = func, facts
        silent = UNDECLARED_WRITES if facts.aten.endswith("batch_norm") else ()
        self.writes = () if facts.collective else facts.mutated or silent
        """The arguments that it writes to."""
        self.makes = not (facts.mutated or facts.view or facts.constant)
        """Whether it may make new memory."""


class WriteUndo(UncompiledDispatchMode):
    """Copies memory older than a pass before the pass writes to it; `put_back` restores it."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._young: set[int] = set()
        self._effects: dict[int, _OpEffect] = {}
        """By the identity of an op: its own hash is a Python function."""
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._known: set[tuple[object, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if types or _function_depth():
            with no_function_modes():  # a remedy's mode has had its say above autograd
                return self._look_and_run(func, args, kwargs)
        return self._look_and_run(func, args, kwargs)

    def _look_and_run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        effect = self._effects.get(id(func))
        if effect is None:
            effect = self._effects[id(func)] = _OpEffect(func, read_schema(func))
        if effect.writes:
            for name, tensor in tensor_arguments(effect.facts, args, kwargs or {}):
                if name.partition("[")[0] in effect.writes:
                    self._keep(plain_tensor(tensor))
        result = func(*args, **kwargs) if kwargs else func(*args)
        if effect.makes:
            self._note_results(effect.facts, args, kwargs, result)
        return result

    def _note_results(
        self, facts: OpSchema, args: tuple[Any, ...], kwargs: Any, result: Any
    ) -> None:
        if type(result) is Tensor and not kwargs and result.layout is torch.strided:
            where = storage_address(result)  # as for most ops: in a fraction of the time
            held = where in self._young or _holds(args, where)
            if held is False:
                self._young.add(where)
            if held is not None:
                return
        made = {storage_address(tensor) for tensor in _tensors(result)} - self._young
        if made:  # not every schema declares that a result is an argument
            arguments = tensor_arguments(facts, args, kwargs or {})
            given = (plain_tensor(item) for _, item in arguments)
            self._young |= made - {storage_address(own) for own in given if own is not None}

    @torch.no_grad()
    def put_back(self) -> None:
        """Everything as it was before the pass."""
        for tensor, value in reversed(self._kept):  # of two that overlap, the first knew more
            if _is_there(tensor):
                tensor.copy_(value)
        self._kept.clear()
        self._known.clear()

    def _keep(self, tensor: Tensor | None) -> None:
        if tensor is None or tensor.is_inference() or storage_address(tensor) in self._young:
            return
        key = (storage_address(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        if key not in self._known and tensor.nbytes <= MAX_KEPT_BYTES:
            self._known.add(key)
            own = tensor.detach()
            self._kept.append((own, own.clone()))


_NO_TENSORS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def _holds(args: tuple[Any, ...], where: int) -> bool | None:
    """Whether one of the arguments has this memory; None where there are other than plain ones."""
    for item in args:
        kind = type(item)
        if kind is Tensor or kind is nn.Parameter:
            if item.layout is not torch.strided:
                return None
            if storage_address(item) == where:
                return True
        elif kind not in _NO_TENSORS and not (kind is list and all(type(n) is int for n in item)):
            return None
    return False


def _is_there(tensor: Tensor) -> bool:
    """Whether its memory is still allocated: FSDP frees what it has gathered."""
    if tensor.numel() == 0:
        return False
    reach = sum((n - 1) * abs(by) for n, by in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= needed


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        own = plain_tensor(result)
        if own is not None:
            yield own
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)
