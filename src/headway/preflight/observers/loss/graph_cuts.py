"""Where the graph between a parameter and the loss is cut, or ends without reaching it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.facts import LISTED
from headway.core.optimizer_facts import UNUSED
from headway.preflight.observer import Observer, TorchCall
from headway.torch_adapters.compat import base_tensor
from headway.torch_adapters.live_objects import find_leaves
from headway.torch_adapters.nested_state import find_tensors

# For the first steps every call is looked at that is given something with a graph and gives
# something without: `detach`, `.data`, `numpy`, `tolist`, `argmax`, anything under `no_grad`. When
# an optimizer is about to step and some of its parameters have no gradient, the call is reported
# that their graph led into. If there is none, what is computed from these parameters is followed
# in the next step: the last line that does so gives a result that the loss does not use.

CUT_TOPIC = "graph-cut"
UNCALLED_TOPIC = "uncalled-module"
BYPASSED_TOPIC = "bypassed-module"
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
        self._suspects: dict[int, Tensor] = {}
        """Parameters without a gradient in an earlier step."""
        self._forget()

    def _forget(self) -> None:
        self._cuts: dict[Any, _Cut] = {}
        self._derived: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        """What was computed from a suspect, and which one."""
        self._last_use: dict[int, dict[str, Any]] = {}
        """The last line of the script that computed with a suspect, by its identity."""
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
        if live and self._suspects:
            self._follow_suspects(given, results)
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

    def _follow_suspects(self, given: list[Tensor], results: list[Tensor]) -> None:
        for item in given:
            known = self._derived.get(id(item))
            derived = known is not None and known[0]() is item
            source = known[1] if known is not None and derived else self._suspects.get(id(item))
            if source is None:
                continue
            place = self.script.place()
            if place is not None and self.script.stack:
                self._last_use[id(source)] = place
            for result in results:
                self._derived[id(result)] = (weakref.ref(result), source)

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
            self._suspects = {}

    def finished(self) -> None:
        self.every_function = False
        self._suspects = {}
        self._forget()

    def _report_uncalled(self, missing: set[int]) -> None:
        unused = missing - self._used
        for topic, find in ((UNCALLED_TOPIC, find_uncalled), (BYPASSED_TOPIC, find_bypassed)):
            found = [m for model in self.script.models for m in find(model, self._ran, unused)]
            if found:
                paths = [self.script.path_of(module) for module in found[:LISTED]]
                registered, _ = self.script.origins.registered(found[0])
                place = registered if topic == BYPASSED_TOPIC else None
                place = place or self.script.origins.of_module(found[0])
                self.evidence.record(topic, {"modules": paths, "place": place})

    def _report(self, missing: dict[int, Tensor]) -> None:
        found: list[tuple[int, int, _Cut, list[Tensor]]] = []
        for cut in self._cuts.values():
            behind = {id(leaf) for leaf in _leaves(cut.sources)}
            lost = [p for key, p in missing.items() if key in behind]
            if lost and cut.rank is not None:
                found.append((cut.rank, len(lost), cut, lost))
        if not found:
            self._report_unused(missing)
            return
        _, _, cut, lost = max(found, key=lambda item: item[:2])
        self._report_cut(cut.name, cut.place, lost)

    def _report_unused(self, missing: dict[int, Tensor]) -> None:
        for key in self._last_use.keys() & missing.keys():
            self._report_cut(UNUSED, self._last_use[key], [missing[key]])
        self._suspects = missing if self.every_function else {}

    def _report_cut(self, name: str, place: dict[str, Any] | None, lost: list[Tensor]) -> None:
        names = [self.script.name_of(p) or "" for p in lost]
        key = f"{place} {names[:1]}"
        if key in self._told or place is None:
            return
        self._told.add(key)
        self.evidence.record(
            CUT_TOPIC,
            {
                "function": name,
                "place": place,
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


# Modules that a model has and never calls.


def find_uncalled(
    model: nn.Module, ran: Mapping[int, nn.Module], unused: Set[int]
) -> list[nn.Module]:
    """The outermost modules that never ran, all of whose parameters are `unused`.

    `ran`: the modules that ran by their id, each with the outermost module around it.
    """
    # Layers that run in the model without belonging to it: others may have replaced them.
    return [] if _has_stale(model, ran) else _left_out(model, ran, unused)


def find_bypassed(
    model: nn.Module, ran: Mapping[int, nn.Module], unused: Set[int]
) -> list[nn.Module]:
    """The modules that never ran because the model still runs what they wrap or replaced, as where
    a list refers to the layers. All of their trainable parameters are `unused`.
    """
    found = _left_out(model, ran, unused) if _has_stale(model, ran) else []
    for module in model.modules():
        trained = {id(p) for p in module.parameters() if p.requires_grad}
        container = type(module) in (nn.ModuleList, nn.ModuleDict)
        if container or id(module) in ran or not trained or not trained <= unused:
            continue
        if any(id(part) in ran for part in module.modules()):
            found.append(module)
    return found


def _has_stale(model: nn.Module, ran: Mapping[int, nn.Module]) -> bool:
    known = {id(part) for part in model.modules()}
    return any(root is model and key not in known for key, root in ran.items())


def _left_out(model: nn.Module, ran: Mapping[int, nn.Module], unused: Set[int]) -> list[nn.Module]:
    """The outermost modules that did not run although the module that has them did."""
    parts = dict(model.named_modules())
    found: dict[str, nn.Module] = {}
    for path, module in parts.items() if id(model) in ran else ():
        own = {id(p) for p in module.parameters()}
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if not own or not own <= unused or inside:
            continue
        if any(id(part) in ran for part in module.modules()):
            continue
        above = path.rpartition(".")[0]
        while type(parts[above]) in (nn.ModuleList, nn.ModuleDict):
            above = above.rpartition(".")[0]
        if id(parts[above]) in ran:  # otherwise a whole wrapper is bypassed
            found[path] = module
    return list(found.values())
