"""The guard in a loop over Accelerate.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    guard = headway.integrations.accelerate.guard(accelerator, model, optimizer)
    for batch in guard(loader):
        with accelerator.accumulate(model):
            ...

The rest of the loop stays the same. The optimizer that `prepare` returns is a wrapper without
torch's hooks, so the guard watches the optimizer inside. Under `accumulate` that one steps only
when a whole batch is complete.
"""

from __future__ import annotations

from headway.integrations import _needs_torch  # noqa: F401

# isort: split

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError
from headway.guard.guard import Guard
from headway.integrations._shared import import_framework

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

AcceleratedOptimizer: Any = import_framework(
    "accelerate.optimizer", extra="accelerate"
).AcceleratedOptimizer


def guard(
    accelerator: Accelerator,
    model: nn.Module | Sequence[nn.Module],
    optimizer: Any,
    scheduler: Any = None,
    **options: Any,
) -> Guard:
    """A guard for what `accelerator.prepare` returned; `options` are those of `headway.Guard`."""
    if str(getattr(accelerator.distributed_type, "value", "")) == "DEEPSPEED":
        raise UsageError(
            "this Accelerator runs DeepSpeed, whose updates headway cannot skip: use "
            "headway.integrations.deepspeed.watch(model), which observes"
        )
    several = isinstance(optimizer, (list, tuple))
    inner = [torch_optimizer(item) for item in (optimizer if several else [optimizer])]
    options.setdefault("scaler", accelerator.scaler)
    return Guard(model, inner, scheduler, **options)


def torch_optimizer(optimizer: Any) -> Any:
    """The optimizer inside Accelerate's wrapper: the one whose hooks are called."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
