"""Healthy loops of odd shapes: weights and optimizers. See `odd_loops`."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.odd_loops import (
    adam,
    batches,
    learned,
    mlp,
    odd,
    plain,
    sgd,
    step,
    train,
)

# Weights.


@odd
def weights_clamped_in_place(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.clamp_(-0.3, 0.3)

    return plain(watch, change)


@odd
def weights_with_other_data(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        model[0].weight.data = model[0].weight.data.clone() * 0.9
        model[2].bias.data.copy_(torch.zeros(3))

    return plain(watch, change)


@odd
def tied_weights(watch: Any) -> Any:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    model[2].weight = model[0].weight
    return train(watch, model)


@odd
def complex_weights(watch: Any) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.weight).abs()

    return train(watch, Model())


@odd
def double_precision(watch: Any) -> Any:
    data = [(x.double(), y.double()) for x, y in batches()]
    return train(watch, mlp(dtype=torch.float64), data=data)


@odd
def bfloat16_weights(watch: Any) -> Any:
    data = [(x.bfloat16(), y.bfloat16()) for x, y in batches()]
    return train(watch, mlp(dtype=torch.bfloat16), sgd, data)


@odd
def weight_norm(watch: Any) -> Any:
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    return train(watch, model)


@odd
def spectral_norm(watch: Any) -> Any:
    model = mlp()
    nn.utils.parametrizations.spectral_norm(model[2])
    return train(watch, model)


@odd
def orthogonal_weights(watch: Any) -> Any:
    model = mlp()
    nn.utils.parametrizations.orthogonal(model[0])
    return train(watch, model)


@odd
def a_lazy_layer(watch: Any) -> Any:
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))
    model(torch.ones(1, 6))
    return train(watch, model)


@odd
def a_pruned_layer(watch: Any) -> Any:
    from torch.nn.utils import prune

    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    return train(watch, model)


@odd
def sparse_gradients(watch: Any) -> Any:
    model = nn.EmbeddingBag(11, 3, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    for x, y in watch(model, optimizer)(batches()):
        F.mse_loss(model((x.abs() * 3).long().clamp(0, 10)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def unused_and_frozen_weights(watch: Any) -> Any:
    model = mlp()
    model.unused = nn.Linear(2, 2)
    model[0].bias.requires_grad_(False)
    optimizer = adam(model)
    for x, y in watch(model, optimizer)(batches()):
        F.mse_loss(model[2](model[1](model[0](x))), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def weights_frozen_in_turns(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        model[0].requires_grad_(number % 2 == 0)

    return plain(watch, change)


@odd
def buffers_alone(watch: Any) -> Any:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    optimizer = adam(model)
    for number, batch in enumerate(watch(model, optimizer)(batches())):
        if number % 2:
            with torch.no_grad():
                model(batch[0])
        else:
            step(model, optimizer, batch)
    return learned(model, optimizer)


@odd
def no_weights_at_all(watch: Any) -> Any:
    point = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([point], lr=0.1)
    for _, y in watch(nn.Identity(), optimizer)(batches()):
        (point - y.mean(0)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return point.detach(), optimizer.state_dict()


# Optimizers.


@odd
def a_closure(watch: Any) -> Any:
    return _closures(watch, sgd)


@odd
def lbfgs(watch: Any) -> Any:
    return _closures(watch, lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3))


def _closures(watch: Any, make: Any) -> Any:
    model = mlp()
    optimizer = make(model)
    losses = []
    for x, y in watch(model, optimizer)(batches()):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).detach())
    return losses, learned(model)


@odd
def a_group_that_is_added(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        if number == 4:
            model.append(nn.Linear(3, 3))
            optimizer.add_param_group({"params": model[3].parameters(), "lr": 1e-3})

    return plain(watch, change)


@odd
def a_layer_that_is_replaced(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        if number == 4:
            old = set(model[2].parameters())
            for weight in old:
                optimizer.state.pop(weight)
            model[2] = nn.Linear(8, 3)
            group = optimizer.param_groups[0]
            group["params"] = [p for p in group["params"] if p not in old]
            group["params"] += list(model[2].parameters())

    return plain(watch, change)


@odd
def an_optimizer_that_is_rebuilt(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for number, batch in enumerate(watch(model, optimizer)(batches())):
        if number == 5:
            optimizer = sgd(model)
        step(model, optimizer, batch)
    return learned(model, optimizer)


@odd
def an_optimizer_that_is_pickled(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        again = pickle.loads(pickle.dumps(optimizer))
        optimizer.load_state_dict(again.state_dict())

    return plain(watch, change)


@odd
def states_that_are_saved_and_loaded(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        one, two = torch.load(file, weights_only=True)
        model.load_state_dict(one, assign=False)
        optimizer.load_state_dict(two)

    return plain(watch, change)


@odd
def a_model_that_is_copied(watch: Any) -> Any:
    best: list[Any] = []
    return plain(watch, lambda m, o, n: best.append(copy.deepcopy(m))), [learned(m) for m in best]


@odd
def hooks_of_the_optimizer(watch: Any) -> Any:
    model = mlp()
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(
        lambda o, args, kwargs: (
            [p.grad.mul_(0.5) for g in o.param_groups for p in g["params"]] and None
        )
    )
    optimizer.register_step_post_hook(
        lambda o, args, kwargs: o.param_groups[0].update(lr=o.param_groups[0]["lr"] * 0.99)
    )
    for batch in watch(model, optimizer)(batches()):
        step(model, optimizer, batch)
    return learned(model, optimizer)


@odd
def rates_that_the_user_sets(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        optimizer.param_groups[0].update(lr=10.0 ** -(number % 5 + 1), weight_decay=0.1)

    return plain(watch, change)


@odd
def a_schedule_of_momentum(watch: Any) -> Any:
    model = mlp()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    for batch in watch(model, optimizer, scheduler=scheduler)(batches()):
        step(model, optimizer, batch)
        scheduler.step()
    return learned(model, optimizer, scheduler)


@odd
def a_schedule_by_plateau(watch: Any) -> Any:
    model = mlp()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for batch in watch(model, optimizer)(batches()):
        scheduler.step(step(model, optimizer, batch))
    return learned(model, optimizer)


@odd
def two_optimizers_in_turns(watch: Any) -> Any:
    one, two = mlp(), nn.Linear(3, 1)
    first, second = adam(one), adam(two)
    for x, y in watch([one, two], [first, second])(batches()):
        second.zero_grad()
        (two(one(x).detach()).mean() - two(y).mean()).tanh().backward()
        second.step()
        first.zero_grad()
        two(one(x)).mean().neg().tanh().backward()
        first.step()
    return learned(one, first), learned(two, second)


@odd
def slow_weights(watch: Any) -> Any:
    slow = {}

    def change(model: Any, optimizer: Any, number: int) -> None:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                slow.setdefault(name, weight.clone())
                if number % 3 == 2:
                    slow[name].lerp_(weight, 0.5)
                    weight.copy_(slow[name])

    return plain(watch, change)


@odd
def averaged_weights(watch: Any) -> Any:
    from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = sgd(model)
    average, scheduler = AveragedModel(model), SWALR(optimizer, 0.05)
    for batch in watch(model, optimizer)(batches()):
        step(model, optimizer, batch)
        average.update_parameters(model)
        scheduler.step()
    update_bn(batches(), average)
    return learned(model, optimizer), average.state_dict()


@odd
def every_implementation(watch: Any) -> Any:
    made = []
    for options in ({"foreach": True}, {"fused": True}, {"amsgrad": True}, {"maximize": True}):
        torch.manual_seed(1)
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)  # type: ignore[arg-type]
        guard = watch(model, optimizer)
        made.append([step(model, optimizer, batch) for batch in guard(batches())])
        guard.close()
    return made


@odd
def no_optimizer_steps(watch: Any) -> Any:
    model = mlp()
    optimizer = sgd(model)
    for x, y in watch(model, optimizer)(batches()):
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad  # type: ignore[operator]
                weight.grad = None
    return learned(model)


@odd
def an_inner_optimizer(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        probe = nn.Linear(3, 1)
        inner = torch.optim.SGD(probe.parameters(), lr=0.1)
        probe(model(torch.ones(2, 6)).detach()).mean().backward()
        inner.step()

    return plain(watch, change)
