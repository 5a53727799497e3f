"""Losses in the styles people write, each a function of some weights, for tests of the tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.torch_adapters.op_recording.op_recorder import OpRecorder

Loss = Callable[[], Tensor]
Case = tuple[nn.Module, Loss]


@contextmanager
def tape(**limits: int) -> Iterator[OpRecorder]:
    made = OpRecorder(**limits)
    made.install()
    try:
        yield made
    finally:
        made.uninstall()
        assert torch._C._len_torch_dispatch_stack() == 0


def recorded(loss: Loss, made: OpRecorder) -> Tensor:
    made.begin()
    root = loss()
    made.pause()
    made.add_root(root)
    return root


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


X, Y = torch.randn(12, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


@case
def plain() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, lambda: F.cross_entropy(model(X), Y)


@case
def dropout() -> Case:
    model = nn.Sequential(
        nn.Linear(6, 32), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(32, 3)
    )
    return model, lambda: nn.CrossEntropyLoss()(model(X), Y)


@case
def batch_norm() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    return model, lambda: F.nll_loss(model(X).log_softmax(-1), Y)


@case
def lstm() -> Case:
    model = nn.ModuleDict({"rnn": nn.LSTM(6, 5, 2, batch_first=True), "head": nn.Linear(5, 3)})
    x = torch.randn(4, 7, 6)
    return model, lambda: F.cross_entropy(model["head"](model["rnn"](x)[0][:, -1]), Y[:4])


@case
def gru_cell_loop() -> Case:
    model = nn.GRUCell(6, 5)
    x = torch.randn(4, 7, 6)

    def loss() -> Tensor:
        out = torch.zeros(4, 7, 5)
        state = torch.zeros(4, 5)
        for t in range(7):
            state = model(x[:, t], state)
            out[:, t] = state
        return out.square().mean()

    return model, loss


@case
def attention() -> Case:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    x = torch.randn(3, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return model, lambda: model(x, src_mask=mask).pow(2).sum()


@case
def conv() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip
    x = torch.randn(5, 1, 8, 8)
    return model, lambda: F.cross_entropy(model(x), Y[:5])


@case
def embedding_bag_of_words() -> Case:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    x = torch.randint(0, 10, (12, 3))
    return model, lambda: F.cross_entropy(model(x), Y)


@case
def index_put_and_views() -> Case:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        h = model(X)
        half = h[:, :3]
        half.mul_(2.0)
        table = torch.zeros(12, 6)
        table[torch.arange(0, 12, 2)] = h[::2]
        table.view(-1)[0] = h.sum()
        return (table.t() @ h).abs().mean() + h.chunk(2, 1)[1].var()

    return model, loss


@case
def written_by_hand() -> Case:
    model = nn.Linear(6, 1)
    target = X.sum(1)

    def loss() -> Tensor:
        error = model(X).squeeze(1) - target
        huber = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5)
        keep = (error > -0.5).float()
        return (huber * keep).sum() / 12

    return model, loss


@case
def autocast() -> Case:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(X), Y)

    return model, loss


@case
def checkpointed() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    return model, lambda: F.cross_entropy(
        model[3](checkpoint(lambda x: model[2](model[1](model[0](x))), X, use_reentrant=False)), Y
    )


@case
def checkpointed_reentrant() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = X.clone().requires_grad_()

    def loss() -> Tensor:
        return F.cross_entropy(model[2](checkpoint(model[:2], x, use_reentrant=True)), Y)

    return model, loss


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        scaled = x * 2
        return scaled * scaled

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        return grads[0]


@case
def own_function() -> Case:
    model = nn.Linear(6, 3)
    square = _Square.apply
    return model, lambda: _Square.apply(model(X)).mean() + square(model(X)).std()


@case
def gumbel() -> Case:
    model = nn.Linear(6, 3)
    return model, lambda: (F.gumbel_softmax(model(X), tau=0.7) * X[:, :3]).sum()


@case
def reparametrised() -> Case:
    model = nn.Linear(6, 4)

    def loss() -> Tensor:
        mean, log_variance = model(X).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return (z**2).mean() + kl

    return model, loss


@case
def tied_and_complex() -> Case:
    model = nn.Linear(6, 6)
    return model, lambda: torch.fft.rfft(model(X) @ model.weight.t()).abs().log1p().mean()


@case
def gradient_penalty() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss() -> Tensor:
        x = X.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return ((grad.norm(dim=1) - 1) ** 2).mean()

    return model, loss
