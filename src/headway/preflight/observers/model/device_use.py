"""Devices: memory per phase, unused graphs, transfers from the host, and tensors on different
devices in one operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.guard.measure.sampling import host_rss_bytes
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.source_lines import locate_crash
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.nested_state import find_tensors

# Tensors of different devices that met in one operation.

# Torch says so by raising, and names two devices without saying whose they are. The operation that
# ran then tells: its tensors, and which of them is whose parameter.

EARLY = 3
"""Steps in which every operation is listened to: such an error comes in the first."""
_DEVICE = r"(?:cpu|cuda|mps|xpu|hpu|npu|xla|meta|tpu)(?::\d+)?"
_SAYS_SO = re.compile(
    r"same device|not on the expected device|different devices?\b|device type|"
    r"should be the same.*|Placeholder storage",
    re.IGNORECASE,
)
_TYPES = re.compile(r"torch\.(?:(cuda|mps|xpu)\.)?\w+Tensor")
_COMPUTES = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "embedding")
"""What runs on a tensor without data and does not say so."""
MOST_TENSORS = 8


class MixedDevices(Observer):
    """Observes operations and the crash."""

    every_function = True

    def start(self) -> None:
        self._call: TorchCall | None = None
        self._model: nn.Module | None = None
        self._module: nn.Module | None = None
        self._told = False

    def function_begins(self, call: TorchCall) -> None:
        self._call = call
        stack = self.script.stack
        self._model, self._module = (stack[0], stack[-1]) if stack else (None, None)

    def function_ended(self, call: TorchCall) -> None:
        if call.name in _COMPUTES and not self._told:
            met = {tensor.device.type for _, tensor in _tensors(call)}
            if "meta" in met and len(met) > 1:
                self._report(call, self.script.place(), crashed=False)
        self._call = None

    def step_ended(self, optimizer: Any) -> None:
        self.every_function = self.script.step < EARLY

    def crashed(self, error: BaseException) -> None:
        said = str(error)
        devices = _devices_in(said)
        if self._told or not _SAYS_SO.search(said) or len(devices) < 2:
            return
        call = self._call
        if call is not None and len({tensor.device for _, tensor in _tensors(call)}) < 2:
            call = None
        self._report(call, locate_crash(error), crashed=True, devices=devices, said=said)

    def finished(self) -> None:
        if not self._told and self.script.models:
            every = {str(p.device) for model in self.script.models for p in model.parameters()}
            self.evidence.record("device-mismatch", {"devices": [], "models_on": sorted(every)})
        self._call = self._model = self._module = None

    def _report(
        self,
        call: TorchCall | None,
        place: dict[str, Any] | None,
        *,
        crashed: bool,
        devices: list[str] | None = None,
        said: str = "",
    ) -> None:
        self._told = True
        found = [] if call is None else list(_tensors(call))[:MOST_TENSORS]
        self.evidence.record(
            "device-mismatch",
            {
                "devices": sorted({str(tensor.device) for _, tensor in found}) or devices or [],
                "op": None if call is None else call.name,
                "module": self._path(),
                "tensors": [
                    {
                        "name": self._name(tensor) or role,
                        "parameter": self._name(tensor) is not None,
                        "device": str(tensor.device),
                        "shape": list(tensor.shape),
                    }
                    for role, tensor in found
                ],
                "crashed": crashed,
                "error": said.splitlines()[0][:300] if said else None,
                "place": place,
            },
        )

    def _path(self) -> str | None:
        if self._model is None or self._module is None:
            return None
        for path, module in self._model.named_modules():
            if module is self._module:
                return path or type(module).__name__
        return type(self._module).__name__

    def _name(self, tensor: Tensor) -> str | None:
        known = self.script.name_of(tensor)
        if known is not None or self._model is None:
            return known
        for name, parameter in (*self._model.named_parameters(), *self._model.named_buffers()):
            if parameter is tensor:
                return name
        return None


def _tensors(call: TorchCall) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a call that must be on one device: numbers may come from the host."""
    named = [
        *((f"argument {at}", item) for at, item in enumerate(call.args, 1)),
        *call.kwargs.items(),
    ]
    for name, item in named:
        listed = item if isinstance(item, (list, tuple)) else (item,)
        for one in listed:
            if isinstance(one, Tensor) and one.ndim:
                yield name, one


def _devices_in(said: str) -> list[str]:
    found = dict.fromkeys(re.findall(rf"\b{_DEVICE}", said))
    if len(found) < 2:
        kinds = {match or "cpu" for match in _TYPES.findall(said)}
        found = dict.fromkeys(kinds if len(kinds) > 1 else found)
    return list(found)


# Graphs that a model's forward makes and no backward pass ever sees.

# A guard watches the graphs of the losses that are sent backward. A model that is run on the side,
# to look at its outputs, makes graphs too, and they are kept with whatever is kept of it.


class UnusedGraphs(Observer):
    """Shows the outputs of the outermost modules to the guard's watch over kept graphs."""

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        guard = self.script.launch.guard
        if guard is not None and torch.is_grad_enabled():
            session = guard.session
            session.retention.forward_ended(session.steps, [t for _, t in find_tensors(output)])


# How much memory each phase of a step takes (forward, backward, update), and each epoch.

# On CUDA the peak of what tensors hold, by the allocator's own count. On the CPU the process's
# resident memory at the end of the phase: the allocator keeps no peak there. An epoch is a pass
# over the loader that the training draws from.

MEMORY_TOPIC = "memory"
MEMORY_STEPS = 3
"""The first steps: what stays allocated (moments) is allocated in them."""
MOST_EPOCHS = 100


class PhaseMemory(Observer):
    """Peak memory by phase over the first steps, and by epoch."""

    def start(self) -> None:
        self.peaks: dict[str, int] = {}
        self.epochs: list[int] = []
        """The peak of each epoch that is over."""
        self._told = False
        self._epoch = 0
        """The peak of the one that runs."""
        self._data: Any = None
        """The data set of the last batch; loaders are often recreated for each epoch."""
        self._trained_on: Any = None
        """The data set whose passes are the epochs: that of the first step."""

    def pass_begun(self, loader: Any) -> None:
        if self._trained_on is not None and _data_of(loader) is self._trained_on:
            self._end_epoch()

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._data = _data_of(loader)

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._end_of("forward")

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._end_of("backward")

    def step_ended(self, optimizer: Optimizer) -> None:
        self._end_of("update")
        if self._trained_on is None:
            self._trained_on = self._data
        if self.script.step >= MEMORY_STEPS:
            self._report()

    def finished(self) -> None:
        self._end_epoch()
        self._told = False
        self._report()
        self._data = self._trained_on = None

    def _report(self) -> None:
        if not self._told and self.peaks:
            self._told = True
            kind = "device-peak" if torch.cuda.is_initialized() else "host-resident"
            facts: dict[str, Any] = {"kind": kind, "phases": dict(self.peaks)}
            if self._trained_on is not None and self.epochs:
                facts["epochs"] = self.epochs[:MOST_EPOCHS]
            self.evidence.record(MEMORY_TOPIC, facts)

    def _end_of(self, phase: str) -> None:
        early = not self._told and self.script.step <= MEMORY_STEPS
        if torch.cuda.is_initialized():
            used = int(torch.cuda.max_memory_allocated())
            if early:
                torch.cuda.reset_peak_memory_stats()
        else:
            used = host_rss_bytes() or 0
        self._epoch = max(used, self._epoch)
        if early:
            self.peaks[phase] = max(used, self.peaks.get(phase, 0))

    def _end_epoch(self) -> None:
        if self._epoch:
            self.epochs.append(self._epoch)
        self._epoch = 0
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()


def _data_of(loader: Any) -> Any:
    return getattr(loader, "dataset", loader)


# How batches get from the host to the device.

TRANSFER_TOPIC = "transfer"
LEAST_TRANSFER = 1 << 16
"""Bytes below which a copy is not worth a thought."""


class HostTransfers(Observer):
    """Sums up copies from the host's memory to a CUDA device while something trains."""

    functions = find_aliases("to", "cuda")

    def start(self) -> None:
        self._copies = 0
        self._bytes = 0
        self._pageable = 0
        self._blocking = 0
        self._place: dict[str, Any] | None = None
        self._steps = 0

    def function_ended(self, call: TorchCall) -> None:
        source = call.args[0] if call.args else None
        if not isinstance(source, Tensor) or not isinstance(call.result, Tensor):
            return
        if not source.is_cpu or not call.result.is_cuda or source.nbytes < LEAST_TRANSFER:
            return
        if source.requires_grad or self.script.launch.guard is None:
            return  # a model on its way, not a batch
        self._copies += 1
        self._bytes += source.nbytes
        if not source.is_pinned():
            self._pageable += source.nbytes
            self._place = self._place or self.script.place()
        elif call.kwargs.get("non_blocking") is not True:
            self._blocking += source.nbytes
            self._place = self._place or self.script.place()

    def step_ended(self, optimizer: Any) -> None:
        self._steps += 1

    def finished(self) -> None:
        if not torch.cuda.is_available():
            self.evidence.unavailable(TRANSFER_TOPIC, "there is no CUDA device to copy batches to")
        elif self._steps:
            self.evidence.record(
                TRANSFER_TOPIC,
                {
                    "copies": self._copies,
                    "bytes_per_step": self._bytes / self._steps,
                    "pageable_per_step": self._pageable / self._steps,
                    "blocking_per_step": self._blocking / self._steps,
                    "steps": self._steps,
                    "place": self._place,
                },
            )
