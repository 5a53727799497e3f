"""What torch is doing while an op runs: autocast, the autograd node, torch.compile.

Where a torch version lacks one of them, the answer is that nothing is known.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from headway.torch_adapters.frames import current_frame, walk_callers
from headway.torch_adapters.private_parts import private_part

P = ParamSpec("P")
T = TypeVar("T")

# What torch says about the moment an op runs at: autocast, autograd's node and its number.

# Most of it is not public. Where a torch lacks it, the answer is that nothing is known.

_snapshot: Any = private_part(
    "torch._C._RestorePythonTLSSnapshot",
    nullcontext,
    without="autocast counts as off for every traced op",
)
running_node: Callable[[], Any] = private_part(
    "torch._C._current_autograd_node",
    lambda: None,
    without="ops of a backward pass are not attributed to their forward op",
)
"""The autograd node whose backward runs in this thread; None outside of a backward pass."""
_next_number: Callable[[], int] = private_part(
    "torch._C._autograd._get_sequence_nr",
    lambda: 0,
    without="ops of a backward pass are not attributed to their forward op",
)
LEAF_NUMBER = 1 << 62
"""Nodes are numbered as they are made; those of parameters stand above every number."""


def autocast_dtype(device: str) -> str | None:
    """The dtype autocast casts to, where it is on.

    By the time an op is dispatched autocast has done its work and is switched off; the snapshot is
    of the moment the op was called.
    """
    if not _can_autocast(device) or not _is_on(device):
        return None
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _is_on(device: str) -> bool:
    try:
        with _snapshot():
            return torch.is_autocast_enabled(device)
    except RuntimeError:  # a higher-order op, which comes here without the dispatcher
        return torch.is_autocast_enabled(device)


@cache
def _can_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


def last_node_number() -> int:
    """The number of the node that was made last in this thread."""
    return int(_next_number()) - 1


def compiled_code_runs() -> bool:
    """Whether torch.compile has made anything of this program's: a guard may know only the model
    that was compiled, and not what came of it."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)  # without them: nothing was compiled
    # With `fullgraph=True` torch counts no frames, only graphs.
    return counters is not None and any(
        sum(counters[kind].values()) > 0 for kind in ("frames", "stats")
    )


def run_eagerly() -> AbstractContextManager[Any]:
    """Compiled functions run as they are written, so that lines and modules are known.

    What the compiler has not loaded it did not compile, and loading it would take seconds.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    set_stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if set_stance is None else set_stance("force_eager")


# Whether torch.compile is at work.

# Importing torch._dynamo takes seconds, so it is never imported here: while it is not loaded,
# nothing was compiled.


def compile_in_use() -> bool:
    return "torch._dynamo" in sys.modules


def is_compiled(model: nn.Module) -> bool:
    """Whether this object or a part of it was compiled."""
    if not compile_in_use():
        return False
    return any(
        getattr(module, "_compiled_call_impl", None) is not None
        or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )


@cache
def _restores_dispatch_keys(code: types.CodeType) -> bool:
    return "_ForceDispatchKeyGuard" in code.co_names


def in_compiled_call() -> bool:
    """Whether a call of a compiled function has not returned yet.

    torch then restores the dispatch keys with which it began: a dispatch mode that was entered
    within would see nothing, and after one that was left within, the next op would fail.
    """
    if not compile_in_use():
        return False
    return any(_restores_dispatch_keys(frame.f_code) for frame in walk_callers(current_frame(1)))


def is_capturing() -> bool:
    """Whether the current CUDA stream is recorded into a CUDA graph: nothing may wait for it."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


_frame_callback: Callable[[], Any] = private_part(
    "torch._C._dynamo.eval_frame.get_eval_frame_callback",
    lambda: None,
    without="inside a compiled training step, code of headway is compiled as well",
)

_set_strategy: Callable[..., None] | None = private_part(
    "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    None,
    without="around a compiled optimizer step, torch warns of a function that it cannot compile",
)


def keep_uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for calls from compiled code, which neither inlines nor compiles it.

    `torch.compiler.disable` alone would load the compiler, and cost every uncompiled call more.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _frame_callback() is None:
            return function(*args, **kwargs)
        return torch.compiler.disable(function)(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled code calls it
    return call


_set_grad_enabled: Callable[[bool], Any] = private_part(
    "torch._C._set_grad_enabled",
    torch.set_grad_enabled,
    without="switching gradients off around our own work takes a little longer",
)


def without_gradients(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.no_grad()` around each call, for methods that every step calls."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        _set_grad_enabled(False)
        try:
            return function(*args, **kwargs)
        finally:
            _set_grad_enabled(True)

    return call


def skip_code(code: types.CodeType, *, below: bool = False) -> None:
    """Let the compiler pass over a function that the interpreter calls; and, with `below`, over
    everything that the function calls."""
    if _set_strategy is not None:
        parts = torch._C._dynamo.eval_frame
        with suppress(AttributeError, TypeError):  # they may come to have other names
            action = parts._FrameAction
            calls = action.SKIP if below else action.DEFAULT
            _set_strategy(code, parts._FrameExecStrategy(action.SKIP, calls))


# Once for all functions that `keep_uncompiled` returns: they share their code.
for _item in keep_uncompiled.__code__.co_consts:
    if isinstance(_item, types.CodeType) and _item.co_name == "call":
        skip_code(_item)
