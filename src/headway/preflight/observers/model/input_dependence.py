"""What the outputs of a model depend on: their own sample, other samples, or no sample.

A copy of the model is run twice: over the batch as it came, and with some samples exchanged. Then
only the outputs of these may differ, along some axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from headway.preflight.observer import Observer
from headway.torch_adapters.compat import tensor_version
from headway.torch_adapters.model_copy import (
    MOST_FORWARDS,
    CannotCopy,
    ForwardRun,
    ModelCopy,
    ModuleForward,
    SampleSwap,
    TracedOp,
    copy_inputs,
    is_training_forward,
)
from headway.torch_adapters.tensor_values import batch_tensors as tensors_of

MIXING_AT = (0, 1, 2)
"""Steps at which samples are exchanged one by one; two conclusive ones suffice."""
ENOUGH = 2
IGNORED_AT = (2, 5, 10, 40)
"""Steps at which all are: by then a head that began with zeros has left them behind."""
MOST_ELEMENTS = 1 << 24
"""Of inputs: above that a forward costs too much."""

_STATISTICS = ("var", "std", "var_mean", "std_mean", "batch_norm", "cov", "corrcoef")
_AVERAGES = ("mean", "sum", "amax", "amin", "median", "nanmean")
_GRAPHS = ("scatter", "index_add", "index_reduce", "segment_reduce", "spmm", "sparse", "cdist")
_ROUTES = ("topk", "sort", "argsort", "cumsum")


class InputDependence(Observer):
    """Runs copies of the outermost modules at a few steps."""

    def start(self) -> None:
        self._forwards: list[ModuleForward] = []
        self._drawn: int | None = None
        self._asked: dict[int, int] = {}
        self._weights: dict[int, float] = {}
        self._inputs: dict[int, tuple[Any, ...]] = {}
        self._same_inputs: set[int] = set()
        self._told_unfit = False

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        """Batches of the usual loader have their samples along the first axis."""
        sizes = {tensor.shape[0] if tensor.ndim else 1 for tensor in tensors_of(batch)}
        usual = getattr(loader, "collate_fn", None) is default_collate
        self._drawn = sizes.pop() if usual and len(sizes) == 1 else None

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        step = self.script.step
        if step > max(*MIXING_AT, *IGNORED_AT) or len(self._forwards) >= MOST_FORWARDS:
            return
        if step in (*MIXING_AT, *IGNORED_AT) and is_training_forward(module, output):
            self._forwards.append(ModuleForward(module, args, kwargs, self.script.place()))

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        forwards, self._forwards = self._forwards, []
        step = self.script.step
        ignored: list[dict[str, Any]] = []
        for forward in _distinct(forwards):
            if not 0 < sum(tensor.numel() for tensor in forward.inputs) <= MOST_ELEMENTS:
                continue
            try:
                if step in MIXING_AT and self._asked.get(id(forward.module), 0) < ENOUGH:
                    self._ask_mixing(forward)
                if step in IGNORED_AT:
                    ignored += self._ask_ignored(forward)
                elif step == 0:
                    self._weights[id(forward.module)] = _sum_of_weights(forward.module)
            except CannotCopy as why:
                if not self._told_unfit:
                    self._told_unfit = True
                    for topic in ("sample-dependence", "input-dependence"):
                        self.evidence.unavailable(topic, str(why))
        if ignored:
            self.evidence.record(
                "input-dependence",
                {
                    "ignored": all(item["ignored"] for item in ignored),
                    "modules": ignored[:MOST_FORWARDS],
                    "place": next((i["place"] for i in ignored if i["ignored"]), None),
                },
            )

    def finished(self) -> None:
        self._forwards, self._inputs = [], {}

    # Do samples see each other?

    def _ask_mixing(self, forward: ModuleForward) -> None:
        why = self._by_design(forward)
        size = _size(forward.inputs, 0)
        if why is None and (size is None or size < 3):
            return
        facts: dict[str, Any] = {"module": self._name(forward.module), "by_design": why}
        if why is None and size is not None:
            facts |= self._mixing(forward, size)
        if facts.get("verdict") == "same":  # a head of zeros: ask again
            return
        self._asked[id(forward.module)] = self._asked.get(id(forward.module), 0) + 1
        self.evidence.record("sample-dependence", facts)

    def _mixing(self, forward: ModuleForward, size: int) -> dict[str, Any]:
        twin = ModelCopy(forward.module, self.script.place)
        base = twin.run(*copy_inputs(forward.args, forward.kwargs))
        size = _of_outputs(size, forward.inputs, base.outputs)
        if size < 3:
            return {"verdict": "elsewhere", "size": size, "place": forward.place}
        exchange = SampleSwap.of_ends(0, size)
        other = twin.run(*exchange.made(forward.args, forward.kwargs))
        verdict = _verdict(exchange, base, other)
        facts: dict[str, Any] = {"verdict": verdict, "size": size, "place": forward.place}
        if verdict != "mixed":
            return facts
        base, other = _followed(twin, forward, exchange)
        certain = self._drawn == size
        if not certain:
            second = _size(forward.inputs, 1)
            if second is None and max(tensor.ndim for tensor in forward.inputs) < 2:
                return facts | {"by_design": "one sequence, without a batch"}
            if second == 1 or self._apart_along(twin, forward, base, second):
                return facts | {"verdict": "apart", "axis": 1}
            if _may_be_one_sequence(forward.inputs) and _has_recurrence(twin.model):
                return facts | {"by_design": "perhaps one sequence, without a batch"}
        facts["by_design"] = _mixes_by_design(base.ops, size)
        op = _first_mixing_op(exchange, base.ops, other.ops)
        if op is not None:
            facts |= {"op": op.name, "place": op.place or forward.place}
            layer = _takes_time_first(forward.module, op.name)
            if layer is not None:
                facts["place"] = self.script.origins.of_module(layer) or facts["place"]
            if base.carries and op.name in _AVERAGES and _over_first(op.dims):
                facts["by_design"] = "a running average of the batches"
        return facts

    def _apart_along(
        self, twin: ModelCopy, forward: ModuleForward, base: ForwardRun, size: int | None
    ) -> bool:
        """Whether samples along the second axis, as in (time, batch, …), are independent."""
        if size is None or size < 3:
            return False
        exchange = SampleSwap.of_ends(1, size)
        other = twin.run(*exchange.made(forward.args, forward.kwargs))
        return _verdict(exchange, base, other) in ("apart", "same")

    def _by_design(self, forward: ModuleForward) -> str | None:
        """Why samples may depend on each other, if the inputs show it."""
        inputs = forward.inputs
        buffers = list(forward.module.buffers())
        if any(tensor.layout is not torch.strided for tensor in (*inputs, *buffers)):
            return "a sparse adjacency"
        size = _size(inputs, 0)
        if any(_square(tensor, size) for tensor in inputs) or any(
            _square(tensor, size) for tensor in buffers
        ):
            return "an adjacency among the samples"
        if len(inputs) > 1 and any(
            t.ndim == 2 and t.shape[0] == 2 and size != 2 and not t.is_floating_point()
            for t in inputs
        ):
            return "edges of a graph"
        key = id(forward.module)
        now = tuple(
            # The memory of a batch is often that of the one before: its values differ.
            (tensor.data_ptr(), tensor_version(tensor), tuple(tensor.shape), _checksum(tensor))
            for tensor in inputs
        )
        before, self._inputs[key] = self._inputs.get(key), now
        if before == now and self._drawn is None:
            return "the same inputs at every step"
        return None

    # Do they see their input at all?

    def _ask_ignored(self, forward: ModuleForward) -> Iterator[dict[str, Any]]:
        size = _size(forward.inputs, 0)
        began = self._weights.get(id(forward.module))
        if size is None or size < 2 or began is None:
            return
        exchange = SampleSwap.of_all(0, size)
        if began == _sum_of_weights(forward.module) or not exchange.changes(
            forward.args, forward.kwargs
        ):
            return
        twin = ModelCopy(forward.module, self.script.place)
        base = twin.run(*copy_inputs(forward.args, forward.kwargs))
        other = twin.run(*exchange.made(forward.args, forward.kwargs))
        if not base.outputs or len(base.outputs) != len(other.outputs):
            return
        if not all(bool(torch.isfinite(output).all()) for output in base.outputs):
            return  # something else is wrong
        # Outputs of one sample are those of another now: equal numbers mean that all are alike.
        same = all(exchange.state(a, b) == "same" for a, b in _pairs(base, other))
        op = _last_dependent_op(*_followed(twin, forward, exchange)) if same else None
        yield {
            "module": self._name(forward.module),
            "ignored": same,
            "op": None if op is None else op.name,
            "place": forward.place if op is None or op.place is None else op.place,
            "outputs": [list(tensor.shape) for tensor in base.outputs][:4],
        }

    def _name(self, module: nn.Module) -> str:
        return self.script.path_of(module)


def _distinct(forwards: Sequence[ModuleForward]) -> Iterator[ModuleForward]:
    seen: set[int] = set()
    for forward in forwards:
        if id(forward.module) not in seen:
            seen.add(id(forward.module))
            yield forward


def _followed(
    twin: ModelCopy, forward: ModuleForward, exchange: SampleSwap
) -> tuple[ForwardRun, ForwardRun]:
    """Both runs with their ops, which are needed only to name one: they take much longer."""
    base = twin.run(*copy_inputs(forward.args, forward.kwargs), follow=True)
    return base, twin.run(*exchange.made(forward.args, forward.kwargs), follow=True)


def _pairs(base: ForwardRun, other: ForwardRun) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(base.outputs, other.outputs, strict=False)


def _size(inputs: Sequence[Tensor], axis: int) -> int | None:
    """The length of an axis of the first input that has most of them."""
    found = max(inputs, key=lambda tensor: min(tensor.ndim, 3), default=None)
    return int(found.shape[axis]) if found is not None and found.ndim > axis else None


def _of_outputs(size: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """How many samples there are, where the inputs differ: as many as there are outputs.

    A few-shot model is given a support set beside the queries; its outputs are the queries', and
    each of them may depend on all of the support set.
    """
    given = {int(tensor.shape[0]) for tensor in inputs if tensor.ndim}
    made = {int(tensor.shape[0]) for tensor in outputs if tensor.ndim}
    if size in made or len(given) < 2 or len(made) != 1 or not made <= given:
        return size
    return made.pop()


def _square(tensor: Tensor, size: int | None) -> bool:
    return tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1] == size


def _verdict(exchange: SampleSwap, base: ForwardRun, other: ForwardRun) -> str:
    """Of all outputs: one that keeps samples apart speaks for the model."""
    states = {exchange.state(a, b) for a, b in _pairs(base, other)}
    return next((state for state in ("apart", "mixed", "same") if state in states), "elsewhere")


def _mixes_by_design(ops: Sequence[TracedOp], size: int) -> str | None:
    """What the forward does that mixes samples on purpose."""
    names = {op.name for op in ops}
    if any(op.name in _STATISTICS and _over_first(op.dims) for op in ops):
        return "statistics of the batch"
    if any(name.startswith(_GRAPHS) for name in names):
        return "messages along a graph"
    if "cumsum" in names and names & set(_ROUTES[:3]):
        return "places given out to the samples"
    return None


def _over_first(dims: Any) -> bool:
    if isinstance(dims, (list, tuple)):
        return 0 in dims
    return dims is None or isinstance(dims, bool) or dims == 0 or isinstance(dims, Tensor)


def _first_mixing_op(
    exchange: SampleSwap, base: Sequence[TracedOp], other: Sequence[TracedOp]
) -> TracedOp | None:
    for one, two in zip(base, other, strict=False):
        if one.name != two.name:
            return None
        if one.result is None or two.result is None or not one.result.is_floating_point():
            continue
        if exchange.state(one.result, two.result) == "mixed":
            return one
    return None


def _last_dependent_op(base: ForwardRun, other: ForwardRun) -> TracedOp | None:
    """The last operation that was given something of the input and gave nothing of it."""
    changed = {
        id(a)
        for a, b in zip(base.inputs, other.inputs, strict=False)
        if a.shape == b.shape and not torch.equal(a, b)
    }
    found = None
    for one, two in zip(base.ops, other.ops, strict=False):
        if one.name != two.name or one.result is None or two.result is None:
            return found
        if not changed.intersection(one.arguments):
            continue
        if one.result.shape != two.result.shape or not torch.equal(one.result, two.result):
            changed.add(one.identity)
        elif one.result.is_floating_point():
            found = one
    return found


def _takes_time_first(module: nn.Module, op: str) -> nn.Module | None:
    """The layer behind such an operation that was made without `batch_first`."""
    kinds: dict[str, type[nn.Module]] = {
        "multi_head_attention_forward": nn.MultiheadAttention,
        "_transformer_encoder_layer_fwd": nn.MultiheadAttention,
        "_native_multi_head_attention": nn.MultiheadAttention,
        "lstm": nn.LSTM,
        "gru": nn.GRU,
        "rnn_tanh": nn.RNN,
        "rnn_relu": nn.RNN,
    }
    kind = kinds.get(op)
    if kind is None:
        return None
    found = (part for part in module.modules() if isinstance(part, kind))
    return next((part for part in found if vars(part).get("batch_first") is False), None)


def _checksum(tensor: Tensor) -> float:
    values = tensor.detach().reshape(-1).double()
    return float(values.dot(torch.arange(1, len(values) + 1, device=values.device).double()))


def _may_be_one_sequence(inputs: Sequence[Tensor]) -> bool:
    """Whether inputs may be (time, features); ids with two axes are always several sequences."""
    most = max(inputs, key=lambda tensor: tensor.ndim)
    return most.ndim == 2 and most.is_floating_point()


def _has_recurrence(model: nn.Module) -> bool:
    return any(isinstance(part, nn.RNNBase) for part in model.modules())


def _sum_of_weights(module: nn.Module) -> float:
    with torch.no_grad():
        return float(
            sum(
                p.detach().double().sum() + p.detach().double().abs().sum()
                for p in module.parameters()
                if p.requires_grad and not p.is_meta
            )
        )
