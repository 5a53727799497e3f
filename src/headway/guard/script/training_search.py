"""Finds what a script trains: its optimizers and its models."""

from __future__ import annotations

from collections.abc import Container, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.torch_adapters import live_objects


class TrainingSearch:
    """Looks for optimizers and models among the live objects of the process."""

    def __init__(self, trained: tuple[nn.Module, Optimizer] | None) -> None:
        """`trained`: the model and its optimizer, if they are known."""
        self._trained = trained
        self._always_included: set[int] = set()
        """Optimizers that stepped without a guard: every later guard includes them."""

    def find(
        self, roots: Sequence[Tensor], stepping: Optimizer | None, stepped: Container[int]
    ) -> tuple[list[Optimizer], list[nn.Module]]:
        """The optimizers in use and the models that they train.

        `roots`: the losses of the backward pass that begins. `stepping`: the optimizer that is
        about to step. `stepped`: the `id` of every optimizer that has stepped so far.
        """
        if self._trained is not None:
            model, optimizer = self._trained
            return [optimizer], [model]
        if stepping is not None:
            self._always_included.add(id(stepping))
        # Once for both: it takes as long as several steps of a small training.
        among = live_objects.find_instances(Optimizer, nn.Module)
        alive = live_objects.find_optimizers(stepped=self._always_included, among=among)
        optimizers = self._in_use(alive, roots, stepping, stepped)
        models = live_objects.find_models(optimizers, roots, among=among) if optimizers else []
        return optimizers, models or live_objects.wrap_loose_tensors(optimizers)

    def _in_use(
        self,
        alive: list[Optimizer],
        roots: Sequence[Tensor],
        stepping: Optimizer | None,
        stepped: Container[int],
    ) -> list[Optimizer]:
        """The optimizers that train now first; without those of a finished phase of the script."""
        if stepping is not None:
            return [stepping, *(item for item in alive if item is not stepping)]
        reached = {id(leaf) for leaf in live_objects.find_leaves(roots)}
        training = [item for item in alive if reached & live_objects.parameter_ids(item)]
        # One that has stepped and has no part in this loss is finished, unless it steps again.
        others = [
            item
            for item in alive
            if not reached & live_objects.parameter_ids(item)
            and (id(item) not in stepped or id(item) in self._always_included)
        ]
        return [*training, *others]
