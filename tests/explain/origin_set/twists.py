"""Code that is harder to look through: recomputed, in place, hidden, by hand, in other orders."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SIZE, LENGTH = 8, 5
NEVER = float("-inf")


def features(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, 6, generator=g),
        "y": torch.randint(0, 3, (SIZE,), generator=g),
    }


def classify(model: nn.Module, batch: Batch) -> Tensor:
    """The fourth class is not in use."""
    logits = model(batch["x"])
    unused = torch.arange(4, device=logits.device) == 3
    return F.cross_entropy(logits.masked_fill(unused, NEVER), batch["y"])


# Activations that are computed a second time, in backward.


class Lengths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return h * torch.sqrt((h**2).sum(-1, keepdim=True))  # born: recomputed-root


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Lengths()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


def recomputed_root() -> Case:
    bad = features(3)
    bad["x"][5] = 0
    return Case(Checkpointed(), (features(1), features(2)), bad, classify)


# A backward written by hand.


class Cube(torch.autograd.Function):
    """The cube root, whose slope is infinite at 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sign() * x.abs() ** (1 / 3)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return grads[0] / (3 * root**2)  # born: own-backward


class CubeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5, bias=False)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Cube.apply(self.inner(x)))


def own_backward() -> Case:
    bad = features(3)
    bad["x"][2] = 0
    return Case(CubeNet(), (features(1), features(2)), bad, classify)


# A gradient that a hook divides by its norm.


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        if h.requires_grad:
            h.register_hook(unit_gradient)
        return self.head(h)


def unit_gradient(grad: Tensor) -> Tensor:
    return grad / grad.norm(dim=-1, keepdim=True)  # born: hook-on-nothing


def counted(model: nn.Module, batch: Batch) -> Tensor:
    each = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none", ignore_index=-100)
    return each.sum() / 8


def hook_on_nothing() -> Case:
    bad = features(3)
    bad["y"][6] = -100  # no loss, no gradient
    return Case(Hooked(), (features(1), features(2)), bad, counted)


# In place, and into slices.


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        share = x.abs()
        share /= share.sum(-1, keepdim=True)  # born: divided-in-place
        return self.head(share)


def divided_in_place() -> Case:
    bad = features(3)
    bad["x"][1] = 0
    return Case(InPlace(), (features(1), features(2)), bad, classify)


class Filled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(len(x), 8, device=x.device)
        table[:, :6] = x
        table[:, 6] = torch.log(x[:, 0].abs())  # born: log-into-a-slice
        table[:, 7] = x[:, 1] ** 2
        return self.head(table)


def log_into_a_slice() -> Case:
    bad = features(3)
    bad["x"][7, 0] = 0
    return Case(Filled(), (features(1), features(2)), bad, classify)


# One line, run by many layers.


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x)) / self.gain  # born: third-of-four


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gain() for _ in range(4))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def third_of_four() -> Case:
    model = Deep()
    gain = model.layers[2].gain

    def repair() -> None:
        nn.init.ones_(gain)

    nn.init.zeros_(gain)
    return Case(model, (), features(3), classify, repair)


# A loss that is a module, and no part of the model.


class SoftTargets(nn.Module):
    def forward(self, p: Tensor, y: Tensor) -> Tensor:
        wanted = F.one_hot(y, 4).to(p.dtype) * 0.9 + 0.025
        return -(wanted * torch.log(p)).sum(-1).mean()  # born: loss-module


criterion = SoftTargets()


def with_criterion(model: nn.Module, batch: Batch) -> Tensor:
    return criterion(torch.softmax(model(batch["x"]).float(), dim=-1), batch["y"])


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def loss_module() -> Case:
    bad = features(3)
    bad["x"][4] *= 1000
    return Case(Plain(), (features(1), features(2)), bad, with_criterion)


# Infinities that something hides in the forward.


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Linear(6, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        rate = torch.exp(self.rate(x).float())  # born: clamped-too-late
        return self.head(rate.clamp(max=100.0))


def clamped_too_late() -> Case:
    model, bad = Clamped(), features(3)
    nn.init.constant_(model.rate.weight, 0.2)
    bad["x"][0] = 100.0
    return Case(model, (features(1), features(2)), bad, classify)


class Patched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Linear(6, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.rate(x).float())
        return self.head(torch.nan_to_num(torch.log(p), neginf=-50.0))  # born: patched-over


def patched_over() -> Case:
    model, bad = Patched(), features(3)
    nn.init.constant_(model.rate.weight, 0.2)
    bad["x"][3] = -500.0
    return Case(model, (features(1), features(2)), bad, classify)


# Time before samples, and samples times tokens.


def recordings(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.rand(LENGTH, SIZE, 6, generator=g) + 0.1,
        "y": torch.randint(0, 3, (SIZE,), generator=g),
    }


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        loud = torch.log(x.mean(-1, keepdim=True))  # born: silence
        out, _ = self.rnn(x + loud)
        return self.head(out[-1])


def silence() -> Case:
    bad = recordings(3)
    bad["x"][2, 6] = 0
    return Case(TimeFirst(), (recordings(1), recordings(2)), bad, classify, sample_dims={"x": 1})


def sentences(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, LENGTH, 6, generator=g),
        "y": torch.randint(0, 4, (SIZE, LENGTH), generator=g),
    }


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    p = torch.softmax(model(batch["x"].flatten(0, 1)).float(), dim=-1)
    picked = p.gather(1, batch["y"].flatten()[:, None]).squeeze(1)
    return -torch.log(picked).mean()  # born: one-token


def one_token() -> Case:
    model, bad = Plain(), sentences(3)
    with torch.no_grad():
        bad["x"][2, 3] *= 1000
        bad["y"][2, 3] = model(bad["x"][2, 3]).argmin()
    return Case(model, (sentences(1), sentences(2)), bad, token_loss)


# A mask of large numbers, which 16 bits turn into infinities, and an origin elsewhere.


class LargeNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        scores = self.score(x).squeeze(-1) + pad.to(x.dtype) * -1e9
        pooled = (torch.softmax(scores, dim=1)[..., None] * x).sum(1)
        length = torch.sqrt((x**2).sum((1, 2)))  # born: half-behind-a-mask
        return self.head(pooled) + length[:, None]


def padded(seed: int) -> Batch:
    batch = sentences(seed)
    pad = torch.arange(LENGTH).expand(SIZE, LENGTH) >= 3
    return {"x": batch["x"].half(), "y": batch["y"][:, 0].clone(), "pad": pad.clone()}


def padded_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"], batch["pad"]).float(), batch["y"])


def half_behind_a_mask() -> Case:
    bad = padded(3)
    bad["x"][1, 0] = 400.0
    return Case(LargeNumbers().half(), (padded(1), padded(2)), bad, padded_loss)


# A graph with a node that nobody points to.


class GraphMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        total = torch.zeros_like(x).index_add(0, target, x[source])
        degree = torch.zeros(len(x), device=x.device).index_add(0, target, torch.ones_like(x[:, 0]))
        return self.head(total / degree[:, None])  # born: lonely-node


def graph(seed: int) -> Batch:
    batch = features(seed)
    return {**batch, "source": torch.arange(SIZE).roll(1), "target": torch.arange(SIZE)}


def graph_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"], batch["source"], batch["target"]), batch["y"])


def lonely_node() -> Case:
    bad = graph(3)
    bad["target"][4] = 5
    return Case(GraphMean(), (graph(1), graph(2)), bad, graph_loss)


_OWN = {
    "float16": "it brings a precision of its own",
    "bfloat16": "it brings a precision of its own",
}

SCENARIOS = (
    Scenario(
        "recomputed-root",
        recomputed_root,
        "sqrt-at-zero",
        "sqrt",
        "block",
        phase="backward",
        rows=(5,),
        decoy=True,
    ),
    Scenario(
        "own-backward",
        own_backward,
        "division-by-zero",
        "div",
        phase="backward",
        rows=(2,),
        decoy=True,
    ),
    Scenario(
        "hook-on-nothing",
        hook_on_nothing,
        "norm-at-zero",
        "div",
        phase="backward",
        rows=(6,),
    ),
    Scenario("divided-in-place", divided_in_place, "zero-over-zero", "div", rows=(1,), decoy=True),
    Scenario("log-into-a-slice", log_into_a_slice, "log-of-zero", "log", rows=(7,), decoy=True),
    Scenario("third-of-four", third_of_four, "division-by-zero", "div", "layers.2", decoy=True),
    Scenario("loss-module", loss_module, "log-of-zero", "log", rows=(4,)),
    Scenario(
        "clamped-too-late",
        clamped_too_late,
        "exp-overflow",
        "exp",
        phase="backward",
        rows=(0,),
        decoy=True,
    ),
    Scenario(
        "patched-over",
        patched_over,
        "log-of-zero",
        "log",
        phase="backward",
        rows=(3,),
        decoy=True,
    ),
    Scenario("silence", silence, "log-of-zero", "log", rows=(6,), decoy=True),
    Scenario("one-token", one_token, "log-of-zero", "log", rows=(2,)),
    Scenario(
        "half-behind-a-mask",
        half_behind_a_mask,
        "overflow",
        ("pow", "sum"),
        rows=(1,),
        decoy=True,
        excluded=_OWN,
    ),
    Scenario("lonely-node", lonely_node, "zero-over-zero", "div"),
)
