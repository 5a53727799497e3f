"""Healthy loops of odd shapes: data, random numbers, surroundings. See `odd_loops`."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from support.odd_loops import (
    Batch,
    adam,
    batches,
    between,
    learned,
    mlp,
    odd,
    plain,
    step,
    train,
    with_loss,
)

# Data, random numbers and the surroundings.


@odd
def random_numbers_between_steps(watch: Any) -> Any:
    drawn: list[Any] = []

    def change(model: Any, optimizer: Any, number: int) -> None:
        drawn.append([torch.rand(2), torch.tensor(random.random()), torch.tensor(np.random.rand())])

    return plain(watch, change), drawn


@odd
def dropout_under_a_fork(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(number)
            noisy = F.dropout(model(batch[0]), 0.3)
        return F.mse_loss(noisy, batch[1]) + F.dropout(model(batch[0]), 0.1).mean() * 0.1

    return with_loss(watch, loss_of)


@odd
def mixed_samples(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        share, order = random.betavariate(0.4, 0.4), torch.randperm(4)
        out = model(share * batch[0] + (1 - share) * batch[0][order])
        return share * F.mse_loss(out, batch[1]) + (1 - share) * F.mse_loss(out, batch[1][order])

    return with_loss(watch, loss_of)


@odd
def a_generator_of_batches(watch: Any) -> Any:
    def endless() -> Iterator[Batch]:
        for x, y in batches():
            yield x + torch.randn(()) * 0.1, y

    return train(watch, mlp(), data=endless())


@odd
def a_shuffling_loader(watch: Any) -> Any:
    x, y = batches(1, 40)[0]
    return train(watch, mlp(), data=DataLoader(TensorDataset(x, y), 4, shuffle=True))


class _Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        for x, y in batches(20, 1):
            yield x[0] + torch.rand(()), y[0]


@odd
def a_loader_with_a_process(watch: Any) -> Any:
    return train(watch, mlp(), data=DataLoader(_Stream(), 4, num_workers=1))


@odd
def batches_by_next(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    source = iter(watch(model, optimizer)(batches()))
    while (batch := next(source, None)) is not None:
        step(model, optimizer, batch)
    return learned(model, optimizer)


@odd
def loops_that_are_left(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    guard = watch(model, optimizer)
    for epoch in range(3):
        for number, batch in enumerate(guard(batches())):
            step(model, optimizer, batch)
            if number == epoch:
                break
    return learned(model, optimizer)


@odd
def loops_in_loops(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    guard = watch(model, optimizer)
    for batch in guard(batches(3)):
        step(model, optimizer, batch)
        for inner in batches(2):
            step(model, optimizer, inner)
    return learned(model, optimizer)


@odd
def evaluation_in_between(watch: Any) -> Any:
    scores = []
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = adam(model)
    for batch in watch(model, optimizer)(batches()):
        model.train()
        step(model, optimizer, batch)
        model.eval()
        with torch.inference_mode():
            scores.append(F.mse_loss(model(batch[0]), batch[1]))
    return [score.clone() for score in scores], learned(model, optimizer)


@odd
def truncated_backward_through_time(watch: Any) -> Any:
    model = nn.LSTM(6, 3)
    optimizer = adam(model)
    state = None
    for x, y in watch(model, optimizer)(batches()):
        out, state = model(x[:, None], state)
        F.mse_loss(out[:, 0], y).backward()
        state = tuple(item.detach() for item in state)
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer), list(state or ())


@odd
def a_policy_gradient(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        chances = torch.distributions.Categorical(logits=model(batch[0]))
        action = chances.sample()
        reward = batch[1].gather(1, action[:, None])[:, 0]
        return -(chances.log_prob(action) * reward).mean()

    return with_loss(watch, loss_of)


@odd
def an_empty_batch(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for number, (x, y) in enumerate(watch(model, optimizer)(batches())):
        rows = 0 if number == 5 else 4
        (model(x[:rows]) - y[:rows]).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def a_loss_of_zero(watch: Any) -> Any:
    return with_loss(watch, lambda m, b, n: F.mse_loss(m(b[0]), b[1]) * (n % 3 != 1))


@odd
def a_loss_below_zero(watch: Any) -> Any:
    return with_loss(watch, lambda m, b, n: F.mse_loss(m(b[0]), b[1]) - 10)


@odd
def deterministic_algorithms(watch: Any) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return plain(watch, lambda model, optimizer, number: None)
    finally:
        torch.use_deterministic_algorithms(False)


@odd
def another_default_dtype(watch: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return train(watch, mlp(), data=[(x.double(), y.double()) for x, y in batches()])
    finally:
        torch.set_default_dtype(torch.float32)


@odd
def no_collection_of_garbage(watch: Any) -> Any:
    gc.disable()
    try:
        return plain(watch, lambda m, o, n: gc.collect() if n == 5 else None)
    finally:
        gc.enable()


@odd
def steps_of_coroutines(watch: Any) -> Any:
    async def run() -> Any:
        model = mlp()
        optimizer = adam(model)
        for batch in watch(model, optimizer)(batches()):
            await asyncio.sleep(0)
            step(model, optimizer, batch)
        return learned(model, optimizer)

    return asyncio.run(run())


@odd
def gradients_off_around_it(watch: Any) -> Any:
    with torch.set_grad_enabled(False):
        model = mlp()
        optimizer = adam(model)
        for batch in watch(model, optimizer)(batches()):
            with torch.enable_grad():
                step(model, optimizer, batch)
    return learned(model, optimizer)


@odd
def a_model_that_is_a_subclass_of_a_list(watch: Any) -> Any:
    layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)])
    optimizer = adam(layers)
    for x, y in watch(layers, optimizer)(batches()):
        F.mse_loss(layers[1](layers[0](x).relu()), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return learned(layers, optimizer)


@odd
def noise_in_the_weights(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        with torch.no_grad():
            model[0].weight.add_(torch.randn(8, 6), alpha=1e-3)

    return between(watch, change)
