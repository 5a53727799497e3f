"""Finding what an unmodified script trains: its optimizers and its models.

Nobody hands them over, so they are looked for among all objects alive, once, when the first
backward pass shows which parameters the loss depends on.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.live.graph import nodes

MOST_NODES = 200_000
"""More than any model people train by script has; a limit all the same."""


def optimizers_alive() -> list[Optimizer]:
    """Every optimizer that holds parameters, in the order they were made, as far as it is known.

    Wrappers that pass on to another optimizer share its groups: the inner one steps.
    """
    found = [item for item in _alive(Optimizer) if _groups(item)]
    wrapped = {id(inner) for item in found if (inner := _inner(item)) is not None}
    return [item for item in found if _inner(item) is None or id(item) in wrapped]


def models_of(optimizers: Sequence[Optimizer], roots: Sequence[Tensor] = ()) -> list[nn.Module]:
    """The outermost modules that own what is optimized, or what the losses depend on."""
    wanted = {id(p) for item in optimizers for group in item.param_groups for p in group["params"]}
    wanted |= {id(leaf) for leaf in leaves(roots)}
    modules = _alive(nn.Module)
    inner = {id(child) for module in modules for child in _children(module)}
    return [
        module
        for module in modules
        if id(module) not in inner and any(id(p) in wanted for p in module.parameters())
    ]


class LooseTensors(nn.Module):
    """Tensors that are trained and belong to no module: `optimizer = SGD([w, b])`."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            # Past the setter, which takes nothing but an nn.Parameter.
            self._parameters[f"tensor{number}"] = tensor  # type: ignore[assignment]


def loose_tensors(optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """The optimizers' tensors as a model, for a script that has none."""
    held = [p for item in optimizers for group in item.param_groups for p in group["params"]]
    return [LooseTensors(held)] if held else []


def leaves(roots: Iterable[Tensor]) -> list[Tensor]:
    """The tensors whose gradients a backward pass from these roots will fill."""
    found = []
    for node in nodes((root.grad_fn for root in roots), most=MOST_NODES):
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
    return found


def _alive(kind: type) -> list:  # type: ignore[type-arg]
    # By type, not isinstance: some objects answer that question with an import or a warning.
    return [item for item in gc.get_objects() if issubclass(type(item), kind)]


def _groups(optimizer: Optimizer) -> list[dict[str, object]]:
    groups = getattr(optimizer, "param_groups", None)
    return groups if isinstance(groups, list) else []


def _inner(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer that a wrapper passes on to: Accelerate's, Lightning's, SAM's."""
    for value in vars(optimizer).values():
        if value is not optimizer and issubclass(type(value), Optimizer):
            return value  # type: ignore[no-any-return]
    return None


def _children(module: nn.Module) -> Iterable[nn.Module]:
    children = vars(module).get("_modules") or {}
    return [child for child in children.values() if child is not None]
