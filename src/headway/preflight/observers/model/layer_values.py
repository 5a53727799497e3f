"""Values in layers: dead and saturated activation units, and the norm of weights under spectral
norm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.script_context import CallSite, CallSites, is_measured_step
from headway.torch_adapters.compat import find_aliases, spectral_norms
from headway.torch_adapters.loss_graph import BackwardGraph
from headway.torch_adapters.nested_state import find_tensors

# What comes out of the activations: units that are 0 for every sample, values at their limits.

RECTIFIERS = find_aliases("relu", "relu_", "relu6", "clamp", "clamp_", "clamp_min", "clamp_min_")
SOFT = find_aliases("gelu", "silu", "mish")
SQUASHING = find_aliases("tanh", "tanh_", "sigmoid", "sigmoid_", "expit", "hardtanh")
NEAR_ZERO = 1e-3
"""A smooth rectifier never gives 0; below this nothing is left of its input."""
NEAR = 0.01
"""Closer than this share of the range to a limit is pinned."""
WINDOW = 3
"""A unit is dead if it is 0 for all samples of this many measurements."""
FEWEST_SAMPLES = 16
"""With fewer samples a unit may be 0 by chance."""
FEWEST_UNITS = 8
"""Squashed layers with fewer are gates or actions, more often than not."""
GRAPHS = 3
"""Backward passes whose graph is read, to learn which calls are hidden layers."""


@dataclass(slots=True)
class _Layer:
    """Facts about one call."""

    site: CallSite
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


class ActivationValues(Observer):
    """Measures `act/zero_share` and `act/saturated_share`; names the calls (`activation`)."""

    functions = (*RECTIFIERS, *SOFT, *SQUASHING)

    def start(self) -> None:
        self._sites = CallSites(self.script)
        self._layers: dict[tuple[Any, ...], _Layer] = {}
        self._pinned: dict[tuple[Any, ...], Tensor] = {}
        self._fresh: list[tuple[tuple[Any, ...], Any, ref[Any]]] = []
        """Calls since the last backward: which, the node of the graph, the result."""
        self._graphs = 0

    def function_ended(self, call: TorchCall) -> None:
        result = call.result
        if (
            not torch.is_grad_enabled()
            or not is_measured_step(self.script.step)
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
            alive = values != 0 if call.function in RECTIFIERS else values.abs() > NEAR_ZERO
            axes = {1, values.dim() - 1}
            found = {axis: _any(alive, axis) for axis in axes}
            fewest = min(values.numel() // values.shape[axis] for axis in axes)
            layer.looks.append((found, fewest))
        if layer.hidden is None:
            self._fresh.append((site.key, result.grad_fn, ref(result)))
            del self._fresh[:-512]

    def module_ended(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for _, given in find_tensors(output):
            for key, _, result in self._fresh:
                if result() is given:
                    self._layers[key].output = True

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._fresh and self._graphs < GRAPHS:
            self._graphs += 1
            self._read(roots)
        self._fresh.clear()
        self._sites.restart()
        if not is_measured_step(self.script.step):
            return
        self._measure()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._fresh.clear()
        self._sites.restart()

    def _read(self, roots: Sequence[Tensor]) -> None:
        """Learn which calls are hidden layers."""
        graph = BackwardGraph.behind(root.grad_fn for root in roots)
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
            layer.name = layer.site.name(self.script)
            facts = {"member": layer.name, "kind": layer.kind, "place": layer.site.place}
            self.evidence.record("activation", facts)
        return layer.name


def _rectifies(call: TorchCall) -> bool:
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


# Whether weights under spectral norm have the norm they are meant to have.

# The norm is estimated by vectors that are improved at each forward in training mode. Before the
# first of these they are random, and a pass in evaluation mode divides by next to nothing.

NORM_LOOKS = 4
"""Passes of a module that are looked at, each in training and in evaluation."""
MOST_NORM_ELEMENTS = 1 << 22


class SpectralNorms(Observer):
    """Reports the largest singular value of a normalised weight (topic `spectral-norm`)."""

    def start(self) -> None:
        self._known: dict[int, tuple[ref[Any], list[tuple[str, nn.Module]]]] = {}
        self._looks: dict[tuple[int, bool], int] = {}

    def module_ended(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            layers = [
                (path, inner)
                for path, inner in module.named_modules()
                if next(spectral_norms(inner), None) is not None
            ]
            known = self._known[id(module)] = (ref(module), layers)
        for path, layer in known[1]:
            key = (id(layer), layer.training)
            self._looks[key] = self._looks.get(key, 0) + 1
            if self._looks[key] <= NORM_LOOKS:
                for weight, left, right in spectral_norms(layer):
                    self._report(path or type(layer).__name__, layer, weight, left, right)

    def _report(
        self, path: str, layer: nn.Module, weight: Tensor, left: Tensor, right: Tensor
    ) -> None:
        if weight.numel() > MOST_NORM_ELEMENTS:
            return
        with torch.no_grad():
            matrix = weight.detach().float()
            estimate = torch.dot(left.float(), matrix @ right.float())
            largest = torch.linalg.matrix_norm(matrix, ord=2)
        self.evidence.record(
            "spectral-norm",
            {
                "member": path,
                "norm": float(largest / estimate.abs().clamp_min(1e-30)),
                "training": layer.training,
                "look": self._looks[(id(layer), layer.training)],
                "place": self.script.place(),
            },
        )
