"""Losses that are sums over the batch, and by what factor they reach what is trained on."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.autograd.graph import GradientEdge

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.loss_inputs import LOSSES, LossArguments
from headway.preflight.source_lines import find_only_line
from headway.torch_adapters.autograd_graph import (
    input_metadata,
    next_nodes,
    node_kind,
    ops_with_role,
)
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.live_objects import find_leaves
from headway.torch_adapters.loss_graph import add_note, formula_nodes, take_note
from headway.torch_adapters.nested_state import find_tensors

TOPIC, MEANS = "summed-loss", "mean-loss"
STEPS = 2
"""Steps that are looked at."""
UNWEIGHTED = 0.5
"""Factor from which a mean next to the sum has no weight that would balance the two."""
_SUMS = find_aliases("sum", "nansum")
_PRODUCTS = find_aliases("dot", "vdot", "inner", "matmul", "__matmul__", "einsum")
"""`error @ error` is a sum, too."""
_PICKED = ops_with_role("sample")
"""Operations that keep each value in the row of its sample."""
_SAID = r"reduction\s*=\s*[\"']sum[\"']|size_average\s*=\s*False"


class SummedLosses(Observer):
    """Measures the derivative of the loss by each sum over the batch that is in it."""

    functions = (*LOSSES, *_SUMS, *_PRODUCTS)
    calls_before = STEPS

    def start(self) -> None:
        self._batch: set[int] = set()
        self._pending = False
        self._told: set[str] = set()
        self._scaled: tuple[weakref.ref[Tensor], float] | None = None

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        if self.script.step < STEPS:
            self._batch |= _lengths(batch)

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if len(self.script.stack) == 1 and self.script.step < STEPS:
            self._batch |= _lengths((args, dict(kwargs)))

    def function_ended(self, call: TorchCall) -> None:
        result = call.result
        if self.script.step >= STEPS or not isinstance(result, Tensor):
            return
        if result.grad_fn is None or result.numel() != 1:
            return
        if call.function not in _SUMS and call.function not in _PRODUCTS:
            loss = LossArguments.of(call)
            if loss is not None and loss.reduction == "mean" and loss.prediction.ndim:
                means = {"function": call.name, "rows": loss.prediction.shape[0]}
                add_note(result, MEANS, means)
        summed = self._summed(call)
        if summed is not None and summed.ndim and summed.numel() > 1:
            facts = {
                "function": call.name,
                "rows": self._rows(summed),
                "elements": summed.numel(),
                "place": self._place(call),
            }
            self._pending |= add_note(result, TOPIC, facts)

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaled = (weakref.ref(result), scaler.get_scale())

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self._pending or self.script.step >= STEPS:
            return
        self._pending = False
        nodes = list(formula_nodes(roots))
        means = [(node, note) for node in nodes if (note := take_note(node, MEANS)) is not None]
        for node in nodes:
            facts = take_note(node, TOPIC)
            if facts is None or facts["rows"] not in self._batch or str(facts) in self._told:
                continue
            factor = _derivative(roots[0], node)
            if factor is not None:
                self._told.add(str(facts))
                scale = self._scale_of(roots[0])
                how = {"factor": factor / scale, "optimizers": self._how(roots)}
                beside = [
                    str(mean["function"])
                    for other, mean in means
                    if mean["rows"] == facts["rows"]
                    and (_derivative(roots[0], other) or 0.0) / scale >= UNWEIGHTED
                ]
                self.evidence.record(TOPIC, facts | how | {"beside_means": beside[:4]})

    def _summed(self, call: TorchCall) -> Tensor | None:
        """What a sum over everything was taken of."""
        if call.function in _PRODUCTS:
            factors = [item for item in call.args if isinstance(item, Tensor)]
            # With weights of its own it may be a mean.
            return factors[0] if len(factors) == 2 and factors[0] is factors[1] else None
        if call.function in _SUMS:
            given = call.argument(0, "input")
            # Of parameters (a penalty) it is no sum over samples.
            return given if isinstance(given, Tensor) and given.grad_fn is not None else None
        loss = LossArguments.of(call)
        if loss is None or loss.reduction != "sum" or loss.function == "kl_div":
            return None
        return loss.prediction

    def _rows(self, summed: Tensor) -> int:
        """How many samples there were, before some were picked by a mask or all were flattened."""
        node: Any = summed.grad_fn
        if summed.shape[0] in self._batch:
            return summed.shape[0]
        for _ in range(12):
            following = next_nodes(node)
            if node_kind(node) not in _PICKED or len(set(following)) != 1:
                break
            node = following[0]
            described = input_metadata(node)
            shape = [int(size) for size in described[0].shape] if described else []
            if shape and shape[0] in self._batch:
                return shape[0]
        return summed.shape[0]

    def _place(self, call: TorchCall) -> dict[str, Any] | None:
        """The line that chose the sum: where the loss is created, if it is an object of torch's."""
        stack = self.script.stack
        if stack and call.function not in _SUMS:
            kind = type(stack[-1])
            if kind.__module__.startswith("torch.nn"):
                made = find_only_line(self.script, rf"\b{kind.__name__}\(.*({_SAID})")
                if made is not None:
                    return made
        return self.script.place()

    def _scale_of(self, root: Tensor) -> float:
        if self._scaled is not None and self._scaled[0]() is root:
            return self._scaled[1] or 1.0
        return 1.0

    def _how(self, roots: Sequence[Tensor]) -> list[dict[str, Any]]:
        """The optimizers that follow this loss."""
        reached = {id(leaf) for leaf in find_leaves(roots)}
        return [
            {
                "kind": type(optimizer).__name__,
                "lr": max(float(group["lr"]) for group in groups),
                "momentum": max(float(group.get("momentum") or 0.0) for group in groups),
            }
            for optimizer in self.script.optimizers
            if (groups := optimizer.param_groups)
            and all("lr" in group for group in groups)
            and any(id(p) in reached for group in groups for p in group["params"])
        ]


def _lengths(what: Any) -> set[int]:
    """How long the tensors are, and how many positions they have when flattened."""
    found = set()
    for _, item in find_tensors(what):
        if item.ndim:
            found.add(item.shape[0])
        if item.ndim > 1:
            found.add(item.shape[0] * item.shape[1])
    return found


def _derivative(root: Tensor, node: Any) -> float | None:
    if root.grad_fn is node:
        return 1.0
    try:
        (found,) = torch.autograd.grad(root, [GradientEdge(node, 0)], retain_graph=True)
    except RuntimeError:
        return None
    return float(found)
