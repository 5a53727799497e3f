"""After a device ran out of memory: runs the failing call again, smaller or with a remedy.

The process is about to end, so the trials disturb nothing that matters. The memory of the
failed step must be free again, and room is left for gradients and optimizer states that did not
exist yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.guard.memory.activation_checkpointing import checkpoint_activations
from headway.guard.memory.micro_batches import ModelCall
from headway.guard.memory.model_call_graphs import differentiate, may_carry
from headway.torch_adapters.compat import module_buffers, nested_leaves
from headway.torch_adapters.device_failure.device_memory import (
    holders_by_line,
    is_out_of_memory,
    record_allocations,
    release_cached_memory,
)
from headway.torch_adapters.rng import RngState

MAX_SECONDS = 30.0
"""Time after which no other trial begins."""
REFINEMENTS = 3
"""Trials between the largest number of rows that fits and the smallest that does not."""
MIN_LAYERS = 2
"""Layers of one class that make it worth recomputing their activations."""


@dataclass(slots=True)
class TrialResult:
    """The results of the trials."""

    rows: int = 0
    """Rows of the batch that did not fit."""
    fits: int | None = None
    """Largest number of rows that fitted; None: none did, or none was tried."""
    held: int | None = None
    """Bytes that stay allocated after the failed step, weights and states excluded."""
    remedies: list[dict[str, Any]] = field(default_factory=list)
    """`text`, `tested` and `cured` of each remedy."""
    holders: list[dict[str, Any]] = field(default_factory=list)
    """Memory by the user's line that allocated it, in a repetition of the failing call."""


class MemoryTrial:
    """Trials with one call of a model."""

    def __init__(
        self, call: ModelCall, missing: int, states: int = 0, *, release: Callable[[], None]
    ) -> None:
        """`missing`: bytes of gradients and states that a complete step needs besides; `states`:
        bytes of the optimizer states that exist."""
        self._call = call
        self._missing = missing
        self._states = states
        self._release = release
        self._end = time.monotonic() + MAX_SECONDS

    def run(self) -> TrialResult:
        """Find out what fits."""
        result = TrialResult(self._call.rows)
        with _state_restored(self._call.model):
            result.held = self._held()
            result.holders = self._holders()
            if self._fits(self._call, 0):  # it may have been one of many: a leak, another process
                result.fits = self._call.rows
                return result
            result.fits = self._largest()
            self._try_remedies(result)
        return result

    def _held(self) -> int | None:
        model = self._call.model
        device = next((p.device for p in model.parameters()), None)
        if device is None or device.type != "cuda":
            return None
        self._release()
        own = sum(p.nbytes * (2 if p.grad is not None else 1) for p in model.parameters())
        inputs = sum(tensor.nbytes for tensor in self._call.tensors())
        left = torch.cuda.memory_allocated(device) - own - inputs - self._states
        return max(left, 0)

    def _fits(
        self,
        call: ModelCall,
        missing: int | None = None,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        backward: bool = True,
    ) -> bool:
        self._release()
        try:
            with self._room(self._missing if missing is None else missing), within():
                leaves = nested_leaves(call())
                pairs = [
                    (item, torch.ones_like(item))
                    for item in leaves
                    if may_carry(item) and item.requires_grad
                ]
                del leaves
                if backward:
                    parameters = [p for p in call.model.parameters() if p.requires_grad]
                    with torch.no_grad():
                        differentiate(pairs, parameters)
            return True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            self._release()

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        device = next((p.device for p in self._call.model.parameters()), torch.device("cpu"))
        held = torch.empty(size, dtype=torch.uint8, device=device) if size else None
        yield
        del held

    def _largest(self) -> int | None:
        """The largest number of rows that fits, found within the time limit."""
        low, high = 0, self._call.rows
        while high > 1 and time.monotonic() < self._end:
            rows = (low + high) // 2 if low else high // 2
            if self._fits(self._call.part(0, rows)):
                low = rows
            else:
                high = rows
            if low and (high - low <= 1 or high - low < self._call.rows / 2**REFINEMENTS):
                break
        return low or None

    def _try_remedies(self, result: TrialResult) -> None:
        call, model = self._call, self._call.model
        if result.fits:
            pieces = -(-call.rows // result.fits)
            result.remedies.append(
                _remedy(
                    f"Use batches of at most {result.fits} rows, with gradient accumulation over "
                    f"{pieces} of them, or `Policy(on_oom='split')`.",
                    cured=True,
                )
            )
        if not model.training and torch.is_grad_enabled():
            advice = "Run the evaluation under `torch.no_grad()`."
            if self._fits(call, 0, torch.no_grad, backward=False):
                result.remedies.append(_remedy(advice, cured=True))
            else:  # graphs of earlier batches cannot be released here
                result.remedies.append({"text": advice, "tested": False})
        kind = _repeated_layer(model)
        if kind is not None:
            self._try(
                result,
                f"Recompute the activations of `{kind}` in backward: "
                f'`headway.checkpoint_activations(model, classes="{kind}")`.',
                lambda: checkpoint_activations(model, classes=kind),
            )
        device = next((p.device.type for p in model.parameters()), "cpu")
        if device != "cpu" and not torch.is_autocast_enabled(device):
            self._try(
                result,
                "Run the forward pass under `torch.autocast` with bfloat16.",
                lambda: torch.autocast(device, dtype=torch.bfloat16),
            )

    def _try(
        self,
        result: TrialResult,
        text: str,
        within: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        if time.monotonic() >= self._end:
            return
        try:
            cured = self._fits(self._call, None, within)
        except Exception:  # the model does not take this remedy
            return
        result.remedies.append(_remedy(text, cured=cured))

    def _holders(self) -> list[dict[str, Any]]:
        """Run the failing call again while the allocator notes lines, and read them at its end."""
        device = next((p.device for p in self._call.model.parameters()), None)
        if device is None or device.type != "cuda" or not record_allocations(True):
            return []
        self._release()
        number = device.index or 0
        try:
            leaves = self._call()
            del leaves
        except Exception as error:
            # While the exception is alive its frames hold what the step had allocated.
            return holders_by_line(number) if is_out_of_memory(error) else []
        else:
            return []
        finally:
            record_allocations(False)


def missing_bytes(model: nn.Module, states: Mapping[int, int]) -> int:
    """Gradients and optimizer states that do not exist yet; `states` by parameter: tensors due."""
    total = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            due = states.get(id(parameter), 0) + (parameter.grad is None)
            total += due * parameter.nbytes
    return total


def _remedy(text: str, *, cured: bool) -> dict[str, Any]:
    return {"text": text, "tested": True, "cured": cured}


def _repeated_layer(model: nn.Module) -> str | None:
    """The class of the layers that the model repeats, the one with the most parameters."""
    sizes: dict[str, int] = {}
    for module in model.modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        kinds = [type(child) for child in module.children() if next(child.children(), None)]
        for kind in set(kinds):
            if kinds.count(kind) >= MIN_LAYERS:
                sizes[kind.__name__] = sum(
                    p.numel() for c in module.children() if type(c) is kind for p in c.parameters()
                )
    return max(sizes, key=lambda name: sizes[name]) if sizes else None


@contextmanager
def _state_restored(model: nn.Module) -> Iterator[None]:
    """Random numbers and small buffers are afterwards as they were."""
    before = RngState()
    saved: list[tuple[Tensor, Tensor]] = [
        (buffer, buffer.detach().to("cpu", copy=True))
        for module in model.modules()
        for buffer in module_buffers(module).values()
        if buffer is not None
    ]
    try:
        yield
    finally:
        release_cached_memory()
        before.restore()
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)
