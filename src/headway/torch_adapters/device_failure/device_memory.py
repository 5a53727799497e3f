"""Reads the device's allocator: requests, limits, memory by line, other processes."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from headway.torch_adapters.frames import Location, find_user_location
from headway.torch_adapters.live_objects import find_instances
from headway.torch_adapters.private_parts import private_part

DEVICE_TEXTS = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "failed to allocate",
)
HOST_TEXTS = ("DefaultCPUAllocator", "not enough memory", "Cannot allocate memory")
_UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TRIED = re.compile(r"[Tt]ried to allocate (?:more than )?([\d.]+) ?(\w+)")
_HOST_TRIED = re.compile(
    r"(?:tried|trying) to allocate (\d+) bytes|allocate an array.*?([\d.]+) (\w+)"
)
_DEVICE = re.compile(r"(?:GPU|CUDA device|cuda:) ?(\d+)")


def is_device_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of an accelerator ran out."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError) or is_host_out_of_memory(error):
        return False
    text = str(error)
    return any(part in text for part in DEVICE_TEXTS)


def is_host_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the host ran out."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == 12:
        return True
    return isinstance(error, RuntimeError) and names_host_memory(str(error))


def names_host_memory(text: str) -> bool:
    """Whether the message of an error means the memory of the host."""
    return any(part in text for part in HOST_TEXTS)


def is_out_of_memory(error: BaseException) -> bool:
    return is_device_out_of_memory(error) or is_host_out_of_memory(error)


def requested_bytes(text: str) -> int | None:
    """The size of the allocation that an error message names."""
    if found := _HOST_TRIED.search(text):
        if found[1]:
            return int(found[1])
        return int(float(found[2]) * _UNITS.get(found[3], 1))
    if found := _TRIED.search(text):
        return int(float(found[1]) * _UNITS.get(found[2], 1))
    return None


def named_bytes(text: str, after: str) -> int | None:
    """The size that stands before these words in an error message: `2.80 GiB allowed`."""
    found = re.search(r"([\d.]+) (\w+) " + after, text)
    return int(float(found[1]) * _UNITS.get(found[2], 1)) if found else None


def device_in(text: str) -> int | None:
    """The number of the device that an error message names."""
    found = _DEVICE.search(text)
    return int(found[1]) if found else None


def release_cached_memory() -> None:
    """Collect garbage, and return cached blocks to the device."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# What the allocator holds.

_snapshot: Callable[[], Mapping[str, Any]] | None = private_part(
    "torch.cuda.memory._snapshot",
    None,
    without="device memory is grouped by live tensors only, not by the line that allocated it",
)
_record_history: Callable[..., None] | None = private_part(
    "torch.cuda.memory._record_memory_history",
    None,
    without="device memory is grouped by live tensors only, not by the line that allocated it",
)


def record_allocations(on: bool) -> bool:
    """Let the allocator keep the Python stack of every block; whether it does."""
    if _record_history is None or not torch.cuda.is_initialized():
        return False
    with suppress(Exception):  # another torch takes other arguments
        if on:
            _record_history(enabled="state", context="alloc", stacks="python", max_entries=1)
        else:
            _record_history(enabled=None)
        return on
    return False


def memory_of_device(device: int) -> dict[str, int]:
    """Free and total memory of the device, and what this process has of it, in bytes."""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    stats = torch.cuda.memory_stats(device)
    return {
        "total": total,
        "free": free,
        "allocated": torch.cuda.memory_allocated(device),
        "peak": torch.cuda.max_memory_allocated(device),
        "reserved": reserved,
        "cached": max(reserved - torch.cuda.memory_allocated(device), 0),
        "others": max(total - free - reserved, 0),
        "retries": int(stats.get("num_alloc_retries", 0)),
    }


def holders_by_line(device: int) -> list[dict[str, Any]]:
    """Blocks in use grouped by the user's line that allocated them; empty without a history."""
    if _snapshot is None:
        return []
    sizes: dict[tuple[str, int, str], list[int]] = {}
    with suppress(Exception):  # the format is private
        for segment in _snapshot()["segments"]:
            if segment.get("device", 0) != device:
                continue
            for block in segment["blocks"]:
                if block["state"].startswith("active"):
                    place = _place_of(block.get("frames") or ())
                    found = sizes.setdefault(place, [0, 0]) if place else None
                    if found is not None:
                        found[0] += block["size"]
                        found[1] += 1
    ordered = sorted(sizes.items(), key=lambda item: -item[1][0])
    return [
        {"file": file, "line": line, "function": function, "bytes": size, "blocks": count}
        for (file, line, function), (size, count) in ordered
    ]


def _place_of(frames: Iterable[Mapping[str, Any]]) -> tuple[str, int, str] | None:
    stack = [Location(f["filename"], int(f["line"]), f.get("name")) for f in frames]
    place = find_user_location(stack)
    return None if place is None else (place.file, place.line, place.function or "")


def holders_by_kind(device: torch.device, roles: Mapping[int, str]) -> list[dict[str, Any]]:
    """Live tensors grouped by role, then by shape and dtype; `roles` by the address of a storage.

    Tensors that only the autograd graph holds are not seen by Python: `activations` is what the
    allocator has beyond those that are.
    """
    sizes: dict[str, list[Any]] = {}
    seen: set[int] = set()
    for tensor in find_instances(Tensor):
        with suppress(Exception):  # fake, meta and wrapper tensors have no storage
            if tensor.device != device:
                continue
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if not address or address in seen:
                continue
            seen.add(address)
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            kind = (
                roles.get(address) or f"tensors {str(tensor.dtype).removeprefix('torch.')} {shape}"
            )
            found = sizes.setdefault(kind, [0, 0])
            found[0] += storage.nbytes()
            found[1] += 1
    ordered = sorted(sizes.items(), key=lambda item: -item[1][0])
    return [{"kind": kind, "bytes": size, "blocks": count} for kind, (size, count) in ordered]


# The call that failed.


def find_module_call(
    error: BaseException,
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]] | None:
    """The outermost call of a module in the traceback of an exception, with its arguments."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name in ("_wrapped_call_impl", "_call_impl"):
            variables = frame.f_locals
            model, args = variables.get("self"), tuple(variables.get("args", ()))
            kwargs = dict(variables.get("kwargs", {}))
            if sys.version_info < (3, 13):
                variables.clear()  # a copy that Python keeps with the frame, and clears with none
            if isinstance(model, torch.nn.Module):
                return model, args, kwargs
        trace = trace.tb_next
    return None


def role_addresses(
    modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> dict[int, str]:
    """What each storage is to the training: weights, gradients, optimizer states, buffers."""
    roles: dict[int, str] = {}

    def note(tensor: Any, role: str) -> None:
        with suppress(Exception):  # wrapper tensors have no storage
            roles.setdefault(tensor.untyped_storage().data_ptr(), role)

    for module in modules:
        for parameter in module.parameters(recurse=False):
            note(parameter, "weights")
            if parameter.grad is not None:
                note(parameter.grad, "gradients")
        for buffer in module.buffers(recurse=False):
            note(buffer, "buffers")
    for optimizer in optimizers:
        for state in list(optimizer.state.values()):
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    note(value, "optimizer states")
    return roles
