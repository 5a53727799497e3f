"""What autocast is asked for, and in which precision the matrix work of training is done."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Call, Observer
from headway.preflight.overhear import overhear
from headway.preflight.spellings import spellings

TOPIC = "autocast"
LOOKS = (2, 10)
"""Steps after which it is told."""
_LOW = (torch.bfloat16, torch.float16)


class AutocastWork(Observer):
    """Counts multiplications by their precision, and remembers the regions."""

    functions = (
        *spellings("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum"),
        *spellings("conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"),
        *spellings("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        Tensor.__matmul__,
        F.multi_head_attention_forward,
    )

    def start(self) -> None:
        self._regions: list[dict[str, Any]] = []
        self._entered = 0
        self._low = self._full = self._inside = 0
        self._ops = 0
        self._devices: dict[str, int] = {}
        self._open: list[dict[str, Any]] = []
        self._steps = 0
        self._said: tuple[Any, ...] = ()
        overhear(self.scene, torch.amp.autocast_mode.autocast, "__init__", after=self._made)
        overhear(self.scene, torch.amp.autocast_mode.autocast, "__enter__", after=self._enters)
        overhear(self.scene, torch.amp.autocast_mode.autocast, "__exit__", before=self._leaves)

    def _made(
        self,
        result: Any,
        region: Any,
        device_type: Any = None,
        dtype: Any = None,
        enabled: Any = True,
        *rest: Any,
        **more: Any,
    ) -> None:
        # Torch switches a region off that cannot work here; what was asked is known only now.
        region._headway_asked = bool(enabled)

    def _enters(self, result: Any, region: Any) -> None:
        facts: dict[str, Any] = {
            "asked": bool(getattr(region, "_headway_asked", region._enabled)),
            "enabled": bool(region._enabled),
            "device_type": str(region.device),
            "dtype": str(region.fast_dtype).removeprefix("torch."),
        }
        self._open.append(facts)
        if not torch.is_grad_enabled():
            return
        self._entered += int(facts["asked"])
        known = [{key: item[key] for key in facts} for item in self._regions]
        if facts not in known and len(known) < 8:
            place = self.scene.place()
            self._regions.append({**facts, "place": place} if place else dict(facts))

    def _leaves(self, *_: Any) -> None:
        if self._open:
            self._open.pop()

    def function_ended(self, call: Call) -> None:
        if self._steps > LOOKS[-1]:
            return
        result = call.result[0] if isinstance(call.result, tuple) and call.result else call.result
        if not isinstance(result, Tensor) or not result.requires_grad:
            return
        if not result.is_floating_point():
            return
        self._ops += 1
        device = result.device.type
        self._devices[device] = self._devices.get(device, 0) + result.numel()
        if result.dtype in _LOW:
            self._low += result.numel()
        else:
            self._full += result.numel()
            if any(item["asked"] for item in self._open):
                self._inside += result.numel()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._steps += 1
        if self._steps in LOOKS:
            self._tell()

    def finished(self) -> None:
        if self._steps and self._steps < LOOKS[0]:
            self._tell()

    def _tell(self) -> None:
        if not self._entered or not self._ops:
            return
        said = (self._low > 0, self._inside > 0, len(self._regions))
        if said == self._said:
            return
        self._said = said
        total = max(self._low + self._full, 1)
        asked = [item for item in self._regions if item["asked"]]
        switched_off = [item for item in self._regions if not item["asked"]]
        facts: dict[str, Any] = {
            "entered": self._entered,
            "low_share": self._low / total,
            "inside_share": self._inside / total,
            "ops": self._ops,
            "device": max(self._devices, key=lambda name: self._devices[name]),
            "regions": asked[:4],
            "disabling": switched_off[:4],
        }
        if asked and asked[0].get("place"):
            facts["place"] = asked[0]["place"]
        self.evidence.tell(TOPIC, facts)
