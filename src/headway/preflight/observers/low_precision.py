"""Low precision: what autocast does, fp16 copies of weights, and updates lost by rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.script_context import observe_method
from headway.torch_adapters.autocast_regions import is_region_enabled
from headway.torch_adapters.autograd_graph import custom_dtypes, is_custom_node
from headway.torch_adapters.compat import find_aliases

# The requested autocast, and the precision of the matrix products in training.

AUTOCAST_TOPIC = "autocast"
AUTOCAST_LOOKS = (2, 10)
"""Steps after which it is reported."""
_LOW = (torch.bfloat16, torch.float16)
_LAYERS = nn.Linear.__module__


class AutocastWork(Observer):
    """Counts multiplications by their precision, and remembers the regions."""

    functions = (
        *find_aliases("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum"),
        *find_aliases("conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"),
        *find_aliases("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        Tensor.__matmul__,
        F.multi_head_attention_forward,
    )

    every_module = True

    def start(self) -> None:
        self._regions: list[dict[str, Any]] = []
        self._entered = 0
        self._low = self._full = self._inside = self._opaque = 0
        self._ops = 0
        self._hidden = False
        """16-bit results without a graph since the last module with custom work."""
        self._devices: dict[str, int] = {}
        self._open: list[dict[str, Any]] = []
        self._steps = 0
        self._said: tuple[Any, ...] = ()
        observe_method(self.script, torch.amp.autocast_mode.autocast, "__init__", after=self._made)
        observe_method(
            self.script, torch.amp.autocast_mode.autocast, "__enter__", after=self._enters
        )
        observe_method(
            self.script, torch.amp.autocast_mode.autocast, "__exit__", before=self._leaves
        )

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
        # Torch switches off a region that cannot work here; the request is known only now.
        region.headway_requested = bool(enabled)

    def _enters(self, result: Any, region: Any) -> None:
        facts: dict[str, Any] = {
            "asked": bool(getattr(region, "headway_requested", is_region_enabled(region))),
            "enabled": is_region_enabled(region),
            "device_type": str(region.device),
            "dtype": str(region.fast_dtype).removeprefix("torch."),
        }
        self._open.append(facts)
        if not torch.is_grad_enabled():
            return
        self._entered += int(facts["asked"])
        known = [{key: item[key] for key in facts} for item in self._regions]
        if facts not in known and len(known) < 8:
            place = self.script.place()
            self._regions.append({**facts, "place": place} if place else dict(facts))

    def _leaves(self, *_: Any) -> None:
        if self._open:
            self._open.pop()

    def function_ended(self, call: TorchCall) -> None:
        if self._steps > AUTOCAST_LOOKS[-1]:
            return
        result = call.result[0] if isinstance(call.result, tuple) and call.result else call.result
        if not isinstance(result, Tensor) or not result.requires_grad:
            # The forward of an `autograd.Function` runs without gradients.
            self._hidden |= isinstance(result, Tensor) and result.dtype in _LOW
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

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """Work of custom ops, which no torch function shows: by the dtype of what they return."""
        if self._steps > AUTOCAST_LOOKS[-1] or not self._open or not isinstance(output, Tensor):
            return
        own = [weight for weight in module.parameters(recurse=False) if weight.ndim > 1]
        if not own or not output.is_floating_point() or type(module).__module__ == _LAYERS:
            return
        if is_custom_node(output.grad_fn):
            made = [output.dtype]
        else:
            made = custom_dtypes(output, own)
        for dtype in made:
            self._count_custom(output, torch.bfloat16 if self._hidden else dtype)
        self._hidden &= not made

    def _count_custom(self, output: Tensor, dtype: torch.dtype) -> None:
        self._ops += 1
        device, size = output.device.type, output.numel()
        self._devices[device] = self._devices.get(device, 0) + size
        if dtype in _LOW:
            self._low += size
        else:
            self._full += size
            asked = any(item["asked"] for item in self._open)
            self._inside += size * asked
            self._opaque += size * asked

    def step_ended(self, optimizer: Optimizer) -> None:
        self._steps += 1
        if self._steps in AUTOCAST_LOOKS:
            self._report()

    def finished(self) -> None:
        if self._steps and self._steps < AUTOCAST_LOOKS[0]:
            self._report()

    def _report(self) -> None:
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
            "opaque_share": self._opaque / total,
            "ops": self._ops,
            "device": max(self._devices, key=lambda name: self._devices[name]),
            "regions": asked[:4],
            "disabling": switched_off[:4],
        }
        if asked and asked[0].get("place"):
            facts["place"] = asked[0]["place"]
        self.evidence.record(AUTOCAST_TOPIC, facts)


# fp16 weights that the optimizer does not hold: copies of fp32 masters, and what reaches those.

# Such weights train in fp32, but their gradients are born in fp16. Without a scaled loss the small
# ones are flushed to zero before anybody copies them to the masters.

HALF_COPIES_TOPIC = "half-copies"
COPIES_EVERY_STEP_UNTIL, COPIES_EVERY, MOST_COPIES = 5, 10, 12
"""The first steps are all inspected, then every n-th; the last value is the maximum in total."""


class HalfPrecisionCopies(Observer):
    """Counts, in the gradients of fp16 copies, the elements that are exactly 0."""

    def start(self) -> None:
        self._scaled = False
        self._looks = 0

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaled = self._scaled or scaler.is_enabled()

    @torch.no_grad()
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        step = self.script.step
        if self._looks >= MOST_COPIES or (step >= COPIES_EVERY_STEP_UNTIL and step % COPIES_EVERY):
            return
        copies = list(self._copies())
        if not copies:
            return
        self._looks += 1
        zero = [float((gradient == 0).float().mean()) for _, gradient in copies]
        nonzero = max(float(gradient.abs().max()) for _, gradient in copies)
        self.evidence.record(
            HALF_COPIES_TOPIC,
            {
                "names": [name for name, _ in copies][:64],
                "count": len(copies),
                "zero_share": median(zero),
                "largest": nonzero,
                "loss": max((float(root.detach().abs().max()) for root in roots), default=0.0),
                "scaler": self._scaled,
            },
        )

    def _copies(self) -> Iterator[tuple[str, Tensor]]:
        held = {
            id(p)
            for optimizer in self.script.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        for model in self.script.models:
            for name, parameter in model.named_parameters():
                gradient = parameter.grad
                if parameter.dtype is not torch.float16 or id(parameter) in held:
                    continue
                if gradient is not None and parameter.ndim > 1 and not gradient.is_sparse:
                    yield name, gradient


# How much of an update 16-bit weights lose: elements that keep their bits despite a gradient.

ROUNDING_TOPIC = "low-precision-update"
LOST_SHARE_SIGNAL = "update_lost_share"
LOW = (torch.bfloat16, torch.float16)
MOST_ROUNDING_ELEMENTS = 1 << 23
"""Of one sample."""
ROUNDING_EVERY_STEP_UNTIL, ROUNDING_EVERY = 6, 5
"""The first steps are all measured, then every n-th."""
_CARRIES = ("kahan", "compens", "residual", "master", "shift")
"""State of optimizers that keep what rounding took away, and add it later."""


class UpdateRounding(Observer):
    """Compares weights before and after a step, bit by bit."""

    def start(self) -> None:
        self._steps = 0
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self._told = False

    @torch.no_grad()
    def step_begins(self, optimizer: Optimizer) -> None:
        self._steps += 1
        self._kept = []
        if self._steps > ROUNDING_EVERY_STEP_UNTIL and self._steps % ROUNDING_EVERY:
            return
        if _carries_the_rest(optimizer):
            return
        elements = 0
        for parameter in _low(optimizer):
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or parameter.ndim < 2:
                continue
            elements += parameter.numel()
            if elements > MOST_ROUNDING_ELEMENTS and self._kept:
                break
            self._kept.append((parameter, parameter.detach().clone(), gradient != 0))

    @torch.no_grad()
    def step_ended(self, optimizer: Optimizer) -> None:
        kept, self._kept = self._kept, []
        lost: dict[str, float] = {}
        meant_total = lost_total = moved_total = 0
        for parameter, before, meant in kept:
            same = (parameter.detach() == before) & meant
            meant_here, lost_here = int(meant.sum()), int(same.sum())
            moved_total += int((parameter.detach() != before).sum())
            meant_total += meant_here
            lost_total += lost_here
            if meant_here:
                lost[self.script.name_of(parameter) or "a tensor"] = lost_here / meant_here
        if not meant_total:
            return
        share = lost_total / meant_total
        self.evidence.value(LOST_SHARE_SIGNAL, share)
        if not self._told and share > 0.25:
            self._told = True
            worst = sorted(lost, key=lambda name: -lost[name])
            facts: dict[str, Any] = {
                "tensors": worst[:20],
                "tensor_count": len(lost),
                "dtype": str(kept[0][0].dtype).removeprefix("torch."),
                "optimizer": type(optimizer).__name__,
                "moved": moved_total,
            }
            self.evidence.record(ROUNDING_TOPIC, facts)


def _low(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.dtype in LOW]


def _carries_the_rest(optimizer: Optimizer) -> bool:
    for state in list(optimizer.state.values())[:1]:
        if isinstance(state, dict) and any(
            word in str(key).lower() for key in state for word in _CARRIES
        ):
            return True
    return False
