"""A detector with one box per image, and a loss of several parts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn

SIZE, CLASSES = 8, 5
Parts = dict[str, Tensor]


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.classes = nn.Linear(12, CLASSES)
        self.box = nn.Linear(12, 4)
        self.size = nn.Linear(6, 2)
        nn.init.constant_(self.size.weight, 0.05)
        nn.init.constant_(self.size.bias, 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        return self.classes(h), self.box(h), self.size(x)


def objects(seed: int) -> Batch:
    g = draw(seed)
    return {
        "x": torch.randn(SIZE, 6, generator=g),
        "label": torch.randint(0, CLASSES - 1, (SIZE,), generator=g),
        "box": torch.rand(SIZE, 4, generator=g) + 0.5,
        "positive": torch.rand(SIZE, generator=g) > 0.4,
    }


def known_classes(logits: Tensor, label: Tensor) -> Tensor:
    """The last class is not annotated in this data set."""
    absent = torch.arange(CLASSES, device=logits.device) == CLASSES - 1
    return F.cross_entropy(logits.masked_fill(absent, float("-inf")), label)


# Boxes as logarithms of their size, and one that has none.


def log_size(model: nn.Module, batch: Batch) -> Parts:
    logits, box, _ = model(batch["x"])
    wanted = torch.log(batch["box"][:, 2:] / 0.7)  # born: box-without-width
    return {
        "class": known_classes(logits, batch["label"]),
        "box": F.smooth_l1_loss(box[:, 2:].float(), wanted),
    }


def box_without_width() -> Case:
    bad = objects(3)
    bad["box"][1, 2] = 0
    return Case(Detector(), (objects(1), objects(2)), bad, log_size)


# The overlap of two boxes that are both points.


def overlap(model: nn.Module, batch: Batch) -> Parts:
    logits, _, size = model(batch["x"])
    size, wanted = torch.relu(size), batch["box"][:, 2:]
    both = torch.minimum(size, wanted).prod(-1)
    either = size.prod(-1) + wanted.prod(-1) - both
    iou = both / either  # born: union-of-nothing
    return {"class": known_classes(logits, batch["label"]), "iou": (1 - iou).mean()}


def union_of_nothing() -> Case:
    bad = objects(3)
    bad["x"][3] = -30.0
    bad["box"][3] = 0
    return Case(Detector(), (objects(1), objects(2)), bad, overlap)


# No positive sample in the batch.


def positives(model: nn.Module, batch: Batch) -> Parts:
    logits, box, _ = model(batch["x"])
    at = batch["positive"]
    return {
        "class": known_classes(logits, batch["label"]),
        "box": F.smooth_l1_loss(box[at].float(), batch["box"][at]),  # born: no-positives
    }


def no_positives() -> Case:
    bad = objects(3)
    bad["positive"].zero_()
    return Case(Detector(), (objects(1), objects(2)), bad, positives)


# The angle between two directions that are the same.


class Oriented(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.classes = nn.Linear(12, CLASSES)
        self.axis = nn.Linear(12, 2)
        with torch.no_grad():
            self.axis.weight.zero_()
            self.axis.bias.copy_(torch.tensor([1.0, 0.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        return self.classes(h), F.normalize(self.axis(h).float(), dim=-1)


def directions(seed: int) -> Batch:
    batch = objects(seed)
    turn = torch.rand(SIZE, generator=draw(seed)) * 2 + 0.5
    return {**batch, "axis": torch.stack([turn.cos(), turn.sin()], -1)}


def orientation(model: nn.Module, batch: Batch) -> Parts:
    logits, axis = model(batch["x"])
    cosine = (axis * batch["axis"]).sum(-1).clamp(-1, 1)
    angle = torch.acos(cosine)  # born: aligned-already
    return {"class": known_classes(logits, batch["label"]), "angle": angle.mean()}


def aligned_already() -> Case:
    bad = directions(3)
    bad["axis"][0] = torch.tensor([1.0, 0.0])
    return Case(Oriented(), (directions(1), directions(2)), bad, orientation)


# The aspect ratio of a box without height: the arc tangent hides the infinity.


def aspect(model: nn.Module, batch: Batch) -> Parts:
    logits, _, size = model(batch["x"])
    width, height = torch.sigmoid(size.float()).unbind(-1)
    ratio = torch.atan(width / height)  # born: box-without-height
    wanted = torch.atan(batch["box"][:, 2] / batch["box"][:, 3])
    return {
        "class": known_classes(logits, batch["label"]),
        "aspect": ((ratio - wanted) ** 2).mean(),
    }


def box_without_height() -> Case:
    bad, model = objects(3), Detector()
    with torch.no_grad():
        model.size.weight[0] = 0
    bad["x"][2] = -1000.0
    return Case(model, (objects(1), objects(2)), bad, aspect)


# A sigmoid that has arrived at 1.


def objectness(model: nn.Module, batch: Batch) -> Parts:
    logits, box, _ = model(batch["x"])
    p = torch.sigmoid(40 * (batch["x"].mean(-1) + logits[:, 0].float()))
    background = torch.log(1 - p)  # born: sure-of-an-object
    return {"object": -(p**2 * background).mean(), "box": (box.float() - batch["box"]).abs().mean()}


def small(seed: int) -> Batch:
    batch = objects(seed)
    return {**batch, "x": batch["x"] * 0.05}


def sure_of_an_object() -> Case:
    bad = small(3)
    bad["x"][5] = 4.0
    model = Detector()
    nn.init.zeros_(model.classes.weight)
    nn.init.zeros_(model.classes.bias)
    return Case(model, (small(1), small(2)), bad, objectness)


# The distance of a centre that was hit exactly.


def centre(model: nn.Module, batch: Batch) -> Parts:
    logits, box, _ = model(batch["x"])
    offset = box[:, :2].float() - batch["box"][:, :2]
    distance = torch.hypot(offset[:, 0], offset[:, 1])  # born: centre-hit
    return {"class": known_classes(logits, batch["label"]), "centre": distance.mean()}


def centre_hit() -> Case:
    bad, model = objects(3), Detector()
    bad["box"][1, :2] = 0
    nn.init.zeros_(model.box.weight)
    nn.init.zeros_(model.box.bias)
    return Case(model, (objects(1), objects(2)), bad, centre)


# Learned weights of the parts, one of which has run away.


class Weighted(Detector):
    def __init__(self) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(2))


def uncertainty(model: nn.Module, batch: Batch) -> Parts:
    logits, box, _ = model(batch["x"])
    certain = torch.exp(-model.log_weight[1])  # born: runaway-weight
    error = F.l1_loss(box.float(), batch["box"])
    return {
        "class": known_classes(logits, batch["label"]),
        "box": certain * error + model.log_weight[1],
    }


def runaway_weight() -> Case:
    model = Weighted()

    def repair() -> None:
        nn.init.zeros_(model.log_weight)

    with torch.no_grad():
        model.log_weight[1] = -120.0
    return Case(model, (), objects(3), uncertainty, repair)


# An annotation that is not a number.


def box_error(model: nn.Module, batch: Batch) -> Parts:
    logits, box, _ = model(batch["x"])
    return {
        "class": known_classes(logits, batch["label"]),
        "box": F.l1_loss(box.float(), batch["box"]),  # born: nan-annotation
    }


def nan_annotation() -> Case:
    bad = objects(3)
    bad["box"][4, 1] = math.nan
    return Case(Detector(), (objects(1), objects(2)), bad, box_error)


SCENARIOS = (
    Scenario(
        "box-without-width",
        box_without_width,
        "log-of-zero",
        "log",
        rows=(1,),
        component="box",
        decoy=True,
    ),
    Scenario(
        "union-of-nothing",
        union_of_nothing,
        "zero-over-zero",
        "div",
        rows=(3,),
        component="iou",
        decoy=True,
    ),
    Scenario(
        "no-positives",
        no_positives,
        "mean-of-nothing",
        "smooth_l1_loss",
        component="box",
        decoy=True,
    ),
    Scenario(
        "aligned-already",
        aligned_already,
        "acos-at-one",
        "acos",
        phase="backward",
        rows=(0,),
        component="angle",
        decoy=True,
    ),
    Scenario(
        "box-without-height",
        box_without_height,
        "division-by-zero",
        "div",
        phase="backward",
        rows=(2,),
        component="aspect",
        decoy=True,
    ),
    Scenario(
        "sure-of-an-object",
        sure_of_an_object,
        "log-of-zero",
        "log",
        rows=(5,),
        component="object",
    ),
    Scenario(
        "centre-hit",
        centre_hit,
        "norm-at-zero",
        "hypot",
        phase="backward",
        rows=(1,),
        component="centre",
        decoy=True,
    ),
    Scenario("runaway-weight", runaway_weight, "exp-overflow", "exp", component="box", decoy=True),
    Scenario(
        "nan-annotation",
        nan_annotation,
        "poisoned-batch",
        ("l1_loss", "sub"),
        rows=(4,),
        component="box",
        decoy=True,
    ),
)
