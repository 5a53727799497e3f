"""Runs a copy of a model on altered inputs without touching the script's model or random
numbers.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headway.torch_adapters.compat import BatchNorm, module_buffers, tensor_version
from headway.torch_adapters.module_stack import unwrap_model
from headway.torch_adapters.nested_state import find_tensors, map_tensors
from headway.torch_adapters.rng import RngState

# Inputs with some samples exchanged, and what that changed in a tensor.

ROUNDING_NOISE = 1e-4
"""Of the change in the samples that were exchanged: what others change by rounding."""

SwapEffect = Literal["same", "apart", "mixed", "elsewhere"]
"""Of a tensor after samples were exchanged: nothing changed; only those samples did; others did,
too; no axis counts the samples."""


class SampleSwap(NamedTuple):
    """Samples that take the place of others along an axis."""

    axis: int
    size: int
    rows: tuple[int, ...]
    """The places that hold another sample."""
    order: tuple[int, ...]
    """Which sample stands at each place."""

    @classmethod
    def of_ends(cls, axis: int, size: int) -> SampleSwap:
        """The first and the last become copies of one in the middle."""
        rows = (0, size - 1) if size >= 4 else (0,)
        order = [size // 2 if at in rows else at for at in range(size)]
        return cls(axis, size, rows, tuple(order))

    @classmethod
    def of_all(cls, axis: int, size: int) -> SampleSwap:
        """Every place holds its neighbour's."""
        return cls(axis, size, tuple(range(size)), tuple((at + 1) % size for at in range(size)))

    def fits(self, tensor: Tensor) -> bool:
        return tensor.ndim > self.axis and tensor.shape[self.axis] == self.size

    def made(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The inputs with the exchange made in every tensor that has the axis."""

        def change(tensor: Tensor) -> Tensor:
            plain = tensor.detach()
            if not self.fits(plain):
                return plain.clone()
            return plain.index_select(self.axis, torch.tensor(self.order, device=plain.device))

        changed = map_tensors([list(args), dict(kwargs)], change)
        return changed[0], changed[1]

    def changes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether it changes the inputs at all."""
        pairs = zip(
            find_tensors([list(args), dict(kwargs)]),
            find_tensors(list(self.made(args, kwargs))),
            strict=True,
        )
        return any(not torch.equal(one.detach(), other) for (_, one), (_, other) in pairs)

    def state(self, before: Tensor, after: Tensor, axes: Sequence[int] | None = None) -> SwapEffect:
        """How a result differs; `axes`: those that may count the samples, unset: any."""
        if before.shape != after.shape:
            return "elsewhere"
        change = (
            (after.double() - before.double()).abs()
            if before.dtype != torch.bool
            else (after ^ before).double()
        )
        change = change.nan_to_num(0.0, 0.0, 0.0)
        own = float(change.max()) if change.numel() else 0.0
        if own == 0.0:
            return "same"
        own_axes = [at for at, size in enumerate(before.shape) if size == self.size]
        possible = own_axes if axes is None else [at for at in own_axes if at in axes]
        if not possible:
            return "elsewhere"
        others = torch.tensor(
            [at for at in range(self.size) if at not in self.rows], dtype=torch.long
        )
        rest = change
        for axis in own_axes:  # a table of all pairs has two
            rest = rest.index_select(axis, others.to(rest.device))
        if rest.numel() == 0 or float(rest.max()) <= ROUNDING_NOISE * own:
            return "apart"
        return "mixed"


def copy_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The inputs, cut off from the graph and from the script's own tensors."""
    copied = map_tensors([list(args), dict(kwargs)], lambda tensor: tensor.detach().clone())
    return copied[0], copied[1]


# The forward passes that lead to the coming backward: which module was given what.

MOST_FORWARDS = 4
"""Forwards of one step that are remembered: a GAN has three."""


@dataclass(slots=True)
class ModuleForward:
    """One call of an outermost module."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: dict[str, Any] | None

    @property
    def inputs(self) -> list[Tensor]:
        """Its tensors with at least one axis."""
        given = [list(self.args), dict(self.kwargs)]
        return [tensor for _, tensor in find_tensors(given) if tensor.ndim]


def is_training_forward(module: nn.Module, output: Any) -> bool:
    """Whether a forward can be part of a backward pass of the module's own weights."""
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in module.parameters()):
        return False
    if isinstance(output, (Tensor, list, tuple, Mapping)):
        return any(tensor.requires_grad for _, tensor in find_tensors(output))
    return True


# A copy of a model that can be run without effects on the training.

# Which outputs change when an input does shows what depends on what, for any model: no gradient,
# no hook and no random number of the script's is touched. The copy has weights, buffers and
# attributes of its own; it is run with the random numbers of one moment, so that two runs differ
# by their inputs alone.

MOST_BYTES = 1 << 30
"""Models above this are not copied."""
MOST_KEPT = 1 << 28
"""Bytes of results that are kept of a run, for naming the operation."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CannotCopy(Exception):
    """A model that cannot be copied or run; the message says why."""


@dataclasses.dataclass(slots=True)
class TracedOp:
    """An operation of a run."""

    name: str
    place: dict[str, Any] | None
    arguments: tuple[int, ...]
    """Identities of the tensors that went in."""
    result: Tensor | None
    """None where there was no room."""
    identity: int = 0
    dims: Any = None


@dataclasses.dataclass(slots=True)
class ForwardRun:
    """The result of one run."""

    outputs: list[Tensor]
    ops: list[TracedOp]
    inputs: list[Tensor]
    carries: bool = False
    """Whether the model has put something away for its next forward."""
    loss: Tensor | None = None
    """The only number among what it returned."""


class ModelCopy:
    """A copy of a module as it is now. In it, batch norm uses its running statistics."""

    def __init__(self, module: nn.Module, place: Callable[[], dict[str, Any] | None]) -> None:
        """Raises Unfit."""
        model = unwrap_model(module)
        tensors = [*model.parameters(), *model.buffers()]
        if sum(tensor.nbytes for tensor in tensors) > MOST_BYTES:
            raise CannotCopy("the model is too large to be copied")
        if any(type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) for tensor in tensors):
            raise CannotCopy("the model holds tensors of another kind")
        self._place = place
        self._moment = RngState(exact=True)
        try:
            with _silenced():
                self._pristine = copy.deepcopy(
                    model, _detached_results(model) | _empty_tables(model)
                )
        except Exception as error:  # an object that cannot be copied
            raise CannotCopy(f"the model cannot be copied ({type(error).__name__})") from error
        for part in self._pristine.modules():
            _remove_user_hooks(part)
            if isinstance(part, BatchNorm):
                _use_running_statistics(part)
        self._pristine.requires_grad_(False)

    @property
    def model(self) -> nn.Module:
        """The copy itself: to be looked at, not to be run."""
        return self._pristine

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, follow: bool = False
    ) -> ForwardRun:
        """A run over these inputs; `follow` keeps its operations. Raises Unfit."""
        watcher = _OpTracer(self._place) if follow else None
        inputs = [tensor for _, tensor in find_tensors([list(args), dict(kwargs)])]
        try:
            with ExitStack() as stack:
                stack.enter_context(_silenced())
                stack.callback(self._moment.restore)
                model = copy.deepcopy(self._pristine, _empty_tables(self._pristine))
                self._moment.restore()
                before = _states(model)
                stack.enter_context(torch.no_grad())
                if watcher is not None:
                    stack.enter_context(watcher)
                output = model(*args, **kwargs)
        except Exception as error:  # of the user's forward
            raise CannotCopy(
                f"the model cannot be run once more ({type(error).__name__})"
            ) from error
        outputs = [tensor.detach() for tensor in _float_outputs(output)]
        ops = [] if watcher is None else watcher.ops
        numbers = [t.detach() for _, t in find_tensors(output) if not t.ndim]
        loss = numbers[0] if len(numbers) == 1 and numbers[0].is_floating_point() else None
        return ForwardRun(outputs, ops, inputs, _changed(before, _states(model)), loss)


class _OpTracer(TorchFunctionMode):
    """Keeps the results of operations, as long as there is room."""

    def __init__(self, place: Callable[[], dict[str, Any] | None]) -> None:
        super().__init__()
        self.ops: list[TracedOp] = []
        self._place = place
        self._room = MOST_KEPT

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(first, Tensor):
            return result
        given = [id(tensor) for _, tensor in find_tensors([list(args), dict(kwargs)])]
        kept = first if first.nbytes <= self._room else None
        self._room -= 0 if kept is None else first.nbytes
        name = getattr(func, "__name__", str(func))
        dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        place = self._place()
        self.ops.append(TracedOp(name, place, tuple(given), kept, id(first), dims))
        return result


@contextmanager
def _silenced() -> Iterator[None]:
    disabled = logging.root.manager.disable
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


def _detached_results(model: nn.Module) -> dict[int, Any]:
    """What a module keeps of its last forward, hidden states say, cannot be copied: a `memo` with
    its values instead."""
    found: dict[int, Any] = {}
    for part in model.modules():
        kept = {name: value for name, value in vars(part).items() if not name.startswith("_")}
        for _, tensor in find_tensors(kept):
            if tensor.grad_fn is not None:
                found[id(tensor)] = tensor.detach().clone()
    return found


def _empty_tables(model: nn.Module) -> dict[int, Any]:
    """A `memo` with new empty containers for those of a model: each module has a dozen tables of
    hooks, and `deepcopy` takes longer for them than for its weights."""
    return {
        id(value): type(value)()
        for part in model.modules()
        for value in vars(part).values()
        if type(value) in (dict, OrderedDict, set) and not value
    }


def _states(model: nn.Module) -> list[tuple[Tensor, int]]:
    """The tensors a model keeps in addition to its weights, each with its version."""
    return [
        (value, tensor_version(value))
        for module in model.modules()
        for value in (*vars(module).values(), *module_buffers(module).values())
        if isinstance(value, Tensor)
    ]


def _changed(before: list[tuple[Tensor, int]], after: list[tuple[Tensor, int]]) -> bool:
    return len(before) != len(after) or any(
        one is not two or was != now for (one, was), (two, now) in zip(before, after, strict=True)
    )


def _remove_user_hooks(part: nn.Module) -> None:
    """The user's hooks write elsewhere; torch's own (spectral norm) belong to the model."""
    for name in _HOOKS:
        hooks: dict[Any, Any] = vars(part).get(name) or {}
        for key, hook in list(hooks.items()):
            if not getattr(type(hook), "__module__", "").startswith("torch."):
                del hooks[key]


def _use_running_statistics(norm: Any) -> None:
    norm.eval()
    if not norm.track_running_stats:
        device = norm.weight.device if norm.affine else None
        norm.running_mean = torch.zeros(norm.num_features, device=device)
        norm.running_var = torch.ones(norm.num_features, device=device)
        norm.track_running_stats = True


def _float_outputs(output: Any) -> list[Tensor]:
    if dataclasses.is_dataclass(output) and not isinstance(output, (type, Mapping)):
        output = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return [
        tensor
        for _, tensor in find_tensors(output)
        if tensor.ndim and tensor.is_floating_point() and not tensor.is_sparse
    ]


def outputs_by_position(output: Tensor, rows: int, length: int, time: int) -> Tensor | None:
    """(rows, positions, the rest) of an output that has one entry for each token."""
    first = (rows, length) if time == 1 else (length, rows)
    if output.ndim >= 3 and tuple(output.shape[:2]) == first:
        found = output.flatten(2)
    elif output.ndim == 2 and output.shape[0] == rows * length:
        found = output.reshape(*first, -1)
    elif output.ndim >= 3 and output.shape[0] == rows and output.shape[2] == length:
        return output.transpose(1, 2).flatten(2)  # classes on the second axis
    else:
        return None
    return found if time == 1 else found.transpose(0, 1)
