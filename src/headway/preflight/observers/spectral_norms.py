"""Whether weights under spectral norm have the norm they are meant to have.

The norm is estimated by vectors that are improved at each forward in training mode. Before the
first of these they are random, and a pass in evaluation mode divides by next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from headway.preflight.observer import Observer

LOOKS = 4
"""Passes of a module that are looked at, each in training and in evaluation."""
MOST_ELEMENTS = 1 << 22


class SpectralNorms(Observer):
    """Tells the largest singular value of a normalised weight (topic `spectral-norm`)."""

    def start(self) -> None:
        self._known: dict[int, tuple[ref[Any], list[tuple[str, nn.Module]]]] = {}
        self._looks: dict[tuple[int, bool], int] = {}

    def module_ended(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            layers = [
                (path, inner)
                for path, inner in module.named_modules()
                if next(_estimates(inner), None) is not None
            ]
            known = self._known[id(module)] = (ref(module), layers)
        for path, layer in known[1]:
            key = (id(layer), layer.training)
            self._looks[key] = self._looks.get(key, 0) + 1
            if self._looks[key] <= LOOKS:
                for weight, left, right in _estimates(layer):
                    self._tell(path or type(layer).__name__, layer, weight, left, right)

    def _tell(
        self, path: str, layer: nn.Module, weight: Tensor, left: Tensor, right: Tensor
    ) -> None:
        if weight.numel() > MOST_ELEMENTS:
            return
        with torch.no_grad():
            matrix = weight.detach().float()
            estimate = torch.dot(left.float(), matrix @ right.float())
            largest = torch.linalg.matrix_norm(matrix, ord=2)
        self.evidence.tell(
            "spectral-norm",
            {
                "member": path,
                "norm": float(largest / estimate.abs().clamp_min(1e-30)),
                "training": layer.training,
                "look": self._looks[(id(layer), layer.training)],
                "place": self.scene.place(),
            },
        )


def _estimates(module: nn.Module) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(weight as a matrix, left vector, right vector) of each spectral norm of a module."""
    for hook in getattr(module, "_forward_pre_hooks", {}).values():
        if type(hook).__name__ == "SpectralNorm" and hasattr(hook, "reshape_weight_to_matrix"):
            weight = getattr(module, hook.name + "_orig", None)
            left = getattr(module, hook.name + "_u", None)
            right = getattr(module, hook.name + "_v", None)
            if weight is not None and left is not None and right is not None:
                yield hook.reshape_weight_to_matrix(weight), left, right
    for kept in (vars(module).get("_modules") or {}).get("parametrizations", {}).values():
        for norm in kept:
            if type(norm).__name__ == "_SpectralNorm" and hasattr(norm, "_u"):
                yield norm._reshape_weight_to_matrix(kept.original), norm._u, norm._v
