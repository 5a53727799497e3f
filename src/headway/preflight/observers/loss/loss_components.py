"""The components of the loss, under the user's own names, and the effect of each.

Every scalar that a loss function, a reduction or arithmetic on such makes is noted with the line
that makes it. When a backward pass begins, its graph tells which of them it is the sum of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.loss_inputs import (
    ARITHMETIC_NAMES,
    READ_NAMES,
    REDUCTION_NAMES,
)
from headway.preflight.observers.loss.term_weights import is_fixed_weight, locate_zero_weight
from headway.preflight.observers.loss.unused_losses import (
    MOST_COMPONENTS,
    TOPIC,
    MissedParts,
    UnusedLosses,
)
from headway.preflight.observers.loss.value_names import (
    Scalar,
    choose_names,
    find_sources,
    locate_scalar,
    oldest_sequence_number,
    read_levels,
)
from headway.torch_adapters.autograd_graph import (
    input_metadata,
    saved_tensor_hooks_active,
    walk_graph,
)
from headway.torch_adapters.compat import find_aliases, has_backward_hooks
from headway.torch_adapters.live_objects import find_leaves
from headway.torch_adapters.loss_graph import LossTerm, find_terms
from headway.torch_adapters.op_schema import LOSS_NAMES

MOST_SCALARS = 400
"""Of one step."""
FIRST, THEN = 5, 10
"""The first steps are looked at closely, then every so-many-th."""
GRADIENTS_FIRST, GRADIENTS_THEN, GRADIENTS_OF = 3, 20, 6
"""The same for the gradient of each component, and the maximum number of components."""
UNSURE = 100
"""Steps with a weight of 0 that is not seen to be a fixed number …"""
SURE = 3
"""… and of one that is."""
NEGLIGIBLE = 1e-4
MOST_PLAYERS = 3
"""Optimizers whose steps a scalar waits for: it keeps its graph meanwhile."""


@dataclass(slots=True)
class LossPart:
    """Facts about one named component, over all steps."""

    first: int
    place: dict[str, Any] | None
    steps: int = 0
    zero: int = 0
    """Steps at which its weight was 0 …"""
    weighed: int = 0
    """… of the steps at which it was known."""
    fixed: bool = False
    reported: bool = False


class LossComponents(Observer):
    """Records new scalars, and follows the loss back to them."""

    functions = find_aliases(
        *LOSS_NAMES, *REDUCTION_NAMES, *ARITHMETIC_NAMES, *READ_NAMES, "detach"
    )
    every_module = True

    def start(self) -> None:
        self._sources = frozenset(find_aliases(*LOSS_NAMES, *REDUCTION_NAMES))
        self._losses = frozenset(find_aliases(*LOSS_NAMES))
        self._reads = frozenset(find_aliases(*READ_NAMES))
        self._scalars: list[Scalar] = []
        self._by_node: dict[Any, Scalar] = {}
        self._parts: dict[str, LossPart] = {}
        self._weightless: list[Any] = []
        self._idle = UnusedLosses(self.script, self.evidence)
        self._missed = MissedParts(self.script, self.evidence)
        self._scaled: dict[int, tuple[Tensor, float]] = {}
        self._backwards = 0
        self._checkpointed = False
        self._hooked: bool | None = None

    # Scalars being made.

    def function_ended(self, call: TorchCall) -> None:
        if call.function in self._reads:
            self._was_read(call.args[0] if call.args else None)
            return
        if call.name == "detach":
            self._missed.cut(call.args[0], call.result)
            return
        result = call.result
        if not isinstance(result, Tensor) or result.numel() != 1 or result.is_sparse:
            return
        source = call.function in self._sources
        if result.grad_fn is None and call.function not in self._losses:
            return
        if len(self._scalars) >= MOST_SCALARS or not result.is_floating_point():
            return
        levels = read_levels(self.script.frames())
        scalar = Scalar(result.grad_fn, result.detach().clone(), call.name, levels, source)
        self._scalars.append(scalar)
        if scalar.node is not None:
            self._by_node[scalar.node] = scalar

    def _was_read(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
            scalar = self._by_node.get(tensor.grad_fn)
            if scalar is not None:
                scalar.read = True

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._checkpointed and self._backwards < FIRST:
            self._checkpointed = saved_tensor_hooks_active()
        self._missed.called(module, args)

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaled = {id(result): (result, float(scaler.get_scale()))}

    # A backward pass.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._backwards += 1
        for root in roots:
            if root.grad_fn is not None:
                self._look_at(root)
        self._scaled.clear()

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._missed.ended()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._missed.stepped(optimizer)
        self._end_step()

    def step_skipped(self, optimizer: Optimizer) -> None:
        self.step_ended(optimizer)

    def finished(self) -> None:
        for item in self._scalars:
            item.age = 1 << 30
        self._end_step()
        for name, part in self._parts.items():
            self._report_weightless(name, part, 2)
        self._idle.finish()

    def _look_at(self, root: Tensor) -> None:
        step = self.script.step
        close = self._backwards <= FIRST or step % THEN == 0
        known = {item.node: item for item in self._scalars if item.node is not None}
        oldest = oldest_sequence_number(known.values())
        self._mark_fed(root, known, oldest, close=close)
        # Some loss functions are sums and quotients themselves.
        whole = {node for node, item in known.items() if item.op in LOSS_NAMES}
        terms = find_terms(root.grad_fn, root.output_nr, whole)
        scale = self._scaled.get(id(root), (root, 1.0))[1] or 1.0
        weights = self._weights(root, terms, scale)
        groups: dict[Any, list[tuple[LossTerm, Scalar, float | None]]] = {}
        made_of: dict[Any, list[Scalar]] = {}
        complete = bool(terms)
        held = 0.0
        for term, weight in zip(terms, weights, strict=True):
            sources = find_sources(term.node, known, oldest)
            scalar = known.get(term.node)
            if scalar is None or weight is None:
                complete = False
            else:
                held += weight * float(scalar.value)
            if not sources:
                continue
            shown = scalar if scalar is not None else sources[0]
            groups.setdefault(shown.key, []).append((term, shown, weight))
            # What is no sum of others and was computed in one line is called what that line says.
            named = [scalar] if scalar is not None and scalar.source else sources
            made_of.setdefault(shown.key, []).extend(named)
        rest = float(root.detach()) / scale - held if complete else None
        if rest is not None and abs(rest) < NEGLIGIBLE * max(abs(held), 1e-8):
            rest = 0.0
        self._idle.rest = rest
        if len(groups) > MOST_COMPONENTS:
            return
        names = choose_names([made_of[key] for key in groups]) if groups else []
        parts = dict(zip(names, groups.values(), strict=True))
        self._missed.begins(parts)
        if len(groups) > 1:
            self._take(root, parts)
            if self._gradients_due(step):
                self._measure(root, parts, scale)

    def _mark_fed(
        self, root: Tensor, known: Mapping[Any, Scalar], oldest: int, *, close: bool
    ) -> None:
        most = 20_000 if close else 2_000
        for node in walk_graph([root.grad_fn], after=oldest - 1, most=most):
            scalar = known.get(node)
            if scalar is not None:
                scalar.fed = True
                self._idle.fed.add(scalar.key)
        if close:
            self._idle.reached |= {id(leaf) for leaf in find_leaves([root])}

    def _weights(self, root: Tensor, terms: Sequence[LossTerm], scale: float) -> list[float | None]:
        """How much of each term is in the loss."""
        if len(terms) < 2 and not (terms and terms[0].path):
            return [1.0 if term.node is root.grad_fn else None for term in terms]
        if len(terms) > 4 * MOST_COMPONENTS:
            return [None] * len(terms)
        edges = [GradientEdge(term.node, term.number) for term in terms]
        found = torch.autograd.grad(root, edges, retain_graph=True, allow_unused=True)
        return [_weight(item, scale) for item in found]

    def _take(
        self,
        root: Tensor,
        groups: Mapping[str, Sequence[tuple[LossTerm, Scalar, float | None]]],
    ) -> None:
        values: dict[str, Tensor] = {}
        for name, members in groups.items():
            if all(shown.node is term.node for term, shown, _ in members):
                value = members[0][1].value.reshape(())
                for _, shown, _ in members[1:]:
                    value = value + shown.value.reshape(())
                values[name] = value
            part = self._parts.get(name)
            if part is None:
                if len(self._parts) >= 4 * MOST_COMPONENTS:
                    continue
                part = self._parts[name] = LossPart(self.script.step, locate_scalar(members[0][1]))
                self._report_part(name, part, members)
            part.steps += 1
            weights = [weight for _, _, weight in members]
            if all(weight is not None for weight in weights):
                part.weighed += 1
                part.zero += all(weight == 0 for weight in weights)
                if part.zero and part.zero <= SURE and not part.fixed:
                    product = self._zero_product(root, members[0][0])
                    if product is not None:
                        called = {level.name for level in members[0][1].levels if level.name}
                        part.fixed = is_fixed_weight(product.levels, called)
                        part.place = locate_zero_weight(product.levels, called) or locate_scalar(
                            product
                        )
                self._report_weightless(name, part, None)
        guard = self.script.launch.guard
        if guard is not None and len(values) > 1:
            guard.session.machine.components(values)

    def _zero_product(self, root: Tensor, term: LossTerm) -> Scalar | None:
        """The multiplication by 0 on the way to a term: the last one that a gradient gets to."""
        if not term.trail:
            return None
        edges = [GradientEdge(node, 0) for node in term.trail[1:]]
        reached = [term.trail[0]]
        if edges:
            found = torch.autograd.grad(root, edges, retain_graph=True, allow_unused=True)
            for node, gradient in zip(term.trail[1:], found, strict=True):
                if gradient is None or not bool(gradient.any()):  # type: ignore[redundant-expr]
                    break
                reached.append(node)
        return self._by_node.get(reached[-1])

    def _report_part(
        self, name: str, part: LossPart, members: Sequence[tuple[LossTerm, Scalar, float | None]]
    ) -> None:
        known = [weight for _, _, weight in members if weight is not None]
        facts = {"kind": "part", "name": name, "place": part.place, "first_step": part.first}
        self.evidence.record(TOPIC, facts | ({"weight": known[0]} if known else {}))

    def _report_weightless(self, name: str, part: LossPart, ended: int | None) -> None:
        if part.reported or part.zero < part.weighed or not part.weighed:
            return
        enough = SURE if part.fixed else UNSURE
        if ended is not None and part.fixed:
            enough = min(enough, ended)
        if part.zero >= enough:
            part.reported = True
            if part.place in self._weightless:
                return  # the parts of one sum share its weight
            self._weightless.append(part.place)
            self.evidence.record(
                TOPIC,
                {
                    "kind": "weightless",
                    "name": name,
                    "steps": part.zero,
                    "first_step": part.first,
                    "place": part.place,
                },
            )

    # What each component sends to the weights.

    def _gradients_due(self, step: int) -> bool:
        if self._checkpointed or _distributed():
            return False
        if not (self._backwards <= GRADIENTS_FIRST or step % GRADIENTS_THEN == 0):
            return False
        if self._hooked is None or self._backwards <= GRADIENTS_FIRST:
            self._hooked = any(
                has_backward_hooks(module)
                for model in self.script.models
                for module in model.modules()
            )
        return not self._hooked

    def _measure(
        self,
        root: Tensor,
        groups: Mapping[str, Sequence[tuple[LossTerm, Scalar, float | None]]],
        scale: float,
    ) -> None:
        usable = {
            name: [(term, weight) for term, _, weight in members if weight]
            for name, members in groups.items()
        }
        usable = {name: members for name, members in usable.items() if members}
        if not 1 < len(usable) <= GRADIENTS_OF:
            return
        parameters = [leaf for leaf in find_leaves([root]) if not has_backward_hooks(leaf)]
        if not parameters:
            return
        found: dict[str, list[Tensor | None]] = {}
        for name, members in usable.items():
            edges = [GradientEdge(term.node, term.number) for term, _ in members]
            seeds = [
                torch.full(
                    input_metadata(term.node)[term.number].shape,
                    weight or 0.0,
                    dtype=input_metadata(term.node)[term.number].dtype,
                    device=parameters[0].device,
                )
                for term, weight in members
            ]
            found[name] = list(
                torch.autograd.grad(
                    edges, parameters, seeds, retain_graph=True, allow_unused=True
                )
            )  # fmt: skip
        shared = [
            at
            for at in range(len(parameters))
            if sum(gradients[at] is not None for gradients in found.values()) > 1
        ]
        for name, gradients in found.items():
            mine = [item for at in shared if (item := gradients[at]) is not None]
            if mine:
                norm = math.sqrt(sum(float(item.float().norm()) ** 2 for item in mine))
                if math.isfinite(norm) and norm > 0:
                    self.evidence.value(f"component_grad/{name}", norm)

    # What no backward pass began at.

    def _end_step(self) -> None:
        optimizers = min(max(len(self.script.optimizers), 1), MOST_PLAYERS)
        kept: list[Scalar] = []
        gone: list[Scalar] = []
        for item in self._scalars:
            item.age += 1
            (gone if item.age >= optimizers else kept).append(item)
        if self._backwards and (self._backwards <= 2 * FIRST or self.script.step % THEN in (0, 1)):
            self._idle.look_at(gone)
        self._scalars = kept
        self._by_node = {item.node: item for item in kept if item.node is not None}
        if not kept:
            self._idle.forget()


def _weight(gradient: Tensor | None, scale: float) -> float | None:
    if gradient is None:
        return 0.0
    return float(gradient) / scale if gradient.numel() == 1 else None


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
