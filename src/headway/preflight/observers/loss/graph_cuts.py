"""Where the autograd graph between the parameters and the loss is cut, and what backward is called
on.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.facts import LISTED
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.loss_inputs import LOSSES
from headway.preflight.observers.model.parameter_structure import find_uncalled
from headway.torch_adapters.compat import base_tensor, find_aliases
from headway.torch_adapters.live_objects import find_leaves
from headway.torch_adapters.nested_state import find_tensors

# What backward is called on: whether it has a graph, and if not, where it was cut.

ROOT_TOPIC = "backward-root"
MOST = 3
"""Maximum number of reports of a loss without a graph."""
CLOSE = 3
"""Steps whose whole graph is followed down to the parameters."""
_NEW = ("tensor", "as_tensor", "asarray")
_CUTS = ("detach", "detach_", *_NEW, "numpy", "argmax")
_ROOT_NUMBERS = ("item", "tolist", "__float__")
NO_GRAD = "no_grad"
"""A loss that was computed while gradients were switched off."""
_MARKS = ("requires_grad_",)

CutLine: TypeAlias = tuple[str, dict[str, Any] | None, "weakref.ref[Tensor] | None", bool]
"""What was called, where, what it gave, and whether it surely left the graph."""


class BackwardRoots(Observer):
    """Follows the graph of every loss to the parameters, or finds who cut it."""

    functions = (
        *find_aliases(*_CUTS, *_ROOT_NUMBERS, *_MARKS),
        *LOSSES,
        Tensor.data.__get__,  # type: ignore[attr-defined]
    )

    def start(self) -> None:
        self._told = 0
        self._first = True
        self._cuts: deque[CutLine] = deque(maxlen=32)
        self._forget()

    def _forget(self) -> None:
        self._forwards = {"with_graph": 0, "without_graph": 0, "disabled": 0, "inference": 0}
        self._forward_place: dict[str, Any] | None = None
        self._frozen: tuple[int, int] | None = None
        """(trainable, all) parameters of the first model that ran without making a graph."""
        self._backwards = 0
        self._reached = False
        self._last: dict[str, Any] | None = None

    # What leads away from the graph.

    def function_ended(self, call: TorchCall) -> None:
        if call.function in LOSSES:
            if not torch.is_grad_enabled():
                self._cut(call, name=NO_GRAD)
            return
        source = call.argument(0, "data")
        if call.name == "requires_grad_" and isinstance(source, Tensor):
            if source.grad_fn is None and not isinstance(source, nn.Parameter):
                self._cut(call)
            return
        if isinstance(source, Tensor) and source.grad_fn is not None:
            self._cut(call)
        elif call.name in _NEW:
            # Its content may be a number that was taken out of the graph before; one that is
            # marked to need a gradient is meant to be the loss.
            self._cut(call, sure=call.kwargs.get("requires_grad") is True)

    def _cut(self, call: TorchCall, *, name: str = "", sure: bool = True) -> None:
        result = call.result
        if self._told >= MOST:
            return
        made = weakref.ref(result) if isinstance(result, Tensor) else None
        name = name or ("data" if call.name == "__get__" else call.name)
        self._cuts.append((name, self.script.place(), made, sure))

    # Forwards.

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if len(self.script.stack) != 1 or not any(True for _ in module.parameters()):
            return
        if torch.is_inference_mode_enabled():
            kind = "inference"
        elif not torch.is_grad_enabled():
            kind = "disabled"
        else:
            graph = any(item.requires_grad for _, item in find_tensors(output))
            kind = "with_graph" if graph else "without_graph"
        self._forwards[kind] += 1
        if kind == "without_graph" and self._frozen is None:
            needed = [p.requires_grad for p in module.parameters()]
            self._frozen = (sum(needed), len(needed))
        if kind != "with_graph" and self._forward_place is None:
            self._forward_place = self.script.place()

    # Backwards.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._backwards += 1
        if not roots:  # vectors with a gradient of their own: nothing is said about them
            self._reached = True
            return
        bare = all(root.grad_fn is None for root in roots)
        if not bare and self.script.step >= CLOSE:
            self._reached = True
            return
        reached = 0 if bare else self._count_reached(roots)
        self._reached = self._reached or reached > 0
        facts = self._facts(roots) | {"graph": not bare, "reached": reached}
        if bare:
            self._report(facts)
        elif not reached:
            self._last = facts
        elif self._first:
            self._first = False
            self.evidence.record(ROOT_TOPIC, facts)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._reached:
            self._cuts.clear()

    def step_ended(self, optimizer: Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not self._reached and all(p.grad is None for p in parameters):
            if self._last is not None:
                self._report(self._last)
            elif not self._backwards and any(self._forwards.values()):
                self._report(self._facts(()) | {"graph": False, "backward": False, "reached": 0})
        self._forget()
        self._cuts.clear()

    def crashed(self, error: BaseException) -> None:
        if "Inference tensors cannot be saved" in str(error):
            place = self.script.place() or self._forward_place
            self._forwards["inference"] += 1
            self._report(self._facts(()) | {"graph": False, "reached": 0, "place": place})

    def _report(self, facts: dict[str, Any]) -> None:
        self._told += 1
        if self._told <= MOST:
            self.evidence.record(ROOT_TOPIC, facts)

    def _facts(self, roots: Sequence[Tensor]) -> dict[str, Any]:
        cut = self._who_cut(roots)
        trainable, parameters = self._frozen or (None, None)
        return {
            "place": self.script.place(),
            "grad_enabled": torch.is_grad_enabled(),
            "leaf": bool(roots) and all(root.is_leaf and root.requires_grad for root in roots),
            "backward": True,
            "forwards": dict(self._forwards),
            "forward_place": self._forward_place,
            "trainable": trainable,
            "parameters": parameters,
            "cut": {} if cut is None else {"function": cut[0], "place": cut[1]},
        }

    def _who_cut(self, roots: Sequence[Tensor]) -> tuple[str, dict[str, Any] | None] | None:
        """The call that made the root itself, or else the last one that left the graph."""
        # A graph without parameters ends at another leaf.
        ends = [*roots, *find_leaves(roots)] if len(self._cuts) else roots
        made = [
            (name, place)
            for name, place, result, _ in self._cuts
            if result is not None and any(result() is end for end in ends)
        ]
        taken_out = [item for item in made if item[0] not in _MARKS]
        if taken_out:
            return taken_out[-1]
        for names, certain in (
            ((*_CUTS, "data"), True),
            (_ROOT_NUMBERS, True),
            ((NO_GRAD,), True),
            (_NEW, False),
        ):
            found = [
                (name, place)
                for name, place, _, sure in self._cuts
                if name in names and sure is certain
            ]
            if found:
                return found[-1]
        return made[-1] if made else None

    def _count_reached(self, roots: Sequence[Tensor]) -> int:
        wanted = {
            id(p) for item in self.script.optimizers for g in item.param_groups for p in g["params"]
        }
        return sum(
            id(leaf) in wanted or isinstance(leaf, nn.Parameter) for leaf in find_leaves(roots)
        )


# Where the graph between a parameter and the loss was cut.

# For the first steps every call is looked at that is given something with a graph and gives
# something without: `detach`, `.data`, `numpy`, `tolist`, `argmax`, anything under `no_grad`. When
# an optimizer is about to step and some of its parameters have no gradient, the call is reported
# that their graph led into.

CUT_TOPIC = "graph-cut"
UNCALLED_TOPIC = "uncalled-module"
STEPS = 3
MOST_CUTS = 256
"""Of one step, each line once."""
MOST_CALLS = 20_000
"""Of one step: a loop over time makes many."""
_ARRAYS = ("numpy", "tolist", "__array__")
_CUT_NUMBERS = ("item", "__float__", "__int__", "__bool__", "__index__", "__len__", "__contains__")
_GETTER = Tensor.data.__get__  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Cut:
    """A call that left the graph."""

    name: str
    place: dict[str, Any] | None
    sources: list[Tensor]
    used: bool = False
    """Whether something with a graph was computed from what it gave."""

    @property
    def rank(self) -> int | None:
        """What is known to go on comes first; then arrays, which nobody can follow. A parameter
        that is only looked at is cut from nothing: None."""
        if self.used:
            return 3
        if all(item.is_leaf for item in self.sources):
            return None
        return 2 if self.name in _ARRAYS else 1 if self.name not in _CUT_NUMBERS else 0


class GraphCuts(Observer):
    """Listens to everything for a few steps; holds nothing after them."""

    every_function = True
    every_module = True

    def start(self) -> None:
        self.every_function = True
        self._in_step = False
        self._told: set[str] = set()
        self._ran: dict[int, nn.Module] = {}
        """Modules whose forward ran, in the first steps: the outermost one around them …"""
        self._used: set[int] = set()
        """… and parameters that a function was given within them."""
        self._forget()

    def _forget(self) -> None:
        self._cuts: dict[Any, _Cut] = {}
        self._calls = 0
        self._from_cut: dict[int, tuple[weakref.ref[Tensor], _Cut]] = {}
        """What was computed from a cut."""
        self._switched_off: tuple[nn.Module, dict[str, Any] | None] | None = None
        """The outermost module that runs without gradients, and the line that called it."""

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.every_function:
            self._ran[id(module)] = self.script.stack[0]
        off = self.every_function and not torch.is_grad_enabled()
        if off and self._switched_off is None:
            self._switched_off = (module, self.script.place())

    def module_ended(self, module: nn.Module, *_: Any) -> None:
        if self._switched_off is not None and self._switched_off[0] is module:
            self._switched_off = None

    def function_ended(self, call: TorchCall) -> None:
        self._calls += 1
        if self._in_step or self._calls > MOST_CALLS:
            return
        if call.name == "__get__" and call.function != _GETTER:
            return
        given = [item for _, item in find_tensors([list(call.args), dict(call.kwargs)])]
        if not given:
            return
        if self.script.stack:  # outside of a forward, weights are initialised, decayed or printed
            self._used.update(id(item) for item in given if isinstance(item, nn.Parameter))
        results = [item for _, item in find_tensors(call.result)]
        live = any(item.requires_grad for item in results)
        cut = next(filter(None, map(self._made_by, given)), None)
        if cut is not None and live:
            cut.used = True
        sources = [item for item in given if item.requires_grad]
        if sources and not live and (results or call.name in (*_ARRAYS, *_CUT_NUMBERS)):
            cut = self._cut_at(call, sources) or cut
        if cut is not None and not live and len(self._from_cut) < MOST_CALLS:
            for item in results:
                self._from_cut[id(item)] = (weakref.ref(item), cut)

    def _made_by(self, tensor: Tensor) -> _Cut | None:
        known = self._from_cut.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _cut_at(self, call: TorchCall, sources: list[Tensor]) -> _Cut | None:
        name = "data" if call.function == _GETTER else call.name
        if torch.is_grad_enabled() is False and name not in (*_ARRAYS, *_CUT_NUMBERS):
            name = "no_grad"
        off = self._switched_off if name == "no_grad" else None
        place = self.script.place() if off is None else off[1]
        line = (name, place and place["file"], place and place["line"])
        known = self._cuts.get(line)
        if known is None and len(self._cuts) < MOST_CUTS:
            known = self._cuts[line] = _Cut(name, place, sources)
        elif known is not None and off is not None and len(known.sources) < MOST_CUTS:
            known.sources += sources  # all the layers of one module
        return known

    def step_begins(self, optimizer: Optimizer) -> None:
        self._in_step = True
        held = [p for group in optimizer.param_groups for p in group["params"]]
        missing = {id(p): p for p in held if p.requires_grad and p.grad is None}
        if missing and len(missing) < len(held):
            self._report(missing)
            if self.every_function and self.script.step == STEPS - 1:
                self._report_uncalled(set(missing))

    def step_ended(self, optimizer: Optimizer) -> None:
        self._in_step = False
        self._forget()
        if self.script.step >= STEPS:
            self.every_function = False
            self._ran.clear()

    def finished(self) -> None:
        self.every_function = False
        self._forget()

    def _report_uncalled(self, missing: set[int]) -> None:
        unused = missing - self._used
        found = [m for model in self.script.models for m in find_uncalled(model, self._ran, unused)]
        if found:
            facts = {"modules": [self.script.path_of(module) for module in found[:LISTED]]}
            place = self.script.origins.of_module(found[0])
            self.evidence.record(UNCALLED_TOPIC, {**facts, "place": place})

    def _report(self, missing: dict[int, Tensor]) -> None:
        found: list[tuple[int, int, _Cut, list[Tensor]]] = []
        for cut in self._cuts.values():
            behind = {id(leaf) for leaf in _leaves(cut.sources)}
            lost = [p for key, p in missing.items() if key in behind]
            if lost and cut.rank is not None:
                found.append((cut.rank, len(lost), cut, lost))
        if not found:
            return
        _, _, cut, lost = max(found, key=lambda item: item[:2])
        names = [self.script.name_of(p) or "" for p in lost]
        key = f"{cut.place} {names[:1]}"
        if key in self._told or cut.place is None:
            return
        self._told.add(key)
        self.evidence.record(
            CUT_TOPIC,
            {
                "function": cut.name,
                "place": cut.place,
                "parameters": names[:LISTED],
                "count": len(lost),
            },
        )


def _leaves(sources: Sequence[Tensor]) -> list[Tensor]:
    # A view that was made without gradients looks like a leaf.
    views = [base for item in sources if item.is_leaf and (base := base_tensor(item)) is not None]
    sources = [*sources, *views]
    own = [item for item in sources if item.is_leaf]
    return [*own, *find_leaves([item for item in sources if not item.is_leaf])]
