"""Describes an exception that means that memory ran out: on the device (HD808) or host (HD809)."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from headway.core.ending_facts import OUT_OF_MEMORY
from headway.guard.endings.failure import Failure, Recognised, read_line
from headway.guard.endings.host_memory import HostMemory
from headway.guard.endings.memory_trial import MemoryTrial, TrialResult, missing_bytes
from headway.guard.memory.micro_batches import ModelCall
from headway.torch_adapters import live_objects
from headway.torch_adapters.device_failure import device_memory
from headway.torch_adapters.frames import clear_frames

MAX_HOLDERS = 12
"""Holders of memory in an event, the largest first."""
MESSAGE_SIZES = {
    "allowed": "allowed",
    "allocated": "is allocated by PyTorch",
    "unused": "is reserved by PyTorch but unallocated",
}
"""Sizes in the message of torch's allocator, by the words after them."""
ADAM_STATES = 2
EXPANDABLE = "expandable_segments"
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def recognise_out_of_memory(failure: Failure) -> Recognised | None:
    """The event of an exception that means that memory ran out; None for any other."""
    error = failure.error
    if _is_of_pinned_memory(failure):
        return OUT_OF_MEMORY, {**failure.facts(), **_host_facts(error)}
    if device_memory.is_device_out_of_memory(error):
        return OUT_OF_MEMORY, {**failure.facts(), **_device_facts(error)}
    if device_memory.is_host_out_of_memory(error):
        return OUT_OF_MEMORY, {**failure.facts(), **_host_facts(error)}
    return None


def _is_of_pinned_memory(failure: Failure) -> bool:
    """CUDA pins memory of the host, and names neither the host nor a size when it cannot."""
    if isinstance(failure.error, torch.OutOfMemoryError) or failure.place is None:
        return False
    asked = device_memory.is_device_out_of_memory(failure.error)
    return asked and "pin_memory" in (read_line(failure.place) or "")


def _host_facts(error: BaseException) -> dict[str, Any]:
    return {
        "memory_of": "host",
        "requested": device_memory.requested_bytes(str(error)),
        "memory": {**HostMemory.read().to_dict(), **_address_space()},
    }


def _address_space() -> dict[str, int]:
    """The limit of this process, if it has one: reached long before the memory of the host."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError):  # Windows
        return {}
    return {} if limit == resource.RLIM_INFINITY else {"address_space": limit}


def _device_facts(error: BaseException) -> dict[str, Any]:
    text = str(error)
    facts: dict[str, Any] = {
        "memory_of": "device",
        "requested": device_memory.requested_bytes(text),
    }
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {**facts, **_trial_facts(error, {})}
    number = device_memory.device_in(text)
    device = torch.device("cuda", torch.cuda.current_device() if number is None else number)
    facts["device"] = str(device)
    with suppress(RuntimeError):
        memory = device_memory.memory_of_device(device.index)
        # What the allocator wrote when it failed; meanwhile some of it is free again.
        for name, words in MESSAGE_SIZES.items():
            size = device_memory.named_bytes(text, words)
            if size is not None:
                memory[name] = size
        facts["memory"] = memory
        facts["fragmented"] = memory.get("unused", 0) >= (facts["requested"] or memory["total"])
        facts["holders"] = _holders_by_role(device, memory)
    return {**facts, **_trial_facts(error, facts)}


def _holders_by_role(device: torch.device, memory: dict[str, int]) -> list[dict[str, Any]]:
    modules = live_objects.find_instances(nn.Module)
    roles = device_memory.role_addresses(modules, live_objects.find_optimizers())
    found = device_memory.holders_by_kind(device, roles)
    now = torch.cuda.memory_allocated(device)
    unseen = now - sum(item["bytes"] for item in found)
    if unseen > 0:
        found.append({"kind": "activations and workspaces", "bytes": unseen, "blocks": 0})
    return sorted(found, key=lambda item: -item["bytes"])[:MAX_HOLDERS]


def _trial_facts(error: BaseException, facts: dict[str, Any]) -> dict[str, Any]:
    """Run the failing call again with fewer rows and with remedies, where it is known."""
    found = device_memory.find_module_call(error)
    added: dict[str, Any] = {}
    if found is not None and not _debugged():
        result = _try(error, ModelCall(found[0], found[0], found[1], found[2]))
        if result is not None:
            added = {
                "rows": result.rows,
                "fits": result.fits,
                "held": result.held,
                "remedies": result.remedies,
            }
            if result.holders:
                added["lines"] = result.holders[:MAX_HOLDERS]
    if facts.get("fragmented") and not _is_expandable():
        advice = {
            "text": "Set PYTORCH_ALLOC_CONF=expandable_segments:True: the memory that is free is "
            "in pieces that are too small.",
            "tested": False,
        }
        added["remedies"] = [*added.get("remedies", ()), advice]
    return added


def _try(error: BaseException, call: ModelCall) -> TrialResult | None:
    # The frames of the traceback hold the tensors of the failed step.
    clear_frames(error)
    states: dict[int, int] = {}
    present = 0
    for optimizer in live_objects.find_optimizers():
        present += sum(
            value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )
        due = ADAM_STATES if "betas" in optimizer.defaults else 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in optimizer.state:
                    states[id(parameter)] = due
    missing = missing_bytes(call.model, states)
    try:
        release = device_memory.release_cached_memory
        return MemoryTrial(call, missing, present, release=release).run()
    except Exception:  # the trial is an extra: whatever it raises, the failure is described
        return None


def _debugged() -> bool:
    """Whether the user may want to inspect the frames of the exception."""
    return bool(sys.flags.interactive or hasattr(sys, "ps1") or os.environ.get("PYTHONINSPECT"))


def _is_expandable() -> bool:
    return any(EXPANDABLE in os.environ.get(name, "") for name in ALLOCATOR_SETTINGS)
