"""Gradients that the loss of one optimizer leaves in the parameters of another: the generator's
loss in the discriminator, the actor's loss in the critic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Observer
from headway.torch_adapters.autograd_graph import next_nodes, walk_graph
from headway.torch_adapters.compat import tensor_version

TOPIC = "leftover-gradients"
ENOUGH = 2
"""Steps of an optimizer in a row that must include left-over gradients."""
LAST_STEP = 20
MOST_NODES = 5000
NAMED = 3


@dataclass(slots=True)
class Leftovers:
    """Gradients that other losses left in the parameters of one optimizer."""

    by: Optimizer | None = None
    """The optimizer whose parameters are behind these in the graph of the loss …"""
    left: tuple[int, ...] = ()
    """… the gradients as that loss left them …"""
    used: bool = False
    """… whether that optimizer has stepped since …"""
    added: bool = False
    """… and whether a later backward pass added to them."""
    place: dict[str, Any] | None = None
    """The line of that later pass."""
    times: int = 0
    names: list[str] = field(default_factory=list)


class LeftoverGradients(Observer):
    """Follows the gradients of each optimizer from one backward pass to the next.

    A loss that goes through the parameters of one optimizer into those of another, as that of a
    generator does through the discriminator, trains the latter only. An encoder that collects
    gradients of several heads is the other way round: nothing lies behind it.
    """

    def start(self) -> None:
        self._found: dict[int, Leftovers] = {}
        self._reported: set[int] = set()
        self._through: list[tuple[Optimizer, Optimizer]] = []

    @property
    def _active(self) -> bool:
        return len(self.script.optimizers) > 1 and self.script.step <= LAST_STEP

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self._active:
            return
        for optimizer in self.script.optimizers:
            known = self._found.get(id(optimizer))
            if known is not None and known.by is not None and known.used:
                if _fingerprint(optimizer) != known.left:
                    known.by = None  # cleared, or changed by the script
                elif not known.added:
                    known.place = self.script.place()
        self._through = self._find_through(roots)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if not self._active:
            return
        for optimizer in self.script.optimizers:
            known = self._found.get(id(optimizer))
            if known is None or known.by is None:
                continue
            now = _fingerprint(optimizer)
            if known.used and now != known.left and (optimizer, known.by) not in self._through:
                known.added = True
            known.left = now
        for optimizer, by in self._through:
            known = self._found.setdefault(id(optimizer), Leftovers())
            if known.by is None:
                times, names = known.times, known.names
                known = Leftovers(by, _fingerprint(optimizer), times=times, names=names)
                self._found[id(optimizer)] = known
        self._through = []

    def step_ended(self, optimizer: Optimizer) -> None:
        for known in self._found.values():
            known.used = known.used or known.by is optimizer
        own = self._found.get(id(optimizer))
        if own is None:
            return
        own.times = own.times + 1 if own.by is not None and own.used and own.added else 0
        if own.times >= ENOUGH and own.by is not None:
            self._report(optimizer, own)
        own.by, own.used, own.added = None, False, False

    def _report(self, optimizer: Optimizer, found: Leftovers) -> None:
        if id(optimizer) in self._reported or found.by is None:
            return
        self._reported.add(id(optimizer))
        names = [self.script.name_of(p) for p in _held(optimizer)[:NAMED]]
        behind = [self.script.name_of(p) for p in _held(found.by)[:NAMED]]
        facts: dict[str, Any] = {
            "optimizer": type(optimizer).__name__,
            "names": [name or "a tensor without a name" for name in names],
            "behind": [name or "a tensor without a name" for name in behind],
            "times": found.times,
        }
        if found.place is not None:
            facts["place"] = found.place
        self.evidence.record(TOPIC, facts)

    def _find_through(self, roots: Sequence[Tensor]) -> list[tuple[Optimizer, Optimizer]]:
        """Pairs of optimizers: the loss goes through the first one's parameters into the
        second's."""
        owner = {id(p): o for o in self.script.optimizers for p in _held(o)}
        starts = [root.grad_fn for root in roots]
        first: dict[int, tuple[Optimizer, Any]] = {}
        for node in walk_graph(starts, most=MOST_NODES):
            below = next_nodes(node)
            views = [found[0] for other in below if len(found := next_nodes(other)) == 1]
            for leaf in (*below, *views):  # a weight, or a weight.t()
                held = owner.get(id(getattr(leaf, "variable", None)))
                if held is not None:
                    first.setdefault(id(held), (held, node))
        if len(first) < 2:
            return []
        pairs = []
        for optimizer, node in first.values():
            reached = {
                id(held): held
                for item in walk_graph([node], most=MOST_NODES)
                if (held := owner.get(id(getattr(item, "variable", None)))) is not None
            }
            pairs += [(optimizer, held) for held in reached.values() if held is not optimizer]
        return pairs


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _fingerprint(optimizer: Optimizer) -> tuple[int, ...]:
    """Address and version of the first gradients; empty if there are none."""
    gradients = [p.grad for p in _held(optimizer)[:8] if p.grad is not None]
    plain = [g for g in gradients if type(g) is Tensor and not g.is_sparse]
    return tuple(number for g in plain for number in (g.data_ptr(), tensor_version(g)))
