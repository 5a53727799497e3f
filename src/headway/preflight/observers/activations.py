"""What comes out of the activations: units that are 0 for every sample, values at their limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.backward_graph import Graph
from headway.preflight.call_sites import Site, Sites, looked_at
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings
from headway.torch_tools.nested import tensors_in

RECTIFIERS = spellings("relu", "relu_", "relu6", "clamp", "clamp_", "clamp_min", "clamp_min_")
SOFT = spellings("gelu", "silu", "mish")
SQUASHING = spellings("tanh", "tanh_", "sigmoid", "sigmoid_", "expit", "hardtanh")
NOTHING = 1e-3
"""A smooth rectifier never gives 0; below this nothing is left of its input."""
NEAR = 0.01
"""Closer than this share of the range to a limit is pinned."""
WINDOW = 3
"""A unit is dead when it was 0 for every sample of so many looks."""
FEWEST_SAMPLES = 16
"""With fewer samples a unit may be 0 by chance."""
FEWEST_UNITS = 8
"""Squashed layers with fewer are gates or actions, more often than not."""
GRAPHS = 3
"""Backward passes whose graph is read, to learn which calls are hidden layers."""


@dataclass(slots=True)
class _Layer:
    """What is known about one call."""

    site: Site
    kind: str
    looks: deque[tuple[dict[int, Tensor], int]] = field(
        default_factory=lambda: deque(maxlen=WINDOW)
    )
    """Per look: axis → which units along it gave anything, and the number of samples."""
    hidden: bool | None = None
    """None until a graph was read."""
    output: bool = False
    """Whether it is what a whole model gives."""
    name: str = ""


class Activations(Observer):
    """Measures `act/zero_share` and `act/saturated_share`; names the calls (`activation`)."""

    functions = (*RECTIFIERS, *SOFT, *SQUASHING)

    def start(self) -> None:
        self._sites = Sites(self.scene)
        self._layers: dict[tuple[Any, ...], _Layer] = {}
        self._pinned: dict[tuple[Any, ...], Tensor] = {}
        self._fresh: list[tuple[tuple[Any, ...], Any, ref[Any]]] = []
        """Calls since the last backward: which, the node of the graph, the result."""
        self._graphs = 0

    def function_ended(self, call: Call) -> None:
        result = call.result
        if (
            not torch.is_grad_enabled()
            or not looked_at(self.scene.step)
            or not isinstance(result, Tensor)
            or not result.requires_grad
            or result.dim() < 2
            or not result.numel()
            or (call.function in RECTIFIERS and not _rectifies(call))
        ):
            return
        site = self._sites.here()
        if site is None:
            return
        layer = self._layers.get(site.key)
        if layer is None or layer.site.module is not site.module:
            layer = self._layers[site.key] = _Layer(site, call.name)
        if layer.hidden is False:
            return
        values = result.detach()
        if call.function in SQUASHING:
            if min(values[0].numel(), max(values.shape[1], values.shape[-1])) >= FEWEST_UNITS:
                self._pinned[site.key] = _pinned(values, call.name)
        else:
            alive = values != 0 if call.function in RECTIFIERS else values.abs() > NOTHING
            axes = {1, values.dim() - 1}
            found = {axis: _any(alive, axis) for axis in axes}
            fewest = min(values.numel() // values.shape[axis] for axis in axes)
            layer.looks.append((found, fewest))
        if layer.hidden is None:
            self._fresh.append((site.key, result.grad_fn, ref(result)))
            del self._fresh[:-512]

    def module_ended(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for _, given in tensors_in(output):
            for key, _, result in self._fresh:
                if result() is given:
                    self._layers[key].output = True

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._fresh and self._graphs < GRAPHS:
            self._graphs += 1
            self._read(roots)
        self._fresh.clear()
        self._sites.restart()
        if not looked_at(self.scene.step):
            return
        self._measure()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._fresh.clear()
        self._sites.restart()

    def _read(self, roots: Sequence[Tensor]) -> None:
        """Learn which calls are hidden layers."""
        graph = Graph.behind(root.grad_fn for root in roots)
        behind = graph.behind_products()
        for key, node, _ in self._fresh:
            layer = self._layers[key]
            if layer.hidden is None and node in graph.nodes:
                layer.hidden = node in behind and not graph.is_gate(node)

    def _measure(self) -> None:
        zeros, pinned = {}, {}
        for key, layer in self._layers.items():
            if not layer.hidden:
                continue
            if key in self._pinned and not layer.output:
                pinned[self._named(layer)] = float(self._pinned[key])
            elif layer.looks and sum(samples for _, samples in layer.looks) >= FEWEST_SAMPLES:
                zeros[self._named(layer)] = _dead(layer.looks)
        self._pinned.clear()
        if zeros:
            self.evidence.column("act/zero_share", zeros)
        if pinned:
            self.evidence.column("act/saturated_share", pinned)

    def _named(self, layer: _Layer) -> str:
        if not layer.name:
            layer.name = layer.site.name(self.scene)
            facts = {"member": layer.name, "kind": layer.kind, "place": layer.site.place}
            self.evidence.tell("activation", facts)
        return layer.name


def _rectifies(call: Call) -> bool:
    """A clamp is an activation where it cuts at 0 from below alone."""
    if not call.name.startswith("clamp"):
        return True
    return call.argument(1, "min") == 0 and call.argument(2, "max") is None


def _any(alive: Tensor, axis: int) -> Tensor:
    return alive.movedim(axis, 0).flatten(1).any(1)


def _pinned(values: Tensor, name: str) -> Tensor:
    low = -1.0 if "tanh" in name else 0.0
    reach = (values.float() - low) / (1.0 - low)
    return ((reach < NEAR / 2) | (reach > 1 - NEAR / 2)).float().mean()


def _dead(looks: deque[tuple[dict[int, Tensor], int]]) -> float:
    """The share of units that gave nothing in any look, along the axis where it is largest."""
    shares = []
    for axis in looks[-1][0]:
        masks = [found[axis] for found, _ in looks if axis in found]
        if len({mask.shape for mask in masks}) == 1 and len(masks) == len(looks):
            shares.append(1.0 - float(torch.stack(masks).any(0).float().mean()))
    return max(shares, default=0.0)
