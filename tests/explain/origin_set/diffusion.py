"""A denoiser, its schedule of noise, and the weights of its steps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn

SIZE, STEPS = 8, 20


class Denoiser(nn.Module):
    """Predicts the noise, and the variance it is unsure by."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 6))
        self.log_var = nn.Linear(6, 6)
        kept = torch.cos(torch.linspace(0, 1.5, STEPS)) ** 2
        self.register_buffer("kept", kept)
        posterior = (1 - kept.roll(1)).clamp(min=1e-3) * 0.1
        posterior[0] = 0
        self.register_buffer("posterior", posterior)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(torch.cat([x, t[:, None] / STEPS], dim=1))


def latents(seed: int) -> Batch:
    g = draw(seed)
    return {
        "clean": torch.randn(SIZE, 6, generator=g),
        "noise": torch.randn(SIZE, 6, generator=g),
        "t": torch.randint(1, STEPS, (SIZE,), generator=g),
    }


def noised(model: nn.Module, batch: Batch) -> Tensor:
    kept = model.kept[batch["t"]][:, None]
    return kept.sqrt() * batch["clean"] + (1 - kept).sqrt() * batch["noise"]  # born: bad-latent


def error(model: nn.Module, batch: Batch) -> Tensor:
    pred = model(noised(model, batch), batch["t"])
    return ((pred.float() - batch["noise"]) ** 2).mean(1)


# Weights by the ratio of signal to noise, and a step without noise.


def by_ratio(model: nn.Module, batch: Batch) -> Tensor:
    kept = model.kept[batch["t"]]
    ratio = kept / (1 - kept)  # born: step-without-noise
    return (ratio.clamp(max=5.0) * ratio.sqrt() * error(model, batch)).mean()


def step_without_noise() -> Case:
    bad = latents(3)
    bad["t"][[2, 5]] = 0
    return Case(Denoiser(), (latents(1), latents(2)), bad, by_ratio)


# A schedule that keeps more than there is.


def own_noising(model: nn.Module, batch: Batch) -> Tensor:
    kept = (model.kept * 1.02)[batch["t"]][:, None]
    level = torch.sqrt(1 - kept)  # born: more-than-all
    x = kept.sqrt() * batch["clean"] + level * batch["noise"]
    return F.mse_loss(model(x, batch["t"]).float(), batch["noise"])


def late(seed: int) -> Batch:
    batch = latents(seed)
    return {**batch, "t": batch["t"].clamp(min=5)}


def more_than_all() -> Case:
    bad = late(3)
    bad["t"][1] = 0
    return Case(Denoiser(), (late(1), late(2)), bad, own_noising)


# The log of a posterior variance that is 0 at the first step.


def likelihood(model: nn.Module, batch: Batch) -> Tensor:
    depth = torch.where(batch["t"] > 0, torch.log(model.kept[batch["t"]]), 0.0)
    age = torch.log(batch["t"] // 10)  # of the early ones nothing is left
    young = torch.where(age.isfinite(), age, torch.zeros_like(age)).mean()
    log_var = torch.log(model.posterior[batch["t"]])  # born: first-step
    return (error(model, batch) * torch.exp(depth) + 0.5 * log_var).mean() + young


def first_step() -> Case:
    bad = latents(3)
    bad["t"][4] = 0
    return Case(Denoiser(), (latents(1), latents(2)), bad, likelihood)


# A learned variance far below the true one.


def variational(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    log_var = model.log_var(batch["clean"]).float()
    ratio = torch.exp(-log_var)  # born: far-too-sure
    return {
        "simple": error(model, batch).mean(),
        "bound": 0.01 * (ratio + log_var).mean(),
    }


def far_too_sure() -> Case:
    bad, model = latents(3), Denoiser()
    nn.init.constant_(model.log_var.weight, 0.1)
    bad["clean"][6] = -300.0
    return Case(model, (latents(1), latents(2)), bad, variational)


# A learned scale of time, its log hidden at time 0.


def warped(model: nn.Module, batch: Batch) -> Tensor:
    t = batch["t"].float()
    time = torch.where(t > 0, torch.log(t * model.scale), torch.zeros_like(t))  # born: time-zero
    pred = model(noised(model, batch), time)
    return F.mse_loss(pred.float(), batch["noise"])


def time_zero() -> Case:
    bad = latents(3)
    bad["t"][0] = 0
    return Case(Denoiser(), (latents(1), latents(2)), bad, warped)


# A negative power of what is 0 at the first step.


def by_power(model: nn.Module, batch: Batch) -> Tensor:
    weight = (1 - model.kept[batch["t"]]) ** -0.5  # born: power-of-nothing
    return (weight * error(model, batch)).mean()


def power_of_nothing() -> Case:
    bad = latents(3)
    bad["t"][3] = 0
    return Case(Denoiser(), (latents(1), latents(2)), bad, by_power)


# A latent that went bad when it was encoded, days ago.


def plain(model: nn.Module, batch: Batch) -> Tensor:
    return error(model, batch).mean()


def bad_latent() -> Case:
    bad = latents(3)
    bad["clean"][1, 3] = math.nan
    return Case(Denoiser(), (latents(1), latents(2)), bad, plain)


SCENARIOS = (
    Scenario("step-without-noise", step_without_noise, "division-by-zero", "div", rows=(2, 5)),
    Scenario("more-than-all", more_than_all, "sqrt-of-negative", "sqrt", rows=(1,)),
    Scenario("first-step", first_step, "log-of-zero", "log", rows=(4,), decoy=True),
    Scenario("far-too-sure", far_too_sure, "exp-overflow", "exp", rows=(6,), component="bound"),
    Scenario("time-zero", time_zero, "log-of-zero", "log", phase="backward", rows=(0,)),
    Scenario("power-of-nothing", power_of_nothing, "pow-singular", "pow", rows=(3,)),
    Scenario("bad-latent", bad_latent, "poisoned-batch", "mul", rows=(1,)),
)
