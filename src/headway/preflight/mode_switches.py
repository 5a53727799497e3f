"""The lines that switch layers off: `model.eval()`, and dropouts whose rate is set to 0."""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from headway.preflight.overhear import overhear
from headway.preflight.scene import Scene

KEPT = 16


class Switches:
    """Hears both, and remembers the last of them."""

    def __init__(self, scene: Scene) -> None:
        self.zeroed: dict[str, Any] | None = None
        """The line that set the rate of a dropout to 0 after it was something else."""
        self._scene = scene
        self._inside = 0
        self._evaluations: deque[tuple[ref[nn.Module], Any]] = deque(maxlen=KEPT)
        overhear(scene, nn.Module, "train", before=self._begins, after=self._switched)
        self._hear_rates()

    def to_evaluation(self, root: nn.Module | None) -> dict[str, Any] | None:
        """The last line that put a model, or part of it, into evaluation mode."""
        for known, place in reversed(self._evaluations):
            module = known()
            if module is None:
                continue
            if root is None or _contains(module, root) or _contains(root, module):
                found: dict[str, Any] | None = place
                return found
        return None

    def _begins(self, *_: Any, **__: Any) -> None:
        self._inside += 1  # a model switches its parts

    def _switched(self, result: Any, module: nn.Module, mode: bool = True) -> None:
        self._inside -= 1
        if self._inside <= 0 and not mode:
            self._inside = 0
            self._evaluations.append((ref(module), self._scene.place()))

    def _hear_rates(self) -> None:
        if "__setattr__" in vars(_DropoutNd):  # another torch, or somebody else
            return
        switches = self

        def set_attribute(layer: _DropoutNd, name: str, value: Any) -> None:
            if name == "p" and value == 0 and vars(layer).get("p"):
                switches.zeroed = switches._scene.place()
            nn.Module.__setattr__(layer, name, value)

        def put_back() -> None:
            if vars(_DropoutNd).get("__setattr__") is set_attribute:
                del _DropoutNd.__setattr__

        _DropoutNd.__setattr__ = set_attribute  # type: ignore[assignment]
        self._scene.undo.callback(put_back)


def _contains(outer: nn.Module, inner: nn.Module) -> bool:
    return any(part is inner for part in outer.modules())
