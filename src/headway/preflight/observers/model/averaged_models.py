"""Averaged copies of a trained model (EMA, SWA) that run on batch-norm statistics of their first
moment, module objects that stand in several layers, and layers that start as copies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer
from headway.torch_adapters.compat import BatchNorm

# An averaged model: the weights of the trained one with a lag, and buffers that nothing moves.

AVERAGED_TOPIC = "averaged-model"
MOST_LOOKS = 5
"""Evaluations of one model that are inspected, each at another step."""
SAMPLED = 64
"""Elements of the first weight that are kept, to see that a copy has moved."""


class AveragedModels(Observer):
    """Remembers how trained models began, and inspects others of their shape when they are run
    without gradients."""

    def start(self) -> None:
        self._norms: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()
        self._begun: list[tuple[ref[nn.Module], Tensor]] = []
        """Trained models with batch norm, and their first weight before training."""
        self._looks: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()
        self._reported = False

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._reported:
            return
        norms = self._norms.get(module)
        if norms is None:
            norms = self._norms[module] = [
                part
                for part in module.modules()
                if isinstance(part, BatchNorm) and part.track_running_stats
            ]
        if not norms:
            return
        if torch.is_grad_enabled():
            if module.training and not any(model() is module for model, _ in self._begun):
                weight = _first_weight(module)
                if weight is not None:
                    self._begun.append((ref(module), _sample(weight)))
        elif not any(part.training for part in norms):
            self._look(module, norms)

    def _look(self, module: nn.Module, norms: Sequence[Any]) -> None:
        step, looks = self.script.step, self._looks.setdefault(module, [])
        if step < 1 or step in looks or len(looks) >= MOST_LOOKS:
            return
        looks.append(step)
        if not all(_is_untouched(part) for part in norms):
            return
        for model, sample in self._begun:
            trained = model()
            if trained is None or trained is module or not _same_shapes(trained, module):
                continue
            moved = [part for part in self._norms[trained] if not _is_untouched(part)]
            weight, own = _first_weight(trained), _first_weight(module)
            if len(moved) < len(norms) or weight is None or own is None:
                continue
            if own.device != weight.device or torch.equal(_sample(own), sample):
                continue  # a copy that is kept as it was
            scale = float(weight.detach().float().norm())
            distance = float((own.detach().float() - weight.detach().float()).norm())
            self._reported = True
            named = [name for name, part in module.named_modules() if part is norms[0]]
            self.evidence.record(
                AVERAGED_TOPIC,
                {
                    "module": type(module).__name__,
                    "layers": len(norms),
                    "example": named[0] or type(norms[0]).__name__,
                    "batches": _count(moved[0]),
                    "distance": distance / scale if scale else None,
                    "place": self.script.place(),
                },
            )
            return


def _first_weight(module: nn.Module) -> Tensor | None:
    return next((p for p in module.parameters() if p.ndim > 1 and p.layout is torch.strided), None)


@torch.no_grad()
def _sample(weight: Tensor) -> Tensor:
    return weight.detach().reshape(-1)[:SAMPLED].clone()


def _same_shapes(one: nn.Module, other: nn.Module) -> bool:
    return [p.shape for p in one.parameters()] == [p.shape for p in other.parameters()]


def _is_untouched(norm: Any) -> bool:
    """Whether the running statistics are those of a new layer."""
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None or mean.is_meta:
        return False
    return bool((mean == 0).all()) and bool((variance == 1).all())


def _count(norm: Any) -> int | None:
    return None if norm.num_batches_tracked is None else int(norm.num_batches_tracked)


# One module object in several layers: the layers share their weights, intended or not.

SHARED_TOPIC = "shared-module"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
NAMED = 8


class SharedModules(Observer):
    """Looks for such modules once, when the trained models are known."""

    def start(self) -> None:
        self._looked = False

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._looked or not self.script.models:
            return
        self._looked = True
        for model in self.script.models:
            self._look(model)

    def _look(self, model: nn.Module) -> None:
        paths: dict[int, list[str]] = {}
        modules: dict[int, nn.Module] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            paths.setdefault(id(module), []).append(path)
            modules[id(module)] = module
        inside: set[int] = set()
        for key, module in modules.items():
            places = paths[key]
            elements = sum(p.numel() for p in module.parameters())
            # Siblings: their paths differ by a number alone.
            siblings = len({_NUMBER.sub("#", path) for path in places}) == 1
            if len(places) < 2 or not siblings or not elements or key in inside:
                continue
            inside.update(id(part) for part in module.modules())
            facts: dict[str, Any] = {
                "kind": type(module).__name__,
                "paths": places[:NAMED],
                "count": len(places),
                "elements": elements,
            }
            place = self.script.origins.of_module(module)
            if place is not None:
                facts["place"] = place
            self.evidence.record(SHARED_TOPIC, facts)


# Layers that start with the same random numbers: copies of one layer, or a seed set in a loop.

WEIGHTS_TOPIC = "initial-weights"
FEWEST_ELEMENTS = 16
_DIGITS = re.compile(r"\d+")


class SiblingLayers(Observer):
    """Compares weights whose names differ by a number alone, before the first step."""

    def start(self) -> None:
        self._looked = False
        self._loaded: Any = None
        """The line of the first state that a module loaded."""

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        if isinstance(owner, nn.Module) and not self._looked:
            self._loaded = self._loaded or self.script.place() or True

    @torch.no_grad()
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._looked or not self.script.models:
            return
        self._looked = True
        if self.script.step > 0:
            return
        # A state that was loaded may hold copies on purpose: a model grown from a smaller one.
        for model in self.script.models if not self._loaded else ():
            self._compare(model)
        self._compare_models()

    def _compare_models(self) -> None:
        """Models of one optimizer that begin equal and get equal gradients: twin critics."""
        alike: dict[Any, list[nn.Module]] = {}
        for model in self.script.models:
            trained = [p for p in model.parameters() if p.requires_grad]
            holder = next((o for o in self.script.optimizers if _holds(o, trained)), None)
            if holder is not None and any(p.dim() > 1 for p in trained):
                key = (type(model), id(holder), tuple(p.shape for p in trained))
                alike.setdefault(key, []).append(model)
        for models in alike.values():
            rows = list(zip(*(_matrices(model) for model in models), strict=True))
            if len(models) < 2 or not all(_stay_equal(row) for row in rows):
                continue
            names = [
                self.script.name_of(p) or "a weight" for p in (_matrices(m)[0] for m in models)
            ]
            facts = {"weights": [], "copies": names, "equal_gradients": True}
            place = self._loaded or self.script.origins.of_module(models[-1])
            self.evidence.record(
                WEIGHTS_TOPIC, facts if not isinstance(place, dict) else {**facts, "place": place}
            )

    def _compare(self, model: nn.Module) -> None:
        groups: dict[Any, list[tuple[str, Tensor]]] = {}
        for name, p in model.named_parameters():
            if p.requires_grad and p.dim() > 1 and p.numel() >= FEWEST_ELEMENTS:
                groups.setdefault((_DIGITS.sub("#", name), p.shape), []).append((name, p))
        copied = [some for some in groups.values() if len(some) > 1 and _are_copies(some)]
        if not copied:
            return
        names = [name for some in copied for name, _ in some]
        gradients = [[p.grad for _, p in some] for some in copied]
        equal = all(
            some[0] is not None
            and bool(some[0].any())
            and all(other is not None and torch.equal(some[0], other) for other in some[1:])
            for some in gradients
        )
        path = _common_path(copied[0][0][0], copied[0][1][0])
        owner = model.get_submodule(".".join(path))
        facts: dict[str, Any] = {
            "weights": [],
            "copies": names,
            "equal_gradients": equal,
            "made_by_torch": _is_inside_torch(model, path),
        }
        place = self._place(owner)
        if place is not None:
            facts["place"] = place
        self.evidence.record(WEIGHTS_TOPIC, facts)

    def _place(self, owner: nn.Module) -> Any:
        """The line that puts the copies into the model."""
        for child in owner.children():
            place, when = self.script.origins.registered(child)
            if when:
                return place
        return self.script.origins.of_module(owner)


def _matrices(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad and p.dim() > 1]


def _holds(optimizer: Optimizer, parameters: Sequence[Tensor]) -> bool:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return bool(parameters) and all(id(p) in held for p in parameters)


def _stay_equal(row: Sequence[Tensor]) -> bool:
    """Whether these weights are equal, and their gradients too, which are not 0."""
    first = row[0]
    if any(other is first or not torch.equal(first, other) for other in row[1:]):
        return False
    if first.grad is None or not bool(first.grad.any()):
        return False
    return all(other.grad is not None and torch.equal(first.grad, other.grad) for other in row[1:])


def _are_copies(some: Sequence[tuple[str, Tensor]]) -> bool:
    first = some[0][1]
    if any(other.data_ptr() == first.data_ptr() for _, other in some[1:]):
        return False
    if bool((first == first.flatten()[0]).all()):
        return False  # a constant start is judged by itself
    return all(torch.equal(first, other) for _, other in some[1:])


def _common_path(one: str, other: str) -> list[str]:
    """Where two names begin to differ: the path of the module that holds the siblings."""
    shared = []
    for left, right in zip(one.split("."), other.split("."), strict=True):
        if left != right:
            break
        shared.append(left)
    return shared


def _is_inside_torch(model: nn.Module, path: Sequence[str]) -> bool:
    """Whether a class of torch holds the list of the siblings."""
    for end in range(len(path), -1, -1):
        module = model.get_submodule(".".join(path[:end]))
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            return type(module).__module__.startswith("torch.")
    return False
