"""Linear layers in the first training steps: the ops between them, and how they start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.script_context import CallSite, CallSites
from headway.torch_adapters.compat import base_tensor, find_aliases
from headway.torch_adapters.loss_graph import (
    BackwardGraph,
    is_leaf,
    is_straight,
    node_name,
    through_linear,
)

LINEAR = find_aliases("linear")
CONVOLUTIONS = find_aliases("conv1d", "conv2d", "conv3d")
TRANSPOSED = find_aliases("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
PRODUCTS = find_aliases("matmul", "mm", "__matmul__")
SUMS = find_aliases("addmm")
LOOKS = 5
"""Backward passes that are looked at."""
STEPS = 5
"""Number of steps that are inspected."""
MOST_CALLS = 1000
LONGEST = 32
"""Operations between two layers that are followed."""
NAMED = 40
_NUMBERED = re.compile(r"^(?P<stem>\D+)(?P<number>\d{1,3})$")


@dataclass(slots=True)
class _Layer:
    """One call of a layer."""

    site: CallSite
    function: str
    node: Any
    source: Any
    """The node of the graph that its input came from."""
    weight: Tensor
    unit_axis: int
    ins: int
    outs: int
    grouped: bool
    spread_in: Tensor | None
    spread_out: Tensor | None


class LinearLayers(Observer):
    """Reports chains without a nonlinearity (`linear-chain`) and the state at the start:
    the weights (`initial-weights`) and how the signal fares (`initial-signal`)."""

    functions = (*LINEAR, *CONVOLUTIONS, *TRANSPOSED, *PRODUCTS, *SUMS)
    calls_before = STEPS

    def start(self) -> None:
        self._sites = CallSites(self.script)
        self._calls: list[_Layer] = []
        self._looked = 0
        self._first = 0
        self._chains: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = {}
        """Chains by their members: how often they were observed, and their facts."""
        self._called: dict[str, int] = {}
        """Layer → in how many looks it was called."""
        self._weighed: set[int] = set()
        self._zeros: dict[int, Tensor] = {}
        """Trained weights that start at 0 and have had no other gradient than 0."""

    def function_ended(self, call: TorchCall) -> None:
        if self._looked >= LOOKS or not torch.is_grad_enabled() or self.script.step >= STEPS:
            return
        result = call.result
        if not isinstance(result, Tensor) or not result.requires_grad or result.grad_fn is None:
            return
        layer = self._layer(call, result)
        if layer is not None:
            self._calls.append(layer)
            del self._calls[:-MOST_CALLS]

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        calls, self._calls = self._calls, []
        self._sites.restart()
        if self.script.step >= STEPS:
            self.finished()
        if not calls or self._looked >= LOOKS:
            return
        self._looked += 1
        self._first = self.script.step if self._looked == 1 else self._first
        graph = BackwardGraph.behind(root.grad_fn for root in roots)
        calls = [layer for layer in calls if layer.node in graph.nodes]
        if not calls:
            return
        upstream = BackwardGraph.behind(layer.source for layer in calls).nodes
        self._report_chains(calls, graph, upstream)
        if self.script.step == 0:
            self._report_weights(calls, upstream)
            if self._looked == 1:
                self._report_signal(calls, graph)

    def step_begins(self, optimizer: Optimizer) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for key, weight in list(self._zeros.items()):
            if key in held and (weight.grad is None or bool(weight.grad.any())):
                del self._zeros[key]  # its gradient is missing, or it moves
        if self.script.step == STEPS and self._zeros:
            self._report_stuck([item for item in self._zeros.values() if not bool(item.any())])
            self._zeros.clear()

    def step_ended(self, optimizer: Optimizer) -> None:
        self._calls.clear()
        self._sites.restart()

    def _layer(self, call: TorchCall, result: Tensor) -> _Layer | None:
        first = 1 if call.function in SUMS else 0
        names = ("mat1", "mat2") if call.function in SUMS else ("input", "weight")
        given, weight = call.argument(first, names[0]), call.argument(first + 1, names[1])
        if not isinstance(given, Tensor) or not isinstance(weight, Tensor) or weight.dim() < 2:
            return None
        product = call.function in PRODUCTS or call.function in SUMS
        if product and _parameter_of(weight) is None:
            return None
        site = self._sites.here()
        if site is None:
            return None
        # Where the units stand among the axes of the weight, of the input and of the result.
        crossed = product or call.function in TRANSPOSED
        if product and _parameter_of(weight) is not weight:
            crossed = False  # x @ W.T: the parameter itself lies as in a linear layer
        channels = 1 if call.function in (*CONVOLUTIONS, *TRANSPOSED) else -1
        early = self._looked == 0 and self.script.step == 0
        return _Layer(
            site,
            call.name,
            result.grad_fn,
            given.grad_fn,
            _parameter_of(weight) if product else weight,  # type: ignore[arg-type]
            1 if crossed else 0,
            given.shape[channels],
            result.shape[channels],
            call.function in (*CONVOLUTIONS, *TRANSPOSED) and _groups(call) > 1,
            _spread(given, channels) if early else None,
            _spread(result, channels) if early else None,
        )

    # Chains.

    def _report_chains(self, calls: list[_Layer], graph: BackwardGraph, upstream: set[Any]) -> None:
        by_node = {layer.node: layer for layer in calls}
        before: dict[int, _Layer] = {}
        for layer in calls:
            source = _layer_before(layer.source, by_node, graph)
            if source is not None and not _is_worth_having(source, layer):
                before[id(layer)] = source
        followed = {id(source) for source in before.values()}
        bent = sum(1 for node in upstream if not _is_straight(node, by_node))
        for name in {layer.site.name(self.script) for layer in calls}:
            self._called[name] = self._called.get(name, 0) + 1
        seen: dict[tuple[str, ...], dict[str, Any]] = {}
        for layer in calls:
            if id(layer) in before and id(layer) not in followed:
                chain = [layer]
                while id(chain[0]) in before:
                    chain.insert(0, before[id(chain[0])])
                names = tuple(item.site.name(self.script) for item in chain)
                seen[names] = self._chain(chain, names, len(by_node), bent)
        for names, facts in seen.items():
            self._chains[names] = (self._chains.get(names, (0, {}))[0] + 1, facts)
        if self._looked == LOOKS:
            self._conclude()

    def finished(self) -> None:
        if 0 < self._looked < LOOKS:
            self._looked = LOOKS
            self._conclude()

    def _conclude(self) -> None:
        """Report the chains that were observed every time: layers may be skipped at random."""
        lasting = [
            facts
            for names, (seen, facts) in self._chains.items()
            if seen == self._called.get(names[-1])
        ]
        self._chains.clear()
        for facts in lasting or [{"length": 1, "layers": len(self._called)}]:
            self.evidence.record("linear-chain", {"first_step": self._first, **facts})

    def _chain(
        self, chain: list[_Layer], names: tuple[str, ...], layers: int, bent: int
    ) -> dict[str, Any]:
        kinds = {layer.function for layer in chain}
        return {
            "members": list(names)[:NAMED],
            "length": len(chain),
            "widths": [chain[0].ins, *(layer.outs for layer in chain)][:NAMED],
            "layers": layers,
            "nonlinearities": bent,
            "neighbours": len(kinds) == 1 and self._are_neighbours(chain),
            "place": self._place_of(chain),
        }

    def _place_of(self, chain: list[_Layer]) -> Any:
        """Where the last layer is called; where the one before is made if they stand in an
        nn.Sequential."""
        module = chain[-2].site.module
        inside = any(
            type(inner) is nn.Sequential and any(child is module for child in inner)
            for model in self.script.models
            for inner in model.modules()
        )
        made = self.script.origins.of_module(module) if inside and module is not None else None
        return made or chain[-1].site.place

    def _are_neighbours(self, chain: list[_Layer]) -> bool:
        """Whether two that follow each other stand in one nn.Sequential, or are `fc1` and `fc2`."""
        modules = [layer.site.module for layer in chain]
        for model in self.script.models:
            for inner in model.modules():
                if any(_are_numbered(inner, *pair) for pair in pairwise(modules)):
                    return True
                if type(inner) is nn.Sequential:
                    children = list(inner)
                    found = [
                        next((at for at, child in enumerate(children) if child is module), None)
                        for module in modules
                    ]
                    # Two calls of one child, an adapter say, are its own affair.
                    if any(None not in (a, b) and a != b for a, b in pairwise(found)):
                        return True
        return False

    # The start.

    def _first_scale(self, calls: list[_Layer]) -> Any:
        """The line that gave most weights their scale; where they are used if it is unknown."""
        places = [self.script.origins.of_parameter(layer.weight) for layer in calls]
        known = [place for place in places if place is not None]
        return max(known, key=known.count) if known else calls[0].site.place

    def _report_weights(self, calls: list[_Layer], upstream: set[Any]) -> None:
        layers: dict[int, _Layer] = {}
        for layer in calls:
            layers.setdefault(id(layer.weight), layer)
        if any(id(layer.weight) not in self._weighed for layer in layers.values()):
            self._weighed.update(layers)
            found = [self._weight(layer, upstream) for layer in list(layers.values())]
            found += self._inner_weights()
            self.evidence.record("initial-weights", {"weights": found})

    def _weight(self, layer: _Layer, upstream: set[Any]) -> dict[str, Any]:
        weight = layer.weight.detach()
        low, high = (float(item) for item in torch.aminmax(weight))
        if low == high == 0.0 and layer.weight.requires_grad:
            self._zeros[id(layer.weight)] = layer.weight
        units = weight.movedim(min(layer.unit_axis, weight.dim() - 1), 0).flatten(1)
        same = units.shape[0] > 1 and bool((units == units[:1]).all())
        return {
            "name": self.script.name_of(layer.weight) or layer.site.name(self.script),
            "constant": low if low == high else None,
            "identical_units": same,
            "units": units.shape[0],
            "inputs": units.shape[1],
            "grouped": layer.grouped,
            "trainable": layer.weight.requires_grad,
            "last": layer.node not in upstream,
            "place": self.script.origins.of_parameter(layer.weight) or layer.site.place,
        }

    def _report_stuck(self, weights: list[Tensor]) -> None:
        names = [name for item in weights if (name := self.script.name_of(item)) is not None]
        if len(names) > 1:
            place = self.script.origins.of_parameter(weights[0])
            self.evidence.record("initial-weights", {"stuck": names[:NAMED], "place": place})

    def _inner_weights(self) -> list[dict[str, Any]]:
        """Weights of layers that make no call of their own: recurrent ones and attention."""
        found = []
        for model in self.script.models:
            for module in model.modules():
                if isinstance(module, (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)):
                    for parameter in module.parameters(recurse=False):
                        if parameter.dim() == 2:
                            site = CallSite(module, None)
                            layer = _Layer(
                                site, "", None, None, parameter, 0, 0, 0, False, None, None
                            )
                            found.append({**self._weight(layer, set()), "last": False})
        return found

    def _report_signal(self, calls: list[_Layer], graph: BackwardGraph) -> None:
        shown = [layer for layer in calls if layer.spread_in is not None]
        names = [node_name(node) for node in graph.nodes]
        last = calls[-1].weight
        self.evidence.record(
            "initial-signal",
            {
                "members": [layer.site.name(self.script) for layer in shown],
                "inputs": [float(layer.spread_in) for layer in shown],  # type: ignore[arg-type]
                "outputs": [float(layer.spread_out) for layer in shown],  # type: ignore[arg-type]
                "norms": sum("norm" in name for name in names),
                "squashing": sum(name in ("tanh", "sigmoid") for name in names),
                "tied": any(
                    module.weight is last
                    for model in self.script.models
                    for module in model.modules()
                    if isinstance(module, nn.Embedding)
                ),
                "place": self._first_scale(calls),
            },
        )


def _parameter_of(weight: Tensor) -> Tensor | None:
    """The parameter a weight is, or is a view of."""
    for item in (weight, base_tensor(weight)):
        if isinstance(item, Tensor) and item.is_leaf and item.requires_grad:
            return item
    return weight if isinstance(weight, nn.Parameter) else None


def _groups(call: TorchCall) -> int:
    groups = call.argument(6, "groups", 1)
    return groups if isinstance(groups, int) else 1


def _spread(values: Tensor, channels: int) -> Tensor:
    """How much the values differ from sample to sample."""
    flat = values.detach().float().movedim(channels, -1).reshape(-1, values.shape[channels])
    if flat.shape[0] < 2:
        return flat.square().mean().sqrt()
    return flat.var(0).mean().sqrt()


def _layer_before(node: Any, by_node: dict[Any, _Layer], graph: BackwardGraph) -> _Layer | None:
    """The layer whose result reaches this node with nothing but linear operations between."""
    for _ in range(LONGEST):
        if node is None or len(graph.consumers.get(node, ())) > 1:
            return None  # used elsewhere, too: a residual stream, queries and keys
        if node in by_node:
            return by_node[node]
        node = through_linear(node)
    return None


def _is_worth_having(first: _Layer, second: _Layer) -> bool:
    """Two linear layers that are not one: a bottleneck, or a split convolution."""
    narrow = first.outs < first.ins and first.outs < second.outs
    split = any(len(set(layer.weight.shape[2:])) > 1 for layer in (first, second))
    grouped = first.grouped or second.grouped
    return narrow or split or grouped or first.weight is second.weight


def _are_numbered(parent: nn.Module, first: Any, second: Any) -> bool:
    """Whether two layers are `fc1` and `fc2` of one module."""
    names = {id(child): name for name, child in parent.named_children()}
    one, two = _NUMBERED.match(names.get(id(first), "")), _NUMBERED.match(names.get(id(second), ""))
    if one is None or two is None or type(first) is not type(second):
        return False
    return one["stem"] == two["stem"] and int(one["number"]) + 1 == int(two["number"])


def _is_straight(node: Any, by_node: dict[Any, _Layer]) -> bool:
    """Whether a node keeps everything linear."""
    return node in by_node or is_leaf(node) or is_straight(node)
