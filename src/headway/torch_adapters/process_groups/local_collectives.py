"""Answers collectives on one rank, as if every other rank sent what this one sends.

A step that only one rank runs again must not wait for the others, nor take part in a collective of
theirs that comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor

from headway.torch_adapters.modes import UncompiledDispatchMode, no_python_dispatch
from headway.torch_adapters.private_parts import private_part

_make_work: Callable[[], Any] | None = private_part(
    "torch._C._distributed_c10d.FakeWork",
    None,
    without="a step with collectives is not run again by one rank alone",
)
_box_work: Callable[[Any], Any] | None = private_part(
    "torch._C._distributed_c10d.Work.boxed",
    None,
    without="a step with collectives is not run again by one rank alone",
)
_SPACES = ("c10d", "_c10d_functional")
ALONE = "it has collectives, and can only be run again by all ranks together"


def in_a_group() -> bool:
    """Whether this process may have collectives with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def can_run_alone() -> bool:
    """Whether code with collectives can be run by this rank alone."""
    return not in_a_group() or (_make_work is not None and _box_work is not None)


def local_collectives() -> AbstractContextManager[Any]:
    """No collective reaches another rank. What only another rank knows raises an error."""
    return _LocalCollectives() if in_a_group() else nullcontext()  # type: ignore[no-untyped-call]


class _LocalCollectives(UncompiledDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        space, _, name = func.name().partition("::")
        if space not in _SPACES:
            return func(*args, **(kwargs or {}))
        name = name.partition(".")[0]
        answer = _ANSWERS.get(name)
        if answer is None or _make_work is None or _box_work is None:
            raise RuntimeError(f"{name}: {ALONE}")
        with no_python_dispatch():
            answer(args)
        work = _box_work(_make_work())
        return work if len(func._schema.returns) == 1 else (args[0], work)


def _nothing(args: Sequence[Any]) -> None:
    """What this rank has is the answer."""


def _gather(args: Sequence[Any]) -> None:
    for outputs, own in zip(args[0], args[1], strict=True):
        for output in outputs:
            output.copy_(own)


def _gather_base(args: Sequence[Any]) -> None:
    output, own = args[0], args[1]
    output.view(-1, own.numel()).copy_(own.reshape(1, -1))


def _scatter_reduced(args: Sequence[Any]) -> None:
    for output, parts in zip(args[0], args[1], strict=True):
        output.copy_(parts[0])


def _scatter_reduced_base(args: Sequence[Any]) -> None:
    output: Tensor = args[0]
    output.copy_(args[1].reshape(-1)[: output.numel()].view_as(output))


def _broadcast(args: Sequence[Any]) -> None:
    group = dist.ProcessGroup.unbox(args[1])
    if group.rank() != args[2]:
        raise RuntimeError(f"broadcast: {ALONE}")


_ANSWERS: dict[str, Callable[[Sequence[Any]], None]] = {
    **dict.fromkeys(
        ("allreduce_", "allreduce_coalesced_", "reduce_", "barrier", "monitored_barrier_"), _nothing
    ),
    "allgather_": _gather,
    "_allgather_base_": _gather_base,
    "reduce_scatter_": _scatter_reduced,
    "_reduce_scatter_base_": _scatter_reduced_base,
    "broadcast_": _broadcast,
}
