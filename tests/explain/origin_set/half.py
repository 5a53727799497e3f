"""Half precision: whole models in it, and autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn

SIZE, LENGTH, WIDTH = 8, 5, 6
HALF, BRAIN = torch.float16, torch.bfloat16
OWN = {
    "float16": "it brings a precision of its own",
    "bfloat16": "it brings a precision of its own",
}


def features(seed: int, dtype: torch.dtype = HALF) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, WIDTH, generator=g).to(dtype),
        "y": torch.randint(0, 3, (SIZE,), generator=g),
    }


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["y"])


class Half(nn.Module):
    """Unscaled features, and a wide first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 10)
        self.second = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))  # born: half-linear
        return self.second(h)


def half_linear() -> Case:
    model, bad = Half(), features(3)
    nn.init.constant_(model.first.weight, 2.0)
    bad["x"][2] = 20000.0
    return Case(model.half(), (features(1), features(2)), bad, classify)


# Squares, exponentials and logarithms in 16 bits.


class Energy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**2  # born: half-square


class Rates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)  # born: half-exp


class Halved(nn.Module):
    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def half_square() -> Case:
    bad = features(3)
    bad["x"][6, 1] = 400.0
    return Case(Halved(Energy()).half(), (features(1), features(2)), bad, classify)


def half_exp() -> Case:
    bad = features(3)
    bad["x"][0, 4] = 12.0
    return Case(Halved(Rates()).half(), (features(1), features(2)), bad, classify)


def log_of_counts(model: nn.Module, batch: Batch) -> Tensor:
    p = torch.softmax(model(batch["x"]), dim=-1)
    picked = p.gather(1, batch["y"][:, None])
    return -torch.log(picked + 1e-8).float().mean()  # born: half-epsilon


def half_epsilon() -> Case:
    model, bad = Halved(nn.Identity()).half(), features(3)
    with torch.no_grad():
        bad["x"][5] *= 200
        bad["y"][5] = model(bad["x"][5]).argmin()
    return Case(model, (features(1), features(2)), bad, log_of_counts)


# Time stamps, cast to 16 bits.


def readings(seed: int) -> Batch:
    batch = features(seed, torch.float32)
    return {**batch, "x": batch["x"] * 100}


def cast_first(model: nn.Module, batch: Batch) -> Tensor:
    x = batch["x"].half()  # born: half-cast
    return F.cross_entropy(model(x).float(), batch["y"])


def half_cast() -> Case:
    bad = readings(3)
    bad["x"][4, 0] = 1.7e6
    return Case(Half().half(), (readings(1), readings(2)), bad, cast_first)


# Attention scores under autocast, without their scaling.


class Unscaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        later = torch.ones(LENGTH, LENGTH).triu(1).bool()
        causal = torch.zeros(LENGTH, LENGTH).masked_fill(later, float("-inf"))
        self.register_buffer("causal", causal)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2)  # born: autocast-scores
        return torch.softmax(scores + self.causal, dim=-1) @ v.to(scores.dtype)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Unscaled()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attn(x).mean(1))


def paragraphs(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, LENGTH, WIDTH, generator=g),
        "y": torch.randint(0, 3, (SIZE,), generator=g),
    }


def autocast_scores() -> Case:
    bad = paragraphs(3)
    bad["x"][1] *= 1500
    return Case(Reader(), (paragraphs(1), paragraphs(2)), bad, classify, autocast=HALF)


# A loss that is scaled too high for the gradients of one sample.


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 10)
        self.second = nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def targets(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, WIDTH, generator=g),
        "y": torch.randn(SIZE, 1, generator=g),
    }


def squared(model: nn.Module, batch: Batch) -> Tensor:
    pred = model(batch["x"]).float()  # born: loss-scale
    return ((pred - batch["y"]) ** 2).mean()


def loss_scale() -> Case:
    bad = targets(3)
    bad["y"][6] = 3000.0
    return Case(Scaled(), (targets(1), targets(2)), bad, squared, autocast=HALF, scale=2.0**12)


# Cosines that are rounded up to 1, and deviations that are rounded down to 0.


class Compared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x)


def couples(seed: int) -> Batch:
    g = draw(seed)
    return {
        "one": torch.randn(SIZE, WIDTH, generator=g),
        "two": torch.randn(SIZE, WIDTH, generator=g),
    }


def angles(model: nn.Module, batch: Batch) -> Tensor:
    one, two = F.normalize(model(batch["one"]), dim=-1), F.normalize(model(batch["two"]), dim=-1)
    cosine = (one * two).sum(-1).to(BRAIN).clamp(-1, 1)
    return torch.acos(cosine).float().mean()  # born: brain-cosine


def brain_cosine() -> Case:
    bad = couples(3)
    bad["two"][2] = bad["one"][2] * 1.001
    return Case(Compared(), (couples(1), couples(2)), bad, angles, autocast=BRAIN)


class RowNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)  # born: brain-flat


def brain_flat() -> Case:
    bad = features(3, BRAIN)
    bad["x"][7] = (100 + 0.02 * torch.arange(WIDTH)).to(BRAIN)
    healthy = (features(1, BRAIN), features(2, BRAIN))
    return Case(Halved(RowNorm()).to(BRAIN), healthy, bad, classify)


SCENARIOS = (
    Scenario("half-linear", half_linear, "overflow", "linear", "first", rows=(2,), excluded=OWN),
    Scenario("half-square", half_square, "overflow", "pow", "features", rows=(6,), excluded=OWN),
    Scenario("half-exp", half_exp, "exp-overflow", "exp", "features", rows=(0,), excluded=OWN),
    Scenario("half-epsilon", half_epsilon, "log-of-zero", "log", rows=(5,), excluded=OWN),
    Scenario("half-cast", half_cast, "overflow", "to", rows=(4,), excluded=OWN),
    Scenario(
        "autocast-scores",
        autocast_scores,
        "overflow",
        ("bmm", "matmul"),
        "attn",
        rows=(1,),
        decoy=True,
        excluded=OWN,
    ),
    Scenario("loss-scale", loss_scale, "overflow", "to", phase="backward", rows=(6,), excluded=OWN),
    Scenario(
        "brain-cosine",
        brain_cosine,
        "acos-at-one",
        "acos",
        phase="backward",
        rows=(2,),
        excluded=OWN,
    ),
    Scenario("brain-flat", brain_flat, "std-singular", "div", "features", rows=(7,), excluded=OWN),
)
