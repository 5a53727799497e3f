"""The buckets into which DistributedDataParallel puts gradients.

DistributedDataParallel chooses them again after its first backward pass, with `static_graph=True`
after its second. With more than two ranks the rounding of a sum depends on the place of a number in
its bucket, and communication hooks (PowerSGD) keep their state by bucket. So a resumed run gets the
buckets of the run that wrote the snapshot before its first step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headway.torch_adapters.patching import install_patch
from headway.torch_adapters.private_parts import private_method, private_part
from headway.torch_adapters.process_groups.rank_group import find_replicas

Replica = nn.parallel.DistributedDataParallel
Buckets = list[list[int]]
"""The parameters of each bucket, by number."""
_WITHOUT = "a resumed run on more than two ranks may differ in the last bits"
_engine: Any = private_part("torch.autograd.Variable._execution_engine", None, without=_WITHOUT)
_read_log: Any = private_method(
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
    lambda replica: {},
    without=_WITHOUT,
)
_make_reducer: Any = private_part(
    "torch.nn.parallel.DistributedDataParallel._ddp_init_helper", None, without=_WITHOUT
)
_register_hook: Any = private_part("torch.distributed._register_comm_hook", None, without=_WITHOUT)

_given: weakref.WeakKeyDictionary[nn.Module, Buckets] = weakref.WeakKeyDictionary()
"""Buckets of a resumed run that torch has not reported yet."""


def capture(models: Sequence[nn.Module]) -> list[Buckets]:
    """Of each DistributedDataParallel; empty where it keeps those of the start."""
    return [_buckets(replica) for replica in find_replicas(models)]


def is_undecided(models: Sequence[nn.Module]) -> bool:
    """Whether some DistributedDataParallel has not chosen its buckets yet; the same on all ranks.

    Torch tells them two backward passes after the one that decides.
    """
    return any(_changes(replica) and not _buckets(replica) for replica in find_replicas(models))


def restore(models: Sequence[nn.Module], saved: Sequence[Buckets]) -> str:
    """Give each the buckets that it had; on all ranks.

    Returns why that is not possible; empty where they are those of before.
    """
    replicas = find_replicas(models)
    if len(replicas) != len(saved):
        return "in another number than in the snapshot"
    for replica, buckets in zip(replicas, saved, strict=True):
        if _changes(replica) and not _read_log(replica):
            return "of this version of torch"
        if not _changes(replica) or not buckets or buckets == _buckets(replica):
            continue
        parameters = _reduced(replica)
        obstacle = _obstacle(replica)
        if obstacle:
            return obstacle
        if sorted(at for bucket in buckets for at in bucket) != list(range(len(parameters))):
            return "that trains other parameters than in the snapshot"
        if replica.static_graph:
            _replace_reducer(replica, buckets)
            _given[replica] = buckets
        else:
            _run_backward(replica, [parameters[at] for bucket in buckets for at in bucket])
    return ""


def _changes(replica: Replica) -> bool:
    # With find_unused_parameters the buckets of the start are kept.
    return bool(replica.static_graph or not replica.find_unused_parameters)


def _obstacle(replica: Replica) -> str:
    if getattr(replica, "mixed_precision", None) is not None:
        return "with mixed_precision="
    if getattr(replica, "_use_python_reducer", False):
        return "with compiled_autograd"
    if replica.static_graph:
        if _make_reducer is None or _register_hook is None:
            return "with static_graph=True"
        return "with a built-in communication hook" if _has_built_in_hook(replica) else ""
    if _engine is None:
        return "of this version of torch"
    return "that has already trained" if _buckets(replica) else ""


def _buckets(replica: Replica) -> Buckets:
    if not _changes(replica):
        return []
    text = str(_read_log(replica).get("rebuilt_per_bucket_param_indices", ""))
    parsed = [[int(number) for number in part.split()] for part in text.split(",") if part.strip()]
    return parsed or _given.get(replica, [])


def _reduced(replica: Replica) -> list[nn.Parameter]:
    ignored = replica.parameters_to_ignore
    named = replica.module.named_parameters()
    return [p for name, p in named if p.requires_grad and name not in ignored]


def _run_backward(replica: Replica, parameters: Sequence[nn.Parameter]) -> None:
    """Let torch choose the buckets, in a pass without meaning: it keeps them from then on.

    Gradients become ready in the order of the parameters: what was computed last comes first.
    """
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


def _replace_reducer(replica: Any, buckets: Buckets) -> None:
    """Start with these buckets. With a static graph torch counts the gradients of its first pass,
    which therefore must be one of the training; it then chooses the same buckets again."""
    parameters, sparse = replica._build_params_for_reducer()
    names = replica._build_debug_param_to_name_mapping(parameters)
    replica.reducer._remove_autograd_hooks()
    chosen = (buckets[::-1], [sys.maxsize] * len(buckets))  # torch reverses both
    undo = install_patch(dist, "_compute_bucket_assignment_by_size", lambda *_, **__: chosen)
    try:
        _make_reducer(replica, parameters, sparse, names, True)
    finally:
        undo()
    replica._static_graph_delay_allreduce_enqueued = False
    replica.reducer._set_static_graph()
    replica.logger._set_static_graph()
    for hook, state in getattr(replica, "_comm_hooks", ()):
        _register_hook(replica.reducer, state, hook)


def _has_built_in_hook(replica: Any) -> bool:
    """Whether the reducer has a hook in C++, which cannot be read: it then refuses another."""
    if getattr(replica, "_comm_hooks", ()):
        return False
    try:
        _register_hook(replica.reducer, None, _never_called)
    except RuntimeError:
        return True
    return False  # the reducer is replaced, and the hook is gone with it


def _never_called(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
    raise AssertionError("the reducer was replaced")
