"""Whether the optimizers hold what the losses reach, and whether the losses reach what they hold.

A parameter counts as reached once a backward pass has left a gradient on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.parameters import LISTED
from headway.preflight.observer import Observer

TOPIC = "optimizer-coverage"
LOOKS = (2, 6, 20)
"""After so many steps it is looked at; the first of them a short check reaches, too."""
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DDP", "FSDP")


class OptimizerCoverage(Observer):
    """Compares the optimizers' tensors with those that get gradients."""

    def start(self) -> None:
        self._reached: dict[int, weakref.ref[Tensor]] = {}
        self._places: dict[int, Any] = {}
        self._made_when: dict[int, int] = {}
        self._stepped: set[int] = set()
        """Parameters that some optimizer has stepped."""
        self._loaded: set[int] = set()
        self._looked = 0
        self._steps = 0
        self._stage: tuple[int, ...] = ()
        self._said: dict[str, Any] | None = None
        # Before anything else, so that whoever judges coverage knows that it will be looked at.
        self.evidence.tell(TOPIC, {"looking": True})

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._places[id(optimizer)] = self.scene.place()
        self._made_when[id(optimizer)] = self.scene.origins.now

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        if isinstance(owner, nn.Module):
            self._loaded.update(id(p) for p in owner.parameters())

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        stage = tuple(map(id, self.scene.optimizers))
        if stage != self._stage:  # other optimizers train now: what the last ones did is over
            self._stage, self._steps = stage, 0
            self._reached.clear()
        if self._steps <= LOOKS[-1]:
            held = [p for item in self.scene.optimizers for p in _held(item)]
            for parameter in (*_parameters(self.scene.models), *held):
                if parameter.grad is not None and id(parameter) not in self._reached:
                    self._reached[id(parameter)] = weakref.ref(parameter)

    def step_ended(self, optimizer: Optimizer) -> None:
        self._steps += 1
        if self._steps <= LOOKS[-1]:
            self._stepped.update(id(p) for p in _held(optimizer))
        if self._steps in LOOKS:
            self._look()

    def finished(self) -> None:
        if self._steps and self._steps < LOOKS[0]:
            self._look()

    def _look(self) -> None:
        facts = self._facts()
        compared = {key: value for key, value in facts.items() if key != "steps"}
        if compared != self._said:
            self._said = compared
            self.evidence.tell(TOPIC, facts)

    def _facts(self) -> dict[str, Any]:
        optimizers, models = self.scene.optimizers, self.scene.models
        held = {id(p): p for item in optimizers for p in _held(item)}
        reached = [p for ref in self._reached.values() if (p := ref()) is not None]
        # An optimizer that has done its work may be gone: what it trained was trained.
        known = held.keys() | self._stepped
        outside = [p for p in reached if id(p) not in known and p.requires_grad]
        facts: dict[str, Any] = {
            "steps": self._steps,
            "optimizers": len(optimizers),
            "trainable": len(reached),
            "unoptimized": self._names(outside),
            "unoptimized_count": len(outside),
            "unoptimized_elements": sum(p.numel() for p in outside),
        }
        if not outside:
            return facts
        owners = [m for m in models if any(p is q for p in m.parameters() for q in outside)]
        trains = [m for m in owners if any(id(p) in held for p in m.parameters())]
        facts["passed_through"] = not trains and self._is_passed_through(held, outside)
        facts["loaded_body"] = self._is_loaded_body(trains, held, outside)
        stale = self._stale(held, outside)
        place = self._place_of(optimizers, stale or outside)
        if place is not None:
            facts["place"] = place
        if stale:
            replaced = self._replaced_at(outside)
            if replaced is not None:
                facts |= {"place": replaced, "optimizer_at": place}
            pairs = _pairs(stale, outside)
            facts |= {
                "stale": self._names(stale),
                "stale_count": len(stale),
                "held": len(held),
                "paired": len(pairs),
                "device": [str(pairs[0][0].device), str(pairs[0][1].device)] if pairs else [],
                "dtype": [_dtype(pairs[0][0]), _dtype(pairs[0][1])] if pairs else [],
                "wrapper": self._wrapper(models, owners, stale),
            }
        return facts

    def _stale(self, held: dict[int, Tensor], outside: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the optimizers that are no module's, or of a model no loss reaches."""
        living: set[int] = set()
        for model in self.scene.models:
            own = {id(p) for p in model.parameters()}
            if own & self._reached.keys():
                living |= own
        return [p for key, p in held.items() if key not in living and key not in self._reached]

    def _is_loaded_body(
        self, trains: Sequence[nn.Module], held: dict[int, Tensor], outside: Sequence[Tensor]
    ) -> bool:
        """Whether what stays as it is was loaded, and everything behind it is trained."""
        if not outside or not all(id(p) in self._loaded for p in outside):
            return False
        order = {id(p): at for model in trains for at, p in enumerate(model.parameters())}
        last = max((order.get(id(p), -1) for p in outside), default=-1)
        first = min((order[key] for key in held if key in order), default=-1)
        return last < first

    def _is_passed_through(self, held: dict[int, Tensor], outside: Sequence[Tensor]) -> bool:
        """Whether a model no optimizer trains is a tool: loaded, or an input alone is trained."""
        trained = any(id(p) in held for p in _parameters(self.scene.models))
        return not trained or all(id(p) in self._loaded for p in outside)

    def _wrapper(
        self, models: Sequence[nn.Module], owners: Sequence[nn.Module], stale: Sequence[Tensor]
    ) -> str | None:
        """The class that was put around the model after its tensors were given away."""
        known = {id(p) for p in stale}
        old = {type(m) for m in models if any(id(p) in known for p in m.parameters())}
        for owner in owners:
            inner = [child for child in owner.children() if any(True for _ in child.parameters())]
            around = len(inner) == 1 and type(inner[0]) in old and type(owner) not in old
            if around or type(owner).__name__ in _WRAPPERS:
                return type(owner).__name__
        return None

    def _place_of(self, optimizers: Sequence[Optimizer], about: Sequence[Tensor]) -> Any:
        wanted = {id(p) for p in about}
        ranked = sorted(optimizers, key=lambda o: -sum(id(p) in wanted for p in _held(o)))
        places = [self._places.get(id(item)) for item in ranked]
        return next((place for place in places if place is not None), None)

    def _replaced_at(self, outside: Sequence[Tensor]) -> Any:
        """The line that put new parameters into a module after the first optimizer was made."""
        made = min(self._made_when.values(), default=0)
        for parameter in outside:
            place, when = self.scene.origins.registered(parameter)
            if when > made:
                return place
        return None

    def _names(self, tensors: Sequence[Tensor]) -> list[str]:
        return [
            self.scene.name_of(p) or f"a tensor of shape {tuple(p.shape)}" for p in tensors[:LISTED]
        ]


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _parameters(models: Iterable[nn.Module]) -> Iterable[Tensor]:
    for model in models:
        yield from model.parameters()


def _pairs(stale: Sequence[Tensor], outside: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Tensors that stand for each other: of one shape, each used once."""
    free = list(outside)
    found = []
    for tensor in stale:
        twin = next((p for p in free if p.shape == tensor.shape), None)
        if twin is not None:
            free = [p for p in free if p is not twin]
            found.append((tensor, twin))
    return found


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
