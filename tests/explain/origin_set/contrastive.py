"""Embeddings that are compared with each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from explain.origin_set.scenario import Batch, Case, Scenario, draw
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

SIZE = 9


class Embedder(nn.Module):
    def __init__(self, last: bool = True) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.last = nn.Linear(12, 4, bias=False) if last else nn.Identity()
        nn.init.constant_(self.body.bias, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.body(x)))


def views(seed: int) -> Batch:
    g = draw(seed)
    x = torch.randn(SIZE, 6, generator=g)
    return {
        "one": x + 0.1 * torch.randn(x.shape, generator=g),
        "two": x + 0.1 * torch.randn(x.shape, generator=g),
        "label": torch.arange(SIZE) // 3,
    }


def switched_off(model: Embedder) -> Tensor:
    """An input that leaves nothing behind the ReLU."""
    with torch.no_grad():
        weight = model.body.weight
        down = torch.linalg.lstsq(weight, -torch.ones(12, 1)).solution.flatten()
        weight[(weight @ down) > 0] *= -1
        return 200 * down / down.norm()


# Two views of every sample, each embedding divided by its norm.


def unit(z: Tensor) -> Tensor:
    return z / z.norm(dim=-1, keepdim=True)  # born: nothing-embedded


def info_nce(model: nn.Module, batch: Batch) -> Tensor:
    one, two = unit(model(batch["one"]).float()), unit(model(batch["two"]).float())
    across, within = one @ two.t() / 0.5, one @ one.t() / 0.5
    self_pairs = torch.eye(len(one), dtype=torch.bool, device=one.device)
    logits = torch.cat([across, within.masked_fill(self_pairs, float("-inf"))], dim=1)
    return F.cross_entropy(logits, torch.arange(len(one), device=one.device))


def nothing_embedded() -> Case:
    model, bad = Embedder(), views(3)
    bad["one"][1] = switched_off(model)
    return Case(model, (views(1), views(2)), bad, info_nce)


# The exponentials of similarities, summed up by hand.


def own_nce(model: nn.Module, batch: Batch) -> Tensor:
    one, two = model(batch["one"]).float(), model(batch["two"]).float()
    similar = torch.exp(one @ two.t() / 0.5)  # born: hot-similarity
    return -torch.log(similar.diagonal() / similar.sum(1)).mean()


def hot_similarity() -> Case:
    bad = views(3)
    bad["one"][4] *= 100
    bad["two"][4] = bad["one"][4]
    return Case(Embedder(), (views(1), views(2)), bad, own_nce)


# A class with one sample only: nothing to be pulled towards.


def supervised(model: nn.Module, batch: Batch) -> Tensor:
    z = F.normalize(model(batch["one"]).float(), dim=-1)
    self_pairs = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similar = (z @ z.t() / 0.5).masked_fill(self_pairs, float("-inf"))
    same = batch["label"][:, None] == batch["label"][None, :]
    pull = torch.logsumexp(similar.masked_fill(~same, float("-inf")), dim=1)  # born: no-partner
    return (torch.logsumexp(similar, dim=1) - pull).mean()


def no_partner() -> Case:
    bad = views(3)
    bad["label"][3] = 9
    return Case(Embedder(), (views(1), views(2)), bad, supervised)


# The distance of two views that are the same.


def margin(model: nn.Module, batch: Batch) -> Tensor:
    one, two = model(batch["one"]).float(), model(batch["two"]).float()
    apart = (one - two).pow(2).sum(-1).sqrt()  # born: same-view-twice
    return apart.mean() + torch.relu(1 - (one - two.roll(1, 0)).norm(dim=-1)).mean()


def same_view_twice() -> Case:
    bad = views(3)
    bad["two"][2] = bad["one"][2]
    return Case(Embedder(), (views(1), views(2)), bad, margin)


# Weight normalisation of a row of zeros.


class Prototypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.head = weight_norm(nn.Linear(12, 3, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))  # born: prototype-of-zeros


def prototypes(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["one"]), batch["label"])


def prototype_of_zeros() -> Case:
    model = Prototypes()
    direction = model.head.parametrizations["weight"].original1

    def repair() -> None:
        nn.init.normal_(direction)

    with torch.no_grad():
        direction[1] = 0
    return Case(model, (), views(3), prototypes, repair)


# Hyperbolic space, and a point on its edge.


def poincare(model: nn.Module, batch: Batch) -> Tensor:
    z = torch.tanh(model(batch["one"]).float())
    radius = z.norm(dim=-1).clamp(max=1.0)
    return torch.atanh(radius).mean()  # born: edge-of-the-disc


def small_views(seed: int) -> Batch:
    batch = views(seed)
    return {**batch, "one": batch["one"] * 0.05}


def edge_of_the_disc() -> Case:
    bad, model = small_views(3), Embedder()
    nn.init.constant_(model.body.bias, 0.1)
    bad["one"][4] *= 1000
    return Case(model, (small_views(1), small_views(2)), bad, poincare)


# Decorrelation of dimensions, one of which is dead for a whole batch.


def standardised(model: nn.Module, batch: Batch) -> Tensor:
    one, two = (model(batch[name]).float() for name in ("one", "two"))
    one = (one - one.mean(0)) / one.std(0)  # born: dead-dimension
    two = (two - two.mean(0)) / two.std(0)
    cross = one.t() @ two / len(one)
    return ((cross - torch.eye(len(cross), device=cross.device)) ** 2).sum()


def dead_dimension() -> Case:
    model, bad = Embedder(last=False), views(3)
    with torch.no_grad():
        model.body.bias.fill_(4.0)
        model.body.weight[5] = 0
        model.body.weight[5, 0] = 1.0
    bad["one"][:, 0] = -10.0
    return Case(model, (views(1), views(2)), bad, standardised)


SCENARIOS = (
    Scenario("nothing-embedded", nothing_embedded, "norm-at-zero", "div", rows=(1,), decoy=True),
    Scenario("hot-similarity", hot_similarity, "exp-overflow", "exp"),
    Scenario("no-partner", no_partner, "masked-softmax-row", "logsumexp", rows=(3,), decoy=True),
    Scenario(
        "same-view-twice", same_view_twice, "sqrt-at-zero", "sqrt", phase="backward", rows=(2,)
    ),
    Scenario(
        "prototype-of-zeros",
        prototype_of_zeros,
        "norm-at-zero",
        ("weight_norm", "weight_norm_interface"),
        ("head", "head.parametrizations.weight", "head.parametrizations.weight.0"),
    ),
    Scenario("edge-of-the-disc", edge_of_the_disc, "acos-at-one", "atanh", rows=(4,)),
    Scenario("dead-dimension", dead_dimension, "std-singular", "div"),
)
