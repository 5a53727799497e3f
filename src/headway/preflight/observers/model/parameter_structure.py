"""The parameters of the model: inventory, tied weights, and tensors that `parameters()` does not
list.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer
from headway.torch_adapters.autograd_graph import next_nodes
from headway.torch_adapters.frames import is_installed_file, is_internal_file
from headway.torch_adapters.live_objects import find_leaves
from headway.torch_adapters.module_stack import user_path

# What is about to be trained, by what, and where it lies: what a person wants to see before
# burning a week of GPU.

INVENTORY_TOPIC = "inventory"
MOST_PARTS = 40
"""Children of a model that are listed one by one."""
SETTINGS = ("lr", "weight_decay", "betas", "momentum", "eps", "maximize", "fused", "foreach")


class Inventory(Observer):
    """Models, their parts and the optimizers' groups, as they are at the first step."""

    def start(self) -> None:
        self._optimizers: set[int] = set()

    def step_begins(self, optimizer: Optimizer) -> None:
        if id(optimizer) in self._optimizers:
            return
        self._optimizers.update(map(id, self.script.optimizers))
        self._optimizers.add(id(optimizer))
        facts = {
            "models": [describe_model(model) for model in self.script.models],
            "optimizers": [describe_optimizer(item) for item in self.script.optimizers],
        }
        self.evidence.record(INVENTORY_TOPIC, facts)


def describe_model(model: nn.Module) -> dict[str, Any]:
    """A model and its parts: how much of each trains, in which dtype, on which device."""
    children = [
        {"name": user_path(name), "class": type(child).__name__, **_sizes(child.parameters())}
        for name, child in model.named_children()
        if any(True for _ in child.parameters())
    ]
    return {
        "class": type(model).__name__,
        **_sizes(model.parameters()),
        "buffers": sum(buffer.numel() for buffer in model.buffers()),
        "training": model.training,
        "parts": children[:MOST_PARTS],
        "parts_left_out": max(len(children) - MOST_PARTS, 0),
    }


def describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's groups: what they hold and how they step."""
    groups = []
    for group in optimizer.param_groups:
        settings = {name: _plain(group[name]) for name in SETTINGS if group.get(name) is not None}
        groups.append({**_sizes(group["params"]), "tensors": len(group["params"]), **settings})
    return {"class": type(optimizer).__name__, "groups": groups}


def _sizes(parameters: Iterable[Tensor]) -> dict[str, Any]:
    listed = list(parameters)
    dtypes: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    for parameter in listed:
        dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
        devices[str(parameter.device)] += parameter.numel()
    return {
        "parameters": sum(p.numel() for p in listed),
        "trainable": sum(p.numel() for p in listed if p.requires_grad),
        "dtypes": dict(dtypes),
        "devices": dict(devices),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else str(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) else str(value)


# Embeddings and output layers that hold the same numbers in different tensors.

TIED_WEIGHTS_TOPIC = "tied-weights"


class TiedWeights(Observer):
    """Compares them once, at the first backward pass, before any update makes them differ."""

    def start(self) -> None:
        self._looked: set[int] = set()

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        new = [model for model in self.script.models if id(model) not in self._looked]
        if not new:
            return
        self._looked.update(id(model) for model in new)
        pairs = [pair for model in new for pair in self._pairs(model)]
        pairs = pairs or [pair for model in new for pair in self._parted(model)]
        for pair in pairs:
            self.evidence.record(TIED_WEIGHTS_TOPIC, pair)
        if not pairs:
            self.evidence.record(TIED_WEIGHTS_TOPIC, {"copies": False})

    def _pairs(self, model: nn.Module) -> Iterator[dict[str, Any]]:
        embeddings = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
        shapes = {weight.shape for weight in embeddings}
        others = [p for p in _outputs(model) if p.shape in shapes]
        for embedding in embeddings:
            for other in others:
                if (
                    other is not embedding
                    and other.shape == embedding.shape
                    and _both(embedding, other)
                ):
                    equal = _copies(embedding, other)
                    asked = _asked_for(model, embedding, other)
                    if equal or asked:
                        yield {
                            "copies": equal,
                            "asked": asked,
                            "embedding": self.script.name_of(embedding) or "an embedding",
                            "output": self.script.name_of(other) or "an output layer",
                            "shape": list(embedding.shape),
                            "place": self._copied_at(embedding, other),
                        }

    def _parted(self, model: nn.Module) -> Iterator[dict[str, Any]]:
        """Parameters that were one, until one of the two owners was given another."""
        owners = {id(module) for module in model.modules()}
        for first, one_name, second, other_name in self.script.origins.ties:
            pair = (first(), second())
            if any(owner is None or id(owner) not in owners for owner in pair):
                continue
            one, other = getattr(pair[0], one_name, None), getattr(pair[1], other_name, None)
            if not isinstance(one, nn.Parameter) or not isinstance(other, nn.Parameter):
                continue
            if one is other or one.shape != other.shape or not _both(one, other):
                continue
            yield {
                "copies": False,
                "parted": True,
                "embedding": self.script.name_of(one) or "a weight",
                "output": self.script.name_of(other) or "another weight",
                "shape": list(one.shape),
                "place": self._copied_at(one, other),
            }

    def _copied_at(self, *pair: Tensor) -> Any:
        """The line that made the younger of the two, or filled it."""
        origins = self.script.origins
        return max((origins.last_change(item) for item in pair), key=lambda known: known[1])[0]


def _outputs(model: nn.Module) -> list[Tensor]:
    """Weights of linear layers, and matrices that stand by themselves."""
    found: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            continue
        known = isinstance(module, nn.Linear)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 2 and (known or name not in ("weight_ih_l0", "weight_hh_l0")):
                found.append(parameter)
    return list({id(p): p for p in found}.values())


def _both(embedding: Tensor, other: Tensor) -> bool:
    # Two parameters over one memory move together, and a frozen one is a copy on purpose.
    trained = embedding.requires_grad and other.requires_grad
    return trained and embedding.data_ptr() != other.data_ptr()


@torch.no_grad()
def _copies(embedding: Tensor, other: Tensor) -> bool:
    if embedding.device != other.device or embedding.dtype != other.dtype:
        return False
    if not torch.equal(embedding[:1], other[:1]) and not torch.equal(embedding[-1:], other[-1:]):
        return False
    rows = embedding if embedding.shape[0] < 3 else embedding[1:]  # a padding row may be 0
    theirs = other if other.shape[0] < 3 else other[1:]
    return torch.equal(rows, theirs) and bool((rows != rows.flatten()[0]).any())


def _asked_for(model: nn.Module, embedding: Tensor, other: Tensor) -> bool:
    """Whether a configuration ties these two weights (transformers' models)."""
    for module in model.modules():
        config = vars(module).get("config")
        if getattr(config, "tie_word_embeddings", False) is not True:
            continue
        get_in = getattr(module, "get_input_embeddings", None)
        get_out = getattr(module, "get_output_embeddings", None)
        if not callable(get_in) or not callable(get_out):
            continue
        ends = (get_in(), get_out())
        weights = [getattr(end, "weight", None) for end in ends]
        if weights[0] is embedding and weights[1] is other:
            return True
    return False


# Modules and tensors that train but that `parameters()` does not know: kept in plain containers.

# Looked at when the first losses are differentiated: only then is it known which leaves the loss
# depends on, so that a teacher kept in a list on purpose is not meant.

UNREGISTERED_LOOKS = 3
"""Backward passes that are looked at: a branch may have no part in the first one."""
MOST_COPIES = 3
"""Ops between a parameter and what a module keeps of it: `.to(…)`, `* 0.1`."""
DEEPEST = 4
"""Lists in dicts in lists …: no further down than this."""
MOST_UNREGISTERED = 1000
"""Members of one container that are looked at: a data set has more, and no layers."""


class UnregisteredParameters(Observer):
    """Reports modules and parameters that torch does not register (topic `unregistered`)."""

    def start(self) -> None:
        self._looked = 0
        self._told: set[tuple[int, str]] = set()

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._looked >= UNREGISTERED_LOOKS or not self.script.models:
            return
        self._looked += 1
        if self._looked == 1:
            self.evidence.record("unregistered", {"tensors": 0})  # it was looked for
        modules = {id(inner): inner for model in self.script.models for inner in model.modules()}
        hidden = list(_hidden(list(modules.values())))
        if not hidden:
            return
        # A module of a plain list is found as a model of its own: it is its owner's all the same.
        trained = {id(leaf) for leaf in find_leaves(roots)}
        groups = [group for item in self.script.optimizers for group in item.param_groups]
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        for owner, attribute, kind, items in hidden:
            tensors = {id(item): item for one in items for item in _tensors(one)}
            owned = {id(item) for item in owner.parameters()}
            lost = [
                item
                for at, item in tensors.items()
                if at in trained and at not in optimized and at not in owned
            ]
            if lost and (id(owner), attribute) not in self._told:
                self._told.add((id(owner), attribute))
                self._report(owner, attribute, kind, items, lost)

    def _report(
        self, owner: nn.Module, attribute: str, kind: str, items: list[Any], lost: list[Tensor]
    ) -> None:
        path = "" if owner in self.script.models else self.script.path_of(owner)
        self.evidence.record(
            "unregistered",
            {
                "owner": type(owner).__name__,
                "attribute": f"{path}.{attribute}" if path else attribute,
                "kind": kind,
                "holds": sorted({type(item).__name__ for item in items}),
                "count": len(items),
                "tensors": len(lost),
                "elements": sum(item.numel() for item in lost),
                "place": _line_that_sets(type(owner), attribute),
            },
        )


def _hidden(modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str, str, list[Any]]]:
    """(owner, attribute, kind of container, modules and tensors in it) for all that is hidden."""
    for owner in modules:
        if type(owner).__module__.startswith("torch.distributed."):
            continue  # a wrapper: FSDP keeps its flat parameters apart, and trains them
        registered = {id(item) for item in (*owner.modules(), *owner.parameters())}
        for attribute, value in list(vars(owner).items()):
            if attribute.startswith("_") and attribute in vars(nn.Module()):
                continue
            found = [item for item in _contents(value, DEEPEST) if id(item) not in registered]
            if found:
                yield owner, attribute, type(value).__name__, found


def _leaf_behind(tensor: Tensor) -> Tensor | None:
    """A trainable leaf; also that of which the tensor is a converted or scaled copy.

    `nn.Parameter(…).to(device)` is such a copy: torch does not register it.
    """
    if tensor.is_leaf:
        return tensor if tensor.requires_grad else None
    node: Any = tensor.grad_fn
    for _ in range(MOST_COPIES):
        followed = next_nodes(node)
        if len(followed) != 1:
            break
        node = followed[0]
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, Tensor) else None


def _contents(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, Tensor):
        leaf = _leaf_behind(value)
        if leaf is not None:
            yield leaf
    elif depth and isinstance(value, Mapping):
        for item in list(islice(value.values(), MOST_UNREGISTERED)):
            yield from _contents(item, depth - 1)
    elif depth and isinstance(value, (list, tuple, set, frozenset)):
        for item in list(islice(value, MOST_UNREGISTERED)):
            yield from _contents(item, depth - 1)
    elif depth and isinstance(value, FunctionType):
        # A closure keeps its layers as well.
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # not filled yet
                yield from _contents(cell.cell_contents, min(depth - 1, 1))
        for item in value.__defaults__ or ():
            yield from _contents(item, min(depth - 1, 1))
    elif depth and isinstance(value, functools.partial):
        for item in (value.func, *value.args, *value.keywords.values()):
            yield from _contents(item, min(depth - 1, 1))
    elif depth and _is_users_object(value):
        for item in list(vars(value).values()):
            yield from _contents(item, min(depth - 1, 2))


def _is_users_object(value: Any) -> bool:
    """A plain object of a class that the script itself defines; it may well be called."""
    if isinstance(value, (type, ModuleType)) or not hasattr(value, "__dict__"):
        return False
    file = getattr(inspect.getmodule(type(value)), "__file__", None)
    return file is not None and not is_internal_file(file) and not is_installed_file(file)


def _tensors(item: Any) -> list[Tensor]:
    return [item] if isinstance(item, Tensor) else list(item.parameters())


def _line_that_sets(kind: type, attribute: str) -> dict[str, Any] | None:
    """The line of the class that gives the attribute its value."""
    for base in kind.__mro__[:-1]:
        try:
            lines, first = inspect.getsourcelines(base)
            file = inspect.getsourcefile(base)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines):
            if re.search(rf"\bself\.{re.escape(attribute)}\s*(:[^=]+)?=[^=]", line):
                return {"file": file, "line": first + number, "function": "__init__"}
    return None
