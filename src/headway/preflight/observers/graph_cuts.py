"""Where the graph between a parameter and the loss was cut.

For the first steps every call is looked at that is given something with a graph and gives something
without: `detach`, `.data`, `numpy`, `tolist`, `argmax`, anything under `no_grad`. When an optimizer
is about to step and some of its parameters have no gradient, the call is told that their graph led
into.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.parameters import LISTED
from headway.live.discovery import leaves
from headway.preflight.observer import Call, Observer
from headway.torch_tools.nested import tensors_in

TOPIC = "graph-cut"
STEPS = 3
MOST_CUTS = 256
"""Of one step, each line once."""
MOST_CALLS = 20_000
"""Of one step: a loop over time makes many."""
_ARRAYS = ("numpy", "tolist", "__array__")
_NUMBERS = ("item", "__float__", "__int__", "__bool__", "__index__", "__len__", "__contains__")
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
        return 2 if self.name in _ARRAYS else 1 if self.name not in _NUMBERS else 0


class GraphCuts(Observer):
    """Listens to everything for a few steps; holds nothing after them."""

    every_function = True
    every_module = True

    def start(self) -> None:
        self.every_function = True
        self._in_step = False
        self._told: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self._cuts: dict[Any, _Cut] = {}
        self._calls = 0
        self._from_cut: dict[int, tuple[weakref.ref[Tensor], _Cut]] = {}
        """What was computed from a cut."""
        self._switched_off: tuple[nn.Module, dict[str, Any] | None] | None = None
        """The outermost module that runs without gradients, and the line that called it."""

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        off = self.every_function and not torch.is_grad_enabled()
        if off and self._switched_off is None:
            self._switched_off = (module, self.scene.place())

    def module_ended(self, module: nn.Module, *_: Any) -> None:
        if self._switched_off is not None and self._switched_off[0] is module:
            self._switched_off = None

    def function_ended(self, call: Call) -> None:
        self._calls += 1
        if self._in_step or self._calls > MOST_CALLS:
            return
        if call.name == "__get__" and call.function != _GETTER:
            return
        given = [item for _, item in tensors_in([list(call.args), dict(call.kwargs)])]
        if not given:
            return
        results = [item for _, item in tensors_in(call.result)]
        live = any(item.requires_grad for item in results)
        cut = next(filter(None, map(self._made_by, given)), None)
        if cut is not None and live:
            cut.used = True
        sources = [item for item in given if item.requires_grad]
        if sources and not live and (results or call.name in (*_ARRAYS, *_NUMBERS)):
            cut = self._cut_at(call, sources) or cut
        if cut is not None and not live and len(self._from_cut) < MOST_CALLS:
            for item in results:
                self._from_cut[id(item)] = (weakref.ref(item), cut)

    def _made_by(self, tensor: Tensor) -> _Cut | None:
        known = self._from_cut.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _cut_at(self, call: Call, sources: list[Tensor]) -> _Cut | None:
        name = "data" if call.function == _GETTER else call.name
        if torch.is_grad_enabled() is False and name not in (*_ARRAYS, *_NUMBERS):
            name = "no_grad"
        off = self._switched_off if name == "no_grad" else None
        place = self.scene.place() if off is None else off[1]
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
            self._tell(missing)

    def step_ended(self, optimizer: Optimizer) -> None:
        self._in_step = False
        self._forget()
        if self.scene.step >= STEPS:
            self.every_function = False

    def finished(self) -> None:
        self.every_function = False
        self._forget()

    def _tell(self, missing: dict[int, Tensor]) -> None:
        found: list[tuple[int, int, _Cut, list[Tensor]]] = []
        for cut in self._cuts.values():
            behind = {id(leaf) for leaf in _leaves(cut.sources)}
            lost = [p for key, p in missing.items() if key in behind]
            if lost and cut.rank is not None:
                found.append((cut.rank, len(lost), cut, lost))
        if not found:
            return
        _, _, cut, lost = max(found, key=lambda item: item[:2])
        names = [self.scene.name_of(p) or "" for p in lost]
        key = f"{cut.place} {names[:1]}"
        if key in self._told or cut.place is None:
            return
        self._told.add(key)
        self.evidence.tell(
            TOPIC,
            {
                "function": cut.name,
                "place": cut.place,
                "parameters": names[:LISTED],
                "count": len(lost),
            },
        )


def _leaves(sources: Sequence[Tensor]) -> list[Tensor]:
    own = [item for item in sources if item.is_leaf]
    return [*own, *leaves([item for item in sources if not item.is_leaf])]
