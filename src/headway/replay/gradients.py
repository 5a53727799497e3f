"""The gradients of a step, by the names of their parameters and without a scaler's factor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.nn.parameter import is_lazy

from headway.replay.scene import Scene


class Gradients:
    """Knows every parameter of the step."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def parameters(self) -> list[Tensor]:
        """Each once."""
        of_models = [p for model in self._scene.models for p in model.parameters()]
        groups = [g for optimizer in self._scene.optimizers for g in optimizer.param_groups]
        of_optimizers = [p for group in groups for p in group["params"]]
        each = {id(p): p for p in (*of_models, *of_optimizers) if not is_lazy(p)}
        return list(each.values())

    def of(self, parameters: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, float]]:
        """(name, gradient, the factor it was scaled with)."""
        scales = self._scales()
        for position, parameter in enumerate(parameters):
            if parameter.grad is not None:
                name = self._scene.names.get(id(parameter), f"parameter {position}")
                yield name, parameter.grad, scales.get(id(parameter), 1.0)

    def _scales(self) -> dict[int, float]:
        """The scaler's factor, for parameters whose gradients still carry it."""
        scaler = self._scene.scaler
        if scaler is None or not scaler.is_enabled():
            return {}
        factor = scaler.get_scale()
        return {
            id(parameter): factor
            for optimizer in self._scene.optimizers
            if scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
