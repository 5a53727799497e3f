"""Regressors and classifiers on plain features."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn

SIZE = 8


class Regressor(nn.Module):
    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # born: one-nan-sample, weight-gone-inf


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def regression(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, 6, generator=g),
        "y": torch.randn(SIZE, 1, generator=g) + 3,
        "mask": torch.ones(SIZE, 1),
    }


def labelled(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, 6, generator=g),
        "y": torch.randint(0, 4, (SIZE,), generator=g),
    }


def mse(model: nn.Module, batch: Batch) -> Tensor:
    pred = model(batch["x"])
    return F.mse_loss(pred, batch["y"].to(pred.dtype))  # born: nan-target


# A classifier that takes the log of a probability that has become exactly 0.


def own_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    probs = torch.softmax(model(batch["x"]).float(), dim=-1)
    picked = probs.gather(1, batch["y"][:, None]).squeeze(1)
    return -torch.log(picked).mean()  # born: confident-and-wrong


def confident_and_wrong() -> Case:
    model, bad = Classifier(), labelled(3)
    bad["x"][3] *= 1000
    with torch.no_grad():
        bad["y"][3] = model(bad["x"][3]).argmin()
    return Case(model, (labelled(1), labelled(2)), bad, own_cross_entropy)


# A relative error, and a target of 0.


def relative_error(model: nn.Module, batch: Batch) -> Tensor:
    pred = model(batch["x"])
    return ((pred - batch["y"]).abs() / batch["y"].abs()).mean()  # born: relative-to-zero


def relative_to_zero() -> Case:
    bad = regression(3)
    bad["y"][5] = 0
    return Case(Regressor(), (regression(1), regression(2)), bad, relative_error)


# A mean over what a mask leaves, and it leaves nothing.


def masked_error(model: nn.Module, batch: Batch) -> Tensor:
    error = (model(batch["x"]) - batch["y"]) ** 2
    return (error * batch["mask"]).sum() / batch["mask"].sum()  # born: mask-of-nothing


def mask_of_nothing() -> Case:
    bad = regression(3)
    bad["mask"].zero_()
    return Case(Regressor(), (regression(1), regression(2)), bad, masked_error)


# A Gaussian likelihood with a variance that may be negative.


class RawVariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(6, 1)
        self.var = nn.Linear(6, 1)
        nn.init.constant_(self.var.weight, 0.05)
        nn.init.constant_(self.var.bias, 2.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(x), self.var(x)


def gaussian(model: nn.Module, batch: Batch) -> Tensor:
    mean, var = model(batch["x"])
    log_var = torch.log(var)  # born: raw-variance
    return (log_var + (batch["y"] - mean) ** 2 / var).mean()


def raw_variance() -> Case:
    bad = regression(3)
    bad["x"][2] = -20.0
    return Case(RawVariance(), (regression(1), regression(2)), bad, gaussian)


def precision_weighted(model: nn.Module, batch: Batch) -> Tensor:
    mean, log_var = model(batch["x"])
    seen = torch.floor(batch["x"].abs())  # how often, often never
    prior = torch.where(seen > 0, torch.log(seen), torch.zeros_like(seen)).mean()
    precision = torch.exp(-log_var)  # born: outlier-in-log-variance
    return (precision * (batch["y"] - mean) ** 2 + log_var).mean() + 0.1 * prior


def outlier_in_log_variance() -> Case:
    bad = regression(3)
    bad["x"][7] = -500.0
    return Case(RawVariance(), (regression(1), regression(2)), bad, precision_weighted)


# Points that ought to lie within a sphere.


class Lift(nn.Module):
    """From a disc onto the sphere above it."""

    def forward(self, x: Tensor) -> Tensor:
        height = torch.sqrt(1 - (x**2).sum(-1, keepdim=True))  # born: outside-the-sphere
        return torch.cat([x, height], dim=-1)


class OnSphere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = Lift()
        self.head = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lift(x))


def in_disc(seed: int) -> Batch:
    batch = regression(seed)
    return {**batch, "x": F.normalize(batch["x"], dim=-1) * 0.5}


def outside_the_sphere() -> Case:
    bad = in_disc(3)
    bad["x"][0] *= 3
    return Case(OnSphere(), (in_disc(1), in_disc(2)), bad, mse)


# A root mean square error that is exactly 0 for one sample.


class ZeroHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.head = nn.Linear(12, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


def vectors(seed: int) -> Batch:
    g = draw(seed)
    return {"x": torch.randn(SIZE, 6, generator=g), "y": torch.randn(SIZE, 3, generator=g)}


def rmse(model: nn.Module, batch: Batch) -> Tensor:
    error = ((model(batch["x"]) - batch["y"]) ** 2).mean(dim=-1)
    return torch.sqrt(error).mean()  # born: rmse-of-zero


def rmse_of_zero() -> Case:
    bad = vectors(3)
    bad["y"][4] = 0
    return Case(ZeroHead(), (vectors(1), vectors(2)), bad, rmse)


# A fractional power of features that are mostly positive.


class PowerLaw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.exponent = 0.7

    def forward(self, x: Tensor) -> Tensor:
        return x**self.exponent  # born: negative-to-a-fraction


class PowerRegressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = PowerLaw()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def amounts(seed: int) -> Batch:
    batch = regression(seed)
    return {**batch, "x": batch["x"].abs() + 0.1}


def negative_to_a_fraction() -> Case:
    bad = amounts(3)
    bad["x"][6, 2] = -1.5
    return Case(PowerRegressor(), (amounts(1), amounts(2)), bad, mse)


# A focal loss with an exponent below 1, and a probability of exactly 1.


def focal(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["x"]).float()
    unused = torch.tensor([False, False, False, False, True], device=logits.device)
    log_p = F.log_softmax(logits.masked_fill(unused, float("-inf")), dim=-1)
    log_p = log_p.gather(1, batch["y"][:, None]).squeeze(1)
    return ((1 - log_p.exp()) ** 0.5 * (1 - log_p)).mean()  # born: focal-with-a-root


def focal_with_a_root() -> Case:
    model, bad = Classifier(), labelled(3)
    bad["x"][1] *= 1000
    with torch.no_grad():
        bad["y"][1] = model(bad["x"][1])[:4].argmax()
    return Case(model, (labelled(1), labelled(2)), bad, focal)


# The logarithm of rates, hidden where they have become 0.


class LogFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(6, 3)
        nn.init.constant_(self.scale.weight, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        rate = torch.exp(self.scale(x))
        return torch.where(rate > 0, torch.log(rate), 0.0 * rate)  # born: log-under-where


class LogRegressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = LogFeatures()
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def log_under_where() -> Case:
    bad = regression(3)
    bad["x"][2] = -300.0
    return Case(LogRegressor(), (regression(1), regression(2)), bad, mse)


# A critic whose gradient is to have length 1, and it has none.


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.score = nn.Linear(12, 1)
        nn.init.constant_(self.body.bias, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(torch.relu(self.body(x)))


def gradient_penalty(model: nn.Module, batch: Batch) -> Tensor:
    x = batch["x"].requires_grad_()
    score = model(x)
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    length = torch.sqrt((slope**2).sum(dim=1))  # born: critic-without-a-slope
    return score.mean() + 10 * ((length - 1) ** 2).mean()


def critic_without_a_slope() -> Case:
    model, bad = Critic(), regression(3)
    with torch.no_grad():  # a direction that switches every unit off
        down = torch.linalg.lstsq(model.body.weight, -torch.ones(12, 1)).solution.flatten()
        model.body.weight[(model.body.weight @ down) > 0] *= -1
        bad["x"][3] = 200 * down / down.norm()
    return Case(model, (regression(1), regression(2)), bad, gradient_penalty)


# Numbers that were bad before.


def one_nan_sample() -> Case:
    bad = regression(3)
    bad["x"][1, 2] = math.nan
    return Case(Regressor(), (regression(1), regression(2)), bad, mse)


def nan_target() -> Case:
    bad = regression(3)
    bad["y"][3] = math.nan
    return Case(Regressor(), (regression(1), regression(2)), bad, mse)


# A missing target, left out of the loss after the error was computed from it.


def error_of_those_known(model: nn.Module, batch: Batch) -> Tensor:
    pred = model(batch["x"])
    error = pred.float() * batch["y"]  # born: missing-target
    return torch.where(batch["y"].isnan(), 0.0, error).mean()


def missing_target() -> Case:
    bad = regression(3)
    bad["y"][3] = math.nan
    return Case(Regressor(), (regression(1), regression(2)), bad, error_of_those_known)


def weight_gone_inf() -> Case:
    model = Regressor()
    weight = model.net[2].weight

    def repair() -> None:
        nn.init.normal_(weight)

    with torch.no_grad():
        weight[0, 3] = math.inf
    return Case(model, (), regression(3), mse, repair)


SCENARIOS = (
    Scenario("confident-and-wrong", confident_and_wrong, "log-of-zero", "log", rows=(3,)),
    Scenario("relative-to-zero", relative_to_zero, "division-by-zero", "div", rows=(5,)),
    Scenario("mask-of-nothing", mask_of_nothing, "zero-over-zero", "div"),
    Scenario("raw-variance", raw_variance, "log-of-negative", "log", rows=(2,)),
    Scenario(
        "outlier-in-log-variance",
        outlier_in_log_variance,
        "exp-overflow",
        "exp",
        rows=(7,),
        decoy=True,
    ),
    Scenario(
        "outside-the-sphere", outside_the_sphere, "sqrt-of-negative", "sqrt", "lift", rows=(0,)
    ),
    Scenario("rmse-of-zero", rmse_of_zero, "sqrt-at-zero", "sqrt", phase="backward", rows=(4,)),
    Scenario(
        "negative-to-a-fraction",
        negative_to_a_fraction,
        "pow-singular",
        "pow",
        "features",
        rows=(6,),
    ),
    Scenario(
        "focal-with-a-root",
        focal_with_a_root,
        "pow-singular",
        "pow",
        phase="backward",
        rows=(1,),
        decoy=True,
    ),
    Scenario(
        "log-under-where",
        log_under_where,
        "log-of-zero",
        "log",
        "features",
        phase="backward",
        rows=(2,),
    ),
    Scenario(
        "critic-without-a-slope",
        critic_without_a_slope,
        "sqrt-at-zero",
        "sqrt",
        phase="backward",
        rows=(3,),
    ),
    Scenario("one-nan-sample", one_nan_sample, "poisoned-batch", "linear", "net.0", rows=(1,)),
    Scenario("nan-target", nan_target, "poisoned-batch", "mse_loss", rows=(3,)),
    Scenario("missing-target", missing_target, "masked-nan", "mul", phase="backward", rows=(3,)),
    Scenario("weight-gone-inf", weight_gone_inf, "poisoned-weight", "linear", "net.2"),
)
