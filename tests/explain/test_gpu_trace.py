"""On a CUDA device backward runs in a thread of its own, without the frames of the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.replay_runs import line_of, traced
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x).square()
        hidden = torch.sqrt(y * x[:, :1])
        return y + hidden


class Model(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = Block()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.first.weight.mean().exp()
        if self.how == "plain":
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.how == "reentrant")


@pytest.mark.parametrize("how", ["plain", "checkpointed", "reentrant"])
def test_backward_origin_has_the_line_of_its_forward(how: str) -> None:
    x = torch.rand(6, 4) + 0.5
    x[3] = 0
    origin = traced(Model(how).cuda(), x, lambda model, x: model(x.cuda()).mean()).origin
    assert (origin.phase, origin.op, origin.node) == ("backward", "sqrt", "SqrtBackward0")
    assert (origin.module, origin.rows) == ("block", (3,))
    assert line_of(origin) == "hidden = torch.sqrt(y * x[:, :1])"


def test_poisoned_batch_is_known_after_the_move_to_the_device() -> None:
    x = torch.rand(6, 4)
    x[2, 1] = float("nan")
    origin = traced(nn.Linear(4, 2).cuda(), x, lambda model, x: model(x.cuda()).mean()).origin
    assert (origin.inputs[0].role, origin.rows) == ("batch", (2,))


def test_half_precision_overflow_in_a_linear() -> None:
    def compute(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.float16):
            return model(x.cuda()).float().mean()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()
    with torch.no_grad():
        model[1].weight.fill_(6e4)
        model[0].bias.fill_(5)
    origin = traced(model, torch.rand(6, 4), compute).origin
    assert (origin.op, origin.module, origin.autocast) == ("linear", "1", "float16")


def test_custom_backward_has_its_own_line() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad / (grad - grad)

    model = nn.Linear(4, 2).cuda()
    origin = traced(model, torch.rand(6, 4), lambda m, x: Bad.apply(m(x.cuda())).mean()).origin
    assert (origin.op, origin.node) == ("div", "BadBackward")
    assert line_of(origin) == "return grad / (grad - grad)"
