"""Tensors of different devices that met in one operation.

Torch says so by raising, and names two devices without saying whose they are. The operation that
ran then tells: its tensors, and which of them is whose parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headway.preflight.crash_place import crash_place
from headway.preflight.observer import Call, Observer

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


class Devices(Observer):
    """Hears operations, and the crash."""

    every_function = True

    def start(self) -> None:
        self._call: Call | None = None
        self._model: nn.Module | None = None
        self._module: nn.Module | None = None
        self._told = False

    def function_begins(self, call: Call) -> None:
        self._call = call
        stack = self.scene.stack
        self._model, self._module = (stack[0], stack[-1]) if stack else (None, None)

    def function_ended(self, call: Call) -> None:
        if call.name in _COMPUTES and not self._told:
            met = {tensor.device.type for _, tensor in _tensors(call)}
            if "meta" in met and len(met) > 1:
                self._tell(call, self.scene.place(), crashed=False)
        self._call = None

    def step_ended(self, optimizer: Any) -> None:
        self.every_function = self.scene.step < EARLY

    def crashed(self, error: BaseException) -> None:
        said = str(error)
        devices = _devices_in(said)
        if self._told or not _SAYS_SO.search(said) or len(devices) < 2:
            return
        call = self._call
        if call is not None and len({tensor.device for _, tensor in _tensors(call)}) < 2:
            call = None
        self._tell(call, crash_place(error), crashed=True, devices=devices, said=said)

    def finished(self) -> None:
        if not self._told and self.scene.models:
            every = {str(p.device) for model in self.scene.models for p in model.parameters()}
            self.evidence.tell("device-mismatch", {"devices": [], "models_on": sorted(every)})
        self._call = self._model = self._module = None

    def _tell(
        self,
        call: Call | None,
        place: dict[str, Any] | None,
        *,
        crashed: bool,
        devices: list[str] | None = None,
        said: str = "",
    ) -> None:
        self._told = True
        found = [] if call is None else list(_tensors(call))[:MOST_TENSORS]
        self.evidence.tell(
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
        known = self.scene.name_of(tensor)
        if known is not None or self._model is None:
            return known
        for name, parameter in (*self._model.named_parameters(), *self._model.named_buffers()):
            if parameter is tensor:
                return name
        return None


def _tensors(call: Call) -> Iterator[tuple[str, Tensor]]:
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
