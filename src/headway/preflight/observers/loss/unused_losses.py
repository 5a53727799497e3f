"""Losses that train nothing: no backward pass starts from them, or no step uses their gradients.

A component that was added as a number without its graph, or whose sum nothing came of, trains
nothing; this goes unnoticed, because the loss that is left falls.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Evidence
from headway.preflight.observers.loss.value_names import (
    GENERIC_NAMES,
    Scalar,
    choose_names,
    locate_scalar,
)
from headway.preflight.script_context import ScriptContext
from headway.preflight.source_lines import has_other_step_calls
from headway.torch_adapters.autograd_graph import walk_graph
from headway.torch_adapters.compat import tensor_version
from headway.torch_adapters.loss_graph import LossTerm, find_terms
from headway.torch_adapters.op_schema import LOSS_NAMES

TOPIC = "loss-component"
MOST_COMPONENTS = 12
"""Maximum number of components of one loss."""
FEWEST = 3
"""Steps at which a value must be part of the loss to be reported."""
SAME = 0.01
"""How far the ratio of two numbers may vary and still be one weight."""


@dataclass(slots=True)
class UnusedLoss:
    """A scalar that looks like a loss and that no backward pass has begun at."""

    name: str
    first: int
    place: dict[str, Any] | None
    steps: int = 0
    last: float = 0.0
    own: list[str] = field(default_factory=list)
    """Parameters that only it would train."""
    joined: bool = False
    """It was added to what trains, and the sum was not used."""
    forgotten: bool = False
    """It is computed next to losses that do train, and nothing reads it."""
    ratios: list[float] = field(default_factory=list)
    """What the loss holds beyond its parts, over the value of this one."""
    values: list[float] = field(default_factory=list)
    reported: bool = False


class UnusedLosses:
    """Facts about each loss, from step to step."""

    def __init__(self, script: ScriptContext, evidence: Evidence) -> None:
        self.fed: set[Any] = set()
        """Keys of the scalars that a backward pass did begin at."""
        self.reached: set[int] = set()
        """Parameters that the backward passes of the step have reached, by id."""
        self.rest: float | None = None
        """What the loss holds beyond its parts; None where that is not known."""
        self._script = script
        self._evidence = evidence
        self._idle: dict[Any, UnusedLoss] = {}

    def forget(self) -> None:
        """What was known of the step is void."""
        self.reached = set()
        self.rest = None

    def finish(self) -> None:
        """No step will follow: fewer of them are enough."""
        for key, idle in self._idle.items():
            self._report(key, idle, 2)

    def look_at(self, gone: Sequence[Scalar]) -> None:
        """The scalars of a step that is over."""
        loose = [
            item
            for item in gone
            if item.source and not item.fed and item.key not in self.fed and item.levels
        ]
        if not loose or not self.fed:
            return
        known = {item.node: item for item in gone if item.node is not None}
        joined = self._joined(gone, known)
        beside = {key[0][:2] for key in self.fed if key}
        optimized = {
            id(p)
            for optimizer in self._script.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        }
        fresh: dict[Any, Scalar] = {}
        for item in loose:
            fresh.setdefault(item.key, item)
        for key, item in list(fresh.items())[: 2 * MOST_COMPONENTS]:
            idle = self._idle.get(key)
            if idle is None:
                if len(self._idle) >= 8 * MOST_COMPONENTS:
                    continue
                name = choose_names([[item]])[0]
                idle = self._idle[key] = UnusedLoss(name, self._script.step, locate_scalar(item))
            idle.steps += 1
            if item.node is not None and self.reached:
                own = [leaf for leaf in _leaves_of([item.node]) if id(leaf) not in self.reached]
                own = [leaf for leaf in own if id(leaf) in optimized]
                idle.own = [self._script.name_of(leaf) or "?" for leaf in own][:20]
                if item.node in joined:
                    idle.joined, idle.place = True, locate_scalar(joined[item.node])
                idle.forgotten = (
                    not item.read
                    and _called_loss(item)
                    and item.levels[0].key[:2] in beside
                    and item.op in LOSS_NAMES
                )
            self._compare(idle, item)
            self._report(key, idle, 8)

    def _joined(self, gone: Sequence[Scalar], known: Mapping[Any, Scalar]) -> dict[Any, Scalar]:
        """Sources that were added to what trains, and the sum that is not used."""
        found: dict[Any, Scalar] = {}
        for item in gone:
            if item.fed or item.op not in ("add", "sum") or item.node is None:
                continue
            below = [term.node for term in find_terms(item.node)]
            if any(node in known and known[node].fed for node in below):
                found |= {node: item for node in below if node in known and not known[node].fed}
        return found

    def _compare(self, idle: UnusedLoss, item: Scalar) -> None:
        """Whether the loss holds this value as a number without a graph."""
        value = idle.last = float(item.value)
        if self.rest and value and math.isfinite(value) and len(idle.ratios) < 64:
            idle.ratios.append(self.rest / value)
            idle.values.append(value)

    def _report(self, key: Any, idle: UnusedLoss, enough: int) -> None:
        if idle.reported or key in self.fed:
            return
        weight = _constant_weight(idle)
        if weight is not None:
            kind = "detached"
        elif idle.own or idle.joined or idle.forgotten:
            kind = "discarded"
        else:
            return
        self._evidence.value(f"loss/{idle.name}", idle.last)
        if idle.steps < enough:
            return
        idle.reported = True
        self._evidence.record(
            TOPIC,
            {
                "kind": kind,
                "name": idle.name,
                "steps": idle.steps,
                "first_step": idle.first,
                "place": idle.place,
                "own": idle.own,
                **({} if weight is None else {"weight": weight}),
            },
        )


def _constant_weight(idle: UnusedLoss) -> float | None:
    """The factor by which the value enters the loss, if it is one and the same."""
    ratios = idle.ratios
    if len(ratios) < FEWEST or len(ratios) < 0.8 * idle.steps:
        return None
    middle = sorted(ratios)[len(ratios) // 2]
    moves = max(idle.values) - min(idle.values) > 10 * SAME * abs(idle.values[0]) / 10
    near = all(abs(item - middle) <= SAME * abs(middle) for item in ratios)
    return middle if moves and near and 1e-6 < abs(middle) < 1e6 else None


def _leaves_of(nodes: Sequence[Any]) -> list[Tensor]:
    found = []
    for node in walk_graph(nodes, most=20_000):
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found.append(variable)
    return found


def _called_loss(item: Scalar) -> bool:
    name = (item.levels[0].name or "").lower()
    return "loss" in name and name not in GENERIC_NAMES


# Losses that do begin a backward pass, and whose gradients no step uses: a generator's loss through
# a detached sample reaches the discriminator only, whose gradients are cleared before its own step.

FOLLOWED = 40
"""Backward passes that are followed from the start."""
MISSES = 3
"""Passes of one part whose gradients were cleared unused, if their optimizer steps as well …"""
MISSES_UNSTEPPED = 12
"""… and if it has not stepped yet."""
MOST_CUTS = 256
MOST_SAMPLES = 3
"""Parameters whose gradients are inspected, for each optimizer."""


@dataclass(slots=True)
class PendingPart:
    """The gradients of one part of a loss, between its backward pass and the step."""

    name: str
    leaves: dict[int, list[Tensor]]
    """By optimizer, the parameters it reaches; later a few whose gradient is not 0."""
    versions: dict[int, int] = field(default_factory=dict)
    missed: bool = False
    """Another optimizer has stepped since."""


@dataclass(slots=True)
class PartUse:
    """How the gradients of one part were used, over all passes."""

    first: int
    place: dict[str, Any] | None
    misses: int = 0
    used: bool = False
    reported: bool = False


class MissedParts:
    """Follows the gradients of each part of a loss until a step uses them or they are cleared."""

    def __init__(self, script: ScriptContext, evidence: Evidence) -> None:
        self._script = script
        self._evidence = evidence
        self._passes = 0
        self._new: list[PendingPart] = []
        self._pending: list[PendingPart] = []
        self._uses: dict[str, PartUse] = {}
        self._stepped: set[int] = set()
        self._step_lines: dict[str, set[int]] = {}
        self._beside: list[tuple[int, PendingPart, dict[str, Any] | None]] = []
        """Optimizer, gradients of a part that another one used, and the line of that step."""
        self._left: dict[int, int] = {}
        """Optimizer → how often such gradients were cleared."""
        self._cuts: dict[int, tuple[weakref.ref[Tensor], dict[str, Any] | None]] = {}
        self._inputs: list[tuple[nn.Module, dict[str, Any] | None]] = []

    @property
    def _due(self) -> bool:
        return self._passes <= FOLLOWED and len(self._script.optimizers) > 1

    def cut(self, tensor: Any, result: Any) -> None:
        """The script detached a tensor."""
        if self._due and isinstance(result, Tensor) and tensor.grad_fn is not None:
            if len(self._cuts) >= MOST_CUTS:
                self._cuts.clear()
            self._cuts[id(result)] = (weakref.ref(result), self._script.place())

    def called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module is called, perhaps with a tensor that was detached."""
        for item in args if self._cuts else ():
            known = self._cuts.get(id(item))
            if known is not None and known[0]() is item:
                self._inputs.append((module, known[1]))

    def begins(self, parts: Mapping[str, Sequence[tuple[LossTerm, Scalar, float | None]]]) -> None:
        """A backward pass begins from these parts."""
        self._passes += 1
        if not self._due:
            return
        self._settle()
        self._settle_beside()
        owners = _owners(self._script)
        inputs, self._inputs = self._inputs, []
        for name, members in parts.items():
            place = locate_scalar(members[0][1])
            use = self._uses.setdefault(name, PartUse(self._script.step, place))
            if use.used and len(self._stepped) == len(self._script.optimizers):
                continue
            leaves: dict[int, list[Tensor]] = {}
            found = _leaves_of([term.node for term, _, _ in members])
            for leaf in found:
                for number in owners.get(id(leaf), (-1,)):
                    leaves.setdefault(number, []).append(leaf)
            # A leaf of no optimizer may be what the gradient is wanted for.
            if not leaves or -1 in leaves:
                continue
            reached = {id(leaf) for leaf in found}
            for module, cut in inputs:
                if any(id(p) in reached for p in module.parameters()):
                    use.place = cut
            self._new.append(PendingPart(name, leaves))

    def ended(self) -> None:
        """The gradients are complete."""
        for part in self._new:
            for leaves in part.leaves.values():
                leaves[:] = [leaf for leaf in leaves if _has_gradient(leaf)][:MOST_SAMPLES]
                part.versions |= {id(leaf): tensor_version(leaf) for leaf in leaves}
        self._pending += [part for part in self._new if any(part.leaves.values())]
        del self._pending[:-32]
        self._new = []

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has used its gradients."""
        numbers = [at for at, item in enumerate(self._script.optimizers) if item is optimizer]
        self._stepped.update(numbers)
        place = self._script.place() if self._due else None
        if place is not None:
            self._step_lines.setdefault(place["file"], set()).add(place["line"])
        moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
        waiting = []
        for part in self._pending:
            if any(part.leaves.get(number) for number in numbers):
                self._uses[part.name].used = True
                self._beside += [
                    (n, part, place)
                    for n, leaves in part.leaves.items()
                    if n not in self._stepped and not moved.issuperset(map(id, leaves))
                ]
            else:
                part.missed = True
                waiting.append(part)
        self._pending = waiting

    def _settle(self) -> None:
        """Count the parts whose gradients were cleared."""
        waiting = []
        for part in self._pending:
            leaves = [leaf for some in part.leaves.values() for leaf in some]
            if any(tensor_version(leaf) != part.versions[id(leaf)] for leaf in leaves):
                self._uses[part.name].used = True  # updated by hand, or perturbed (SAM)
            elif any(_has_gradient(leaf) for leaf in leaves):
                waiting.append(part)
            elif part.missed:
                self._miss(part)
        self._pending = waiting

    def _settle_beside(self) -> None:
        waiting = []
        for item in self._beside:
            number, part, place = item
            if number in self._stepped:
                continue
            if any(_has_gradient(leaf) for leaf in part.leaves[number]):
                waiting.append(item)
                continue
            self._left[number] = count = self._left.get(number, 0) + 1
            use = self._uses[part.name]
            if count == MISSES_UNSTEPPED and place is not None and not use.reported:
                use.reported = True
                lines = self._step_lines.get(place["file"], ())
                # A line that has not run yet may step it later: a warm-up of the other model.
                if not has_other_step_calls(place["file"], lines):
                    self._report("unstepped", part.name, part.leaves[number], count, place)
        self._beside = waiting[-16:]

    def _miss(self, part: PendingPart) -> None:
        use = self._uses[part.name]
        use.misses += 1
        stepped = all(number in self._stepped for number in part.leaves)
        if use.used or use.reported or use.misses < (MISSES if stepped else MISSES_UNSTEPPED):
            return
        use.reported = True
        leaves = [leaf for some in part.leaves.values() for leaf in some]
        self._report("unmoved", part.name, leaves, use.misses, use.place)

    def _report(self, kind: str, name: str, leaves: Sequence[Tensor], times: int, at: Any) -> None:
        facts = {"kind": kind, "name": name, "steps": times, "first_step": self._uses[name].first}
        names = [self._script.name_of(leaf) or "?" for leaf in leaves]
        self._evidence.record(TOPIC, facts | {"place": at, "reached": names})


def _owners(script: ScriptContext) -> dict[int, list[int]]:
    """The numbers of the optimizers that hold a parameter, by its id."""
    found: dict[int, list[int]] = {}
    for number, item in enumerate(script.optimizers):
        for p in (p for group in item.param_groups for p in group["params"]):
            found.setdefault(id(p), []).append(number)
    return found


def _has_gradient(leaf: Tensor) -> bool:
    if leaf.grad is None:
        return False
    grad = leaf.grad.detach()
    if grad.layout != torch.strided:  # a sparse gradient cannot be compared
        grad = grad.coalesce().values() if grad.is_sparse else grad.values()
    return bool(grad.ne(0).any())
