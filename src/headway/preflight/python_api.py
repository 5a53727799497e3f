"""`headway.preflight(...)`: the checks of `headway check` as a Python function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.config import Settings
from headway.errors import UsageError
from headway.preflight.runner import CheckOptions, run_check
from headway.report import Report
from headway.torch_adapters.rng import RngState

MODEL_NAMES = {"model", "net", "network", "module", "m"}


def preflight(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: Callable[..., Tensor],
    batch: Any,
    *,
    steps: int = 3,
    max_norm: float | None = None,
    settings: Settings | None = None,
) -> Report:
    """Run a few real steps on a batch under full observation, restore everything, and report.

    `loss_fn(model(inputs), targets)` for a batch of (inputs, targets), as torch's own losses
    expect; a function whose first parameter is called `model` is given `(model, batch)`. With
    `loss_fn=None` the model's own output is the loss, or has it as `.loss`. Weights, optimizer
    state, buffers, gradients and random numbers are restored afterwards.
    """
    _require(model, nn.Module, "a torch module", "model")
    _require(optimizer, Optimizer, "a torch optimizer", "optimizer")
    compute = _how_to_compute(model, loss_fn, batch)

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = compute()
            loss.backward()
            optimizer.step()

    how = CheckOptions(max_steps=steps, max_norm=max_norm, trained=(model, optimizer))
    with _restore_afterwards(model, optimizer):
        done = run_check(train, settings=settings, how=how, command="preflight")
    if done.error is not None and not done.report.findings:
        raise done.error
    return done.report


def _how_to_compute(model: nn.Module, loss_fn: Any, batch: Any) -> Callable[[], Tensor]:
    if loss_fn is None:
        return lambda: _loss_of(_apply(model, batch))
    if _takes_model(loss_fn):
        return lambda: _loss_of(loss_fn(model, batch))
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        raise UsageError(
            "preflight() takes a batch of (inputs, targets), or a loss_fn whose first parameter "
            "is called model and which is given (model, batch): the batch is "
            f"{_describe_value(batch)}"
        )
    inputs, targets = batch
    return lambda: _loss_of(loss_fn(_apply(model, inputs), targets))


def _takes_model(loss_fn: Any) -> bool:
    try:
        parameters = list(inspect.signature(loss_fn).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] in MODEL_NAMES


def _apply(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)):
        return model(*inputs)
    return model(inputs)


def _loss_of(output: Any) -> Tensor:
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("loss")
    found = output if found is None else found
    if not isinstance(found, Tensor) or found.numel() != 1:
        raise UsageError(f"preflight() needs a loss of one number: got {_describe_value(found)}")
    return found


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def _require(value: Any, kind: type, said: str, name: str) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"preflight({name}=…) takes {said}: got {type(value).__name__}")


@contextmanager
def _restore_afterwards(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Restores everything that the steps change."""
    tensors = [*model.parameters(), *model.buffers(), *_held(optimizer)]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in _held(optimizer)]
    state = copy.deepcopy(optimizer.state_dict())
    moment = RngState(exact=True)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
            for parameter, gradient, kept in gradients:
                if gradient is not None and kept is not None:
                    gradient.copy_(kept)
                parameter.grad = gradient
        optimizer.load_state_dict(state)
        moment.restore()


def _held(optimizer: Optimizer) -> Sequence[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
