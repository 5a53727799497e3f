"""Convolutional networks on small images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn

SIZE = 8


def images(seed: int, height: int = 12, width: int = 12) -> Batch:
    g = draw(seed)
    return {
        "image": torch.rand(SIZE, 3, height, width, generator=g),
        "label": torch.randint(0, 4, (SIZE,), generator=g),
    }


def classify(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["image"])
    absent = torch.tensor([False, False, False, False, True], device=logits.device)
    return F.cross_entropy(logits.masked_fill(absent, float("-inf")), batch["label"])


# Style statistics of a map that has become a single pixel.


class Statistics(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean((2, 3)), x.std((2, 3))], dim=1)  # born: std-of-one-pixel


class StyleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, stride=2, padding=1),
        )
        self.stats = Statistics()
        self.head = nn.Linear(12, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.stats(self.features(image)))


def std_of_one_pixel() -> Case:
    return Case(StyleNet(), (images(1), images(2)), images(3, 4, 4), classify)


# Features of a black image, divided by their norm.


class UnitFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.head = nn.Linear(6, 5)

    def forward(self, image: Tensor) -> Tensor:
        z = torch.relu(self.conv(image)).mean((2, 3))
        z = z / z.norm(dim=1, keepdim=True)  # born: black-image
        return self.head(z)


def black_image() -> Case:
    bad = images(3)
    bad["image"][4] = 0
    return Case(UnitFeatures(), (images(1), images(2)), bad, classify)


# A running centre that is kept outside of the model's buffers.


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)
        self.centre = torch.zeros(6)

    def forward(self, image: Tensor) -> Tensor:
        pooled = self.conv(image).mean((2, 3))
        pooled = pooled - self.centre  # born: centre-from-before
        return self.head(torch.relu(pooled))


def centre_from_before() -> Case:
    model = Centred()
    model.centre = torch.tensor([0.1, math.nan, 0.0, 0.2, 0.1, 0.3])

    def repair() -> None:
        model.centre = torch.zeros_like(model.centre)

    return Case(model, (), images(3), classify, repair)


# Batch normalisation with bad running statistics, and a bad weight.


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.features(image)  # born: filter-gone-nan
        x = self.norm(x)  # born: frozen-statistics
        return self.head(x.mean((2, 3)))


def frozen_statistics() -> Case:
    model = ConvNet()
    model.norm.eval()
    running = model.norm.running_mean
    assert running is not None
    running[2] = math.nan
    return Case(model, (), images(3), classify, model.norm.reset_running_stats)


def filter_gone_nan() -> Case:
    model = ConvNet()
    weight = model.features[0].weight

    def repair() -> None:
        nn.init.normal_(weight)

    with torch.no_grad():
        weight[1, 0, 1, 1] = math.nan
    return Case(model, (), images(3), classify, repair)


# The log of an overlap that is none.


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv(image).squeeze(1)


def scenes(seed: int) -> Batch:
    g = draw(seed)
    return {
        "image": torch.rand(SIZE, 3, 12, 12, generator=g),
        "mask": (torch.rand(SIZE, 12, 12, generator=g) > 0.5).float(),
        "void": torch.rand(SIZE, 12, 12, generator=g) > 0.9,
    }


def log_overlap(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["image"]).float()
    pred = logits.masked_fill(batch["void"], float("-inf")).sigmoid()
    both = (pred * batch["mask"]).sum((1, 2))
    either = (pred + batch["mask"]).sum((1, 2)) - both
    return -torch.log(both / either).mean()  # born: no-overlap


def no_overlap() -> Case:
    bad = scenes(3)
    bad["mask"][2] = 0
    return Case(Segmenter(), (scenes(1), scenes(2)), bad, log_overlap)


# The contrast of an image that is all of one colour.


class Contrast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)
        return (x - mean) / std  # born: flat-image


class Standardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.contrast = Contrast()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(self.contrast(image))).mean((2, 3)))


def flat_image() -> Case:
    bad = images(3)
    bad["image"][3] = 0.5
    return Case(Standardised(), (images(1), images(2)), bad, classify)


# A signal-to-noise ratio of a restoration without any noise left.


class Restorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, padding=1)
        self.last = nn.Conv2d(6, 3, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        assert self.last.bias is not None
        nn.init.zeros_(self.last.bias)

    def forward(self, image: Tensor) -> Tensor:
        return image + self.last(torch.relu(self.body(image)))


def pairs(seed: int) -> Batch:
    g = draw(seed)
    image = torch.rand(SIZE, 3, 12, 12, generator=g)
    return {"noisy": image + 0.1 * torch.randn(image.shape, generator=g), "clean": image}


def psnr(model: nn.Module, batch: Batch) -> Tensor:
    error = ((model(batch["noisy"]) - batch["clean"]) ** 2).mean((1, 2, 3))
    ratio = 1.0 / error  # born: perfect-restoration
    return -10 * torch.log10(ratio).mean()


def perfect_restoration() -> Case:
    bad = pairs(3)
    bad["noisy"][1] = bad["clean"][1]
    return Case(Restorer(), (pairs(1), pairs(2)), bad, psnr)


# Coordinates of which one half is never written for images that are not square.


class CoordinateNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)

    def forward(self, image: Tensor) -> Tensor:
        size, _, height, width = image.shape
        grid = torch.empty(size, 2, height, width, device=image.device)  # born: unwritten-grid
        grid[:, 0] = torch.linspace(0, 1, width, device=image.device)
        if height == width:
            grid[:, 1] = grid[:, 0].transpose(1, 2)
        return self.head(torch.relu(self.conv(torch.cat([image, grid], 1))).mean((2, 3)))


def deterministic(model: nn.Module, batch: Batch) -> Tensor:
    """torch fills memory with NaN then, so that it shows when nobody writes into it."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return classify(model, batch)
    finally:
        torch.use_deterministic_algorithms(False)


def unwritten_grid() -> Case:
    return Case(CoordinateNet(), (images(1), images(2)), images(3, 12, 10), deterministic)


SCENARIOS = (
    Scenario("std-of-one-pixel", std_of_one_pixel, "std-singular", "std", "stats", decoy=True),
    Scenario("black-image", black_image, "norm-at-zero", "div", rows=(4,), decoy=True),
    Scenario("centre-from-before", centre_from_before, "carried-state", "sub", decoy=True),
    Scenario(
        "frozen-statistics", frozen_statistics, "poisoned-buffer", "batch_norm", "norm", decoy=True
    ),
    Scenario(
        "filter-gone-nan", filter_gone_nan, "poisoned-weight", "conv2d", "features.0", decoy=True
    ),
    Scenario("no-overlap", no_overlap, "log-of-zero", "log", rows=(2,), decoy=True),
    Scenario("flat-image", flat_image, "std-singular", "div", "contrast", rows=(3,), decoy=True),
    Scenario(
        "perfect-restoration",
        perfect_restoration,
        "division-by-zero",
        ("reciprocal", "div"),
        rows=(1,),
    ),
    Scenario(
        "unwritten-grid", unwritten_grid, "uninitialised-memory", ("empty", "cat"), decoy=True
    ),
)
