"""A copy of a model that can be asked questions without anybody noticing.

Which outputs change when an input does tells what depends on what, for any model: no gradient, no
hook and no random number of the script's is touched. The copy has weights, buffers and attributes
of its own; it is run with the random numbers of one moment, so that two runs differ by their inputs
alone.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from headway.torch_tools.nested import tensors_in
from headway.torch_tools.rng import Moment
from headway.torch_tools.users_names import users_model

MOST_BYTES = 1 << 30
"""Models above this are not copied."""
MOST_KEPT = 1 << 28
"""Bytes of results that are kept of a run, for naming the operation."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Unfit(Exception):
    """A model that cannot be copied or asked; the message says why."""


@dataclasses.dataclass(slots=True)
class Op:
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
class Run:
    """What one run gave."""

    outputs: list[Tensor]
    ops: list[Op]
    inputs: list[Tensor]
    carries: bool = False
    """Whether the model has put something away for its next forward."""


class Twin:
    """A copy of a module as it is now. Batch norm looks at its running statistics in it."""

    def __init__(self, module: nn.Module, place: Callable[[], dict[str, Any] | None]) -> None:
        """Raises Unfit."""
        model = users_model(module)
        tensors = [*model.parameters(), *model.buffers()]
        if sum(tensor.nbytes for tensor in tensors) > MOST_BYTES:
            raise Unfit("the model is too large to be copied")
        if any(type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) for tensor in tensors):
            raise Unfit("the model holds tensors of another kind")
        self._place = place
        self._moment = Moment(exact=True)
        try:
            with _quietly():
                self._pristine = copy.deepcopy(model, _results_in(model))
        except Exception as error:  # somebody's object that cannot be copied
            raise Unfit(f"the model cannot be copied ({type(error).__name__})") from error
        for part in self._pristine.modules():
            _take_off_hooks(part)
            if isinstance(part, _BatchNorm):
                _look_at_no_batch(part)
        self._pristine.requires_grad_(False)

    @property
    def model(self) -> nn.Module:
        """The copy itself: to be looked at, not to be run."""
        return self._pristine

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, follow: bool = False) -> Run:
        """A run over these inputs; `follow` keeps its operations. Raises Unfit."""
        watcher = _Watcher(self._place) if follow else None
        inputs = [tensor for _, tensor in tensors_in([list(args), dict(kwargs)])]
        try:
            with ExitStack() as stack:
                stack.enter_context(_quietly())
                stack.callback(self._moment.restore)
                model = copy.deepcopy(self._pristine)
                self._moment.restore()
                before = _states(model)
                stack.enter_context(torch.no_grad())
                if watcher is not None:
                    stack.enter_context(watcher)
                output = model(*args, **kwargs)
        except Exception as error:  # of the user's forward
            raise Unfit(f"the model cannot be run once more ({type(error).__name__})") from error
        outputs = [tensor.detach() for tensor in _found_in(output)]
        ops = [] if watcher is None else watcher.ops
        return Run(outputs, ops, inputs, carries=_changed(before, _states(model)))


class _Watcher(TorchFunctionMode):
    """Keeps the results of operations, as long as there is room."""

    def __init__(self, place: Callable[[], dict[str, Any] | None]) -> None:
        super().__init__()
        self.ops: list[Op] = []
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
        given = [id(tensor) for _, tensor in tensors_in([list(args), dict(kwargs)])]
        kept = first if first.nbytes <= self._room else None
        self._room -= 0 if kept is None else first.nbytes
        name = getattr(func, "__name__", str(func))
        dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        place = self._place()
        self.ops.append(Op(name, place, tuple(given), kept, id(first), dims))
        return result


@contextmanager
def _quietly() -> Iterator[None]:
    disabled = logging.root.manager.disable
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


def _results_in(model: nn.Module) -> dict[int, Any]:
    """What a module keeps of its last forward, hidden states say, cannot be copied: a `memo` with
    its values instead."""
    found: dict[int, Any] = {}
    for part in model.modules():
        kept = {name: value for name, value in vars(part).items() if not name.startswith("_")}
        for _, tensor in tensors_in(kept):
            if tensor.grad_fn is not None:
                found[id(tensor)] = tensor.detach().clone()
    return found


def _states(model: nn.Module) -> list[tuple[Tensor, int]]:
    """The tensors a model keeps beside its weights, each with its version."""
    return [
        (value, value._version)
        for module in model.modules()
        for value in (*vars(module).values(), *module._buffers.values())
        if isinstance(value, Tensor)
    ]


def _changed(before: list[tuple[Tensor, int]], after: list[tuple[Tensor, int]]) -> bool:
    return len(before) != len(after) or any(
        one is not two or was != now for (one, was), (two, now) in zip(before, after, strict=True)
    )


def _take_off_hooks(part: nn.Module) -> None:
    """The user's hooks write elsewhere; torch's own (spectral norm) belong to the model."""
    for name in _HOOKS:
        hooks: dict[Any, Any] = vars(part).get(name) or {}
        for key, hook in list(hooks.items()):
            if not getattr(type(hook), "__module__", "").startswith("torch."):
                del hooks[key]


def _look_at_no_batch(norm: _BatchNorm) -> None:
    norm.eval()
    if not norm.track_running_stats:
        device = norm.weight.device if norm.affine else None
        norm.running_mean = torch.zeros(norm.num_features, device=device)
        norm.running_var = torch.ones(norm.num_features, device=device)
        norm.track_running_stats = True


def _found_in(output: Any) -> list[Tensor]:
    if dataclasses.is_dataclass(output) and not isinstance(output, (type, Mapping)):
        output = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return [
        tensor
        for _, tensor in tensors_in(output)
        if tensor.ndim and tensor.is_floating_point() and not tensor.is_sparse
    ]
