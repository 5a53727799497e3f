"""Healthy training loops of odd shapes: exceptions and the order of calls. The other
`odd_loops_*` have the rest.

Every loop gets `watch`, which is `Guard` or something that does nothing, and returns all that it
learned. It must be the same, bit for bit, with and without the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOOPS: dict[str, Callable[[Any], Any]] = {}
Batch = tuple[Tensor, Tensor]


class Unwatched:
    """Stands where a guard would."""

    def __init__(self, model: Any, optimizer: Any, **options: Any) -> None:
        self.step = 0

    def __call__(self, data: Iterable[Any]) -> Iterable[Any]:
        return data

    def close(self) -> None:
        """There is nothing to close."""


def odd(loop: Callable[[Any], Any]) -> Callable[[Any], Any]:
    LOOPS[loop.__name__] = loop
    return loop


def batches(count: int = 10, rows: int = 4) -> list[Batch]:
    made = torch.Generator().manual_seed(5)
    return [
        (torch.randn(rows, 6, generator=made), torch.randn(rows, 3, generator=made))
        for _ in range(count)
    ]


def mlp(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8, **options), nn.Tanh(), nn.Linear(8, 3, **options))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def learned(model: nn.Module, *optimizers: Any) -> list[Any]:
    return [model.state_dict(), *(item.state_dict() for item in optimizers)]


def step(model: Any, optimizer: Any, batch: Batch) -> Tensor:
    loss = F.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def plain(watch: Any, change: Callable[[Any, Any, int], None], make: Any = adam) -> Any:
    """The plain loop, and something odd after each step."""
    model = mlp()
    optimizer = make(model)
    losses = []
    for number, batch in enumerate(watch(model, optimizer)(batches())):
        losses.append(step(model, optimizer, batch))
        change(model, optimizer, number)
    return losses, learned(model, optimizer)


def train(watch: Any, model: nn.Module, make: Any = adam, data: Any = None) -> Any:
    optimizer = make(model)
    losses = [
        step(model, optimizer, b)
        for b in watch(model, optimizer)(batches() if data is None else data)
    ]
    return losses, learned(model, optimizer)


def with_loss(
    watch: Any, loss_of: Callable[[nn.Module, Batch, int], Tensor], make: Any = adam
) -> Any:
    """The plain loop with a loss of its own."""
    model = mlp()
    optimizer = make(model)
    losses = []
    for number, batch in enumerate(watch(model, optimizer)(batches())):
        loss = loss_of(model, batch, number)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, learned(model, optimizer)


def between(watch: Any, change: Callable[[Any, Any, int], None], make: Any = adam) -> Any:
    """The plain loop, and something odd between the backward pass and the step."""
    model = mlp()
    optimizer = make(model)
    for number, batch in enumerate(watch(model, optimizer)(batches())):
        F.mse_loss(model(batch[0]), batch[1]).backward()
        change(model, optimizer, number)
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


# Exceptions, and calls in an unusual order.


@odd
def an_exception_in_forward(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for number, batch in enumerate(watch(model, optimizer)(batches())):
        try:
            if number % 3 == 1:
                model(torch.ones(4, 5))
            step(model, optimizer, batch)
        except RuntimeError:
            optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def an_exception_in_backward(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for number, (x, y) in enumerate(watch(model, optimizer)(batches())):
        out = model(x)
        if number % 3 == 1:
            out.register_hook(lambda grad: 1 / 0)
        try:
            F.mse_loss(out, y).backward()
        except ZeroDivisionError:
            continue
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def a_step_that_raises(watch: Any) -> Any:
    def fails(optimizer: Any, args: Any, kwargs: Any) -> None:
        raise KeyError

    def change(model: Any, optimizer: Any, number: int) -> None:
        if number % 4 == 2:
            handle = optimizer.register_step_pre_hook(fails)
            try:
                optimizer.step()
            except KeyError:
                handle.remove()

    return between(watch, change)


@odd
def a_loss_that_the_user_skips(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for number, (x, y) in enumerate(watch(model, optimizer)(batches())):
        loss = F.mse_loss(model(x), y) * (float("nan") if number == 4 else 1)
        if torch.isfinite(loss):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def a_step_without_gradients(watch: Any) -> Any:
    return plain(watch, lambda model, optimizer, number: optimizer.step())


@odd
def two_steps_of_one_gradient(watch: Any) -> Any:
    return between(watch, lambda model, optimizer, number: optimizer.step(), sgd)


@odd
def backward_without_a_step(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        model(torch.ones(2, 6)).sum().backward()
        optimizer.zero_grad()

    return plain(watch, change)


@odd
def zero_grad_first(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for x, y in watch(model, optimizer)(batches()):
        optimizer.zero_grad(set_to_none=False)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return learned(model, optimizer)


@odd
def zero_grad_of_the_model(watch: Any) -> Any:
    return between(watch, lambda model, optimizer, number: None if number else model.zero_grad())


@odd
def uneven_accumulation(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    data = batches(11)
    for number, (x, y) in enumerate(watch(model, optimizer)(data), 1):
        (F.mse_loss(model(x), y) / 4).backward()
        if number % 4 == 0 or number == len(data):
            optimizer.step()
            optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def several_losses_backward_one_by_one(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        out = model(batch[0])
        out.abs().mean().backward(retain_graph=True)
        return F.mse_loss(out, batch[1])

    return with_loss(watch, loss_of)


@odd
def a_graph_kept_from_the_last_step(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    constant = (torch.ones(3, requires_grad=True) * 2).sum()
    for x, y in watch(model, optimizer)(batches()):
        (F.mse_loss(model(x), y) + 0 * constant).backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def a_vector_goes_backward(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        out = model(batch[0])
        out.backward(torch.full_like(out, 0.1), retain_graph=True)
        return F.mse_loss(out, batch[1])

    return with_loss(watch, loss_of)


@odd
def backward_for_some_inputs(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for x, y in watch(model, optimizer)(batches()):
        loss = F.mse_loss(model(x), y)
        loss.backward(inputs=list(model[2].parameters()))
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def a_gradient_penalty(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        x = batch[0].clone().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.mse_loss(out, batch[1]) + slope.pow(2).mean()

    return with_loss(watch, loss_of)


@odd
def a_hessian_product(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        loss = F.mse_loss(model(batch[0]), batch[1])
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return loss + 0.01 * sum(g.pow(2).sum() for g in grads)

    return with_loss(watch, loss_of)
