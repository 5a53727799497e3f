"""The order in which DistributedDataParallel puts gradients into its buckets.

DistributedDataParallel chooses it again after its first backward pass. With more than two ranks the
rounding of a sum depends on the place of a number in its bucket, so that the first step of a
resumed run would differ from the uninterrupted run in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headway.torch_adapters.private_parts import private_method, private_part
from headway.torch_adapters.process_groups.local_gradients import find_hook_states
from headway.torch_adapters.process_groups.rank_group import find_replicas

Replica = nn.parallel.DistributedDataParallel
_WITHOUT = "a resumed run on more than two ranks may differ in the last bits"
_engine: Any = private_part("torch.autograd.Variable._execution_engine", None, without=_WITHOUT)
_read_log: Any = private_method(
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
    lambda replica: {},
    without=_WITHOUT,
)


def capture(models: Sequence[nn.Module]) -> list[list[int]]:
    """Of each DistributedDataParallel: its parameters by number, in the order of its buckets; empty
    where it keeps the order of the start."""
    return [_order(replica) for replica in find_replicas(models)]


def restore(models: Sequence[nn.Module], orders: Sequence[Sequence[int]]) -> str:
    """Let each choose that order again, in a backward pass without meaning; on all ranks.

    Returns the option that does not allow it; empty where the order is that of before.
    """
    replicas = find_replicas(models) if _engine is not None else []
    obstacle = next((text for replica in replicas if (text := _obstacle(replica))), "")
    if replicas and not obstacle and find_hook_states(models):
        obstacle = "a communication hook that has a state"
    if obstacle or len(replicas) != len(orders):
        return obstacle
    for replica, order in zip(replicas, orders, strict=True):
        parameters = _reduced(replica)
        if sorted(order) == list(range(len(parameters))) and not _order(replica):
            _run_backward(replica, [parameters[at] for at in order])
    return ""


def _obstacle(replica: Replica) -> str:
    if replica.static_graph:
        return "static_graph=True"
    special = getattr(replica, "mixed_precision", None) is not None
    return "mixed_precision=" if special else ""


def _order(replica: Replica) -> list[int]:
    # With find_unused_parameters the order of the start is kept.
    if replica.find_unused_parameters or _obstacle(replica):
        return []
    text = str(_read_log(replica).get("rebuilt_per_bucket_param_indices", ""))
    return [int(number) for number in text.replace(",", " ").split()]


def _reduced(replica: Replica) -> list[nn.Parameter]:
    ignored = replica.parameters_to_ignore
    named = replica.module.named_parameters()
    return [p for name, p in named if p.requires_grad and name not in ignored]


def _run_backward(replica: Replica, parameters: Sequence[nn.Parameter]) -> None:
    """Gradients become ready in the order of the parameters: what was computed last comes first."""
    gradients = [parameter.grad for parameter in parameters]
    with torch.enable_grad():
        total: torch.Tensor | None = None
        for parameter in reversed(parameters):
            part = parameter.reshape(-1)[:1].sum().float()
            total = part if total is None else part + total
        assert total is not None
        replica.reducer.prepare_for_forward()
        replica.reducer.prepare_for_backward([])
        # Past the patches of `Tensor.backward`: this is no pass of the training.
        _engine.run_backward((total,), (torch.ones_like(total),), False, False, (), True, True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
