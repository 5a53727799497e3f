"""Healthy loops of odd shapes: gradients, graphs and precision. See `odd_loops`."""

from __future__ import annotations

import copy
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from support.odd_loops import (
    Batch,
    adam,
    batches,
    between,
    learned,
    mlp,
    odd,
    plain,
    sgd,
    step,
    with_loss,
)

# Gradients that others write.


@odd
def gradients_by_hand(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for x, y in watch(model, optimizer)(batches()):
        loss = F.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for weight, grad in zip(model.parameters(), grads, strict=True):
            weight.grad = grad * 0.5
        optimizer.step()
    return learned(model, optimizer)


@odd
def gradients_that_are_shared(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        model[0].bias.grad = torch.zeros(8)
        model[2].bias.grad = model[2].weight.grad[:, 0]

    return between(watch, change)


@odd
def gradients_with_noise(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        for weight in model.parameters():
            weight.grad.add_(torch.randn_like(weight), alpha=1e-3)

    return between(watch, change)


@odd
def gradients_clipped_by_value(watch: Any) -> Any:
    return between(watch, lambda m, o, n: nn.utils.clip_grad_value_(m.parameters(), 0.01))


@odd
def gradients_clipped_layer_by_layer(watch: Any) -> Any:
    def change(model: Any, optimizer: Any, number: int) -> None:
        for weight in model.parameters():
            nn.utils.clip_grad_norm_([weight], 0.1, foreach=False)

    return between(watch, change)


@odd
def gradients_that_are_removed(watch: Any) -> Any:
    return between(watch, lambda m, o, n: setattr(m[n % 2 * 2].weight, "grad", None))


@odd
def tensor_hooks(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    model[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    model[2].bias.register_hook(lambda grad: grad * torch.rand(()))
    for batch in watch(model, optimizer)(batches()):
        step(model, optimizer, batch)
    return learned(model, optimizer)


@odd
def module_hooks(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    model[2].register_full_backward_hook(lambda module, to, given: (to[0] * 0.5,))
    model[0].register_forward_hook(lambda module, given, out: out + 0.1)
    model[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    for batch in watch(model, optimizer)(batches()):
        step(model, optimizer, batch)
    return learned(model, optimizer)


@odd
def a_step_in_the_backward_pass(watch: Any) -> Any:
    model = mlp()
    each = {p: torch.optim.SGD([p], lr=1e-2) for p in model.parameters()}

    def at_once(weight: nn.Parameter) -> None:
        each[weight].step()
        each[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(at_once)
    for x, y in watch(model, next(iter(each.values())))(batches()):
        F.mse_loss(model(x), y).backward()
    return learned(model)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -grads[0]


@odd
def a_gradient_that_is_reversed(watch: Any) -> Any:
    return with_loss(
        watch,
        lambda m, b, n: F.mse_loss(m(b[0]), b[1]) + 0.1 * _Reversed.apply(m[0](b[0])).mean(),
    )


@odd
def tensors_packed_for_backward(watch: Any) -> Any:
    return with_loss(watch, lambda model, batch, number: _packed(model, batch))


def _packed(model: nn.Module, batch: Batch) -> Tensor:
    pack = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.detach().clone(), lambda kept: kept
    )
    with pack:
        return F.mse_loss(model(batch[0]), batch[1])


@odd
def checkpoints_of_activations(watch: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        hidden = checkpoint(model[0], batch[0], use_reentrant=False)
        return F.mse_loss(model[2](F.dropout(model[1](hidden), 0.2)), batch[1])

    return with_loss(watch, loss_of)


@odd
def reentrant_checkpoints(watch: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        hidden = checkpoint(model, batch[0].clone().requires_grad_(), use_reentrant=True)
        return F.mse_loss(hidden, batch[1])

    return with_loss(watch, loss_of)


# torch.func, compilation, precision.


@odd
def a_functional_step(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    names = dict(model.named_parameters())
    for x, y in watch(model, optimizer)(batches()):

        def loss_of(weights: Any, x: Tensor = x, y: Tensor = y) -> Tensor:
            return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

        grads = torch.func.grad(loss_of)({k: v.detach() for k, v in names.items()})
        for name, weight in names.items():
            weight.grad = grads[name]
        optimizer.step()
    return learned(model, optimizer)


@odd
def gradients_per_sample(watch: Any) -> Any:
    model = mlp()
    optimizer = sgd(model)
    names = dict(model.named_parameters())

    def loss_of(weights: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    for x, y in watch(model, optimizer)(batches()):
        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(names, x, y)
        for name, weight in names.items():
            weight.grad = each[name].detach().clamp(-1, 1).mean(0)
        optimizer.step()
    return learned(model, optimizer)


@odd
def a_compiled_model(watch: Any) -> Any:
    model = mlp()
    fast = torch.compile(model, backend="eager")
    optimizer = adam(model)
    return [step(fast, optimizer, b) for b in watch(model, optimizer)(batches())], learned(model)


@odd
def a_compiled_step(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    fast = torch.compile(lambda batch: step(model, optimizer, batch), backend="eager")
    return [fast(b) for b in watch(model, optimizer)(batches())], learned(model, optimizer)


@odd
def autocast(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.mse_loss(model(batch[0]).float(), batch[1])

    return with_loss(watch, loss_of)


@odd
def a_scaler_with_two_optimizers(watch: Any) -> Any:
    one, two = mlp(), mlp()
    first, second = sgd(one), adam(two)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for x, y in watch([one, two], [first, second], scaler=scaler)(batches()):
        scaler.scale(F.mse_loss(one(x) + two(x), y)).backward()
        scaler.unscale_(first)
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        first.zero_grad()
        second.zero_grad()
    return learned(one, first), learned(two, second), scaler.get_scale()


@odd
def anomaly_mode(watch: Any) -> Any:
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        return plain(watch, lambda model, optimizer, number: None)


@odd
def backward_in_a_thread(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for x, y in watch(model, optimizer)(batches()):
        loss = F.mse_loss(model(x), y)
        worker = threading.Thread(target=loss.backward)
        worker.start()
        worker.join()
        optimizer.step()
        optimizer.zero_grad()
    return learned(model, optimizer)


@odd
def a_whole_step_in_a_thread(watch: Any) -> Any:
    model = mlp()
    optimizer = adam(model)
    for batch in watch(model, optimizer)(batches()):
        worker = threading.Thread(target=step, args=(model, optimizer, batch))
        worker.start()
        worker.join()
    return learned(model, optimizer)


@odd
def a_teacher_that_follows(watch: Any) -> Any:
    teacher = mlp()

    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        with torch.no_grad():
            if number == 0:
                teacher.load_state_dict(copy.deepcopy(model.state_dict()))
            for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
            wanted = teacher(batch[0])
        return F.mse_loss(model(batch[0]), batch[1]) + F.mse_loss(model(batch[0] + 0.1), wanted)

    return with_loss(watch, loss_of), learned(teacher)


@odd
def inner_steps(watch: Any) -> Any:
    def loss_of(model: nn.Module, batch: Batch, number: int) -> Tensor:
        weights = dict(model.named_parameters())
        x, y = batch
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(model, weights, (x[:2],)), y[:2])
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            pairs = zip(weights.items(), grads, strict=True)
            weights = {name: weight - 0.1 * grad for (name, weight), grad in pairs}
        return F.mse_loss(torch.func.functional_call(model, weights, (x[2:],)), y[2:])

    return with_loss(watch, loss_of)
