"""Six views of the same samples, six small encoders, and how well they find each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.numerics import nway_contrastive
from headway.numerics.nway.contrastive_loss import SCORES
from headway.numerics.nway.scores import tuple_scores

VIEWS, LATENT, WIDTH, EMBED = 6, 8, 20, 16


class Views:
    """Each view bends the same latent point in its own way and adds noise of its own."""

    def __init__(self, seed: int = 0, noise: float = 0.2) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.noise = noise
        self.maps = [self._normal(LATENT, WIDTH) for _ in range(VIEWS)]

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draw)

    def sample(self, batch: int) -> list[Tensor]:
        latent = self._normal(batch, LATENT)
        return [
            torch.tanh(latent @ one / LATENT**0.5) + self.noise * self._normal(batch, WIDTH)
            for one in self.maps
        ]


def found(score: str, features: list[Tensor]) -> float:
    """The share of vectors that the other five of their sample pick out of all, over all views."""
    features = [F.normalize(f, dim=1) for f in features]
    B, right = features[0].shape[0], []
    i = torch.arange(B).repeat_interleave(B)
    j = torch.arange(B).repeat(B)
    for k in range(VIEWS):
        if SCORES[score].lines:
            chosen = [f[j if index == k else i] for index, f in enumerate(features)]
            table = tuple_scores(score, chosen).view(B, B)
        else:
            rest = sum(f for index, f in enumerate(features) if index != k)
            table = rest @ features[k].T
        right.append((table.argmax(1) == torch.arange(B)).float().mean())
    return torch.stack(right).mean().item()


def train(score: str, *, steps: int, batch: int = 48, seed: int = 0) -> tuple[float, float]:
    """Retrieval among 64 unseen samples before and after; by chance it would be 1/64."""
    torch.manual_seed(seed)
    views = Views(seed)
    held_out = views.sample(64)
    encoders = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, EMBED)) for _ in range(VIEWS)
    )
    optimizer = torch.optim.Adam(encoders.parameters(), lr=3e-3)

    def now() -> float:
        with torch.no_grad():
            return found(score, [net(x) for net, x in zip(encoders, held_out, strict=True)])

    before = now()
    for _ in range(steps):
        optimizer.zero_grad()
        features = [net(x) for net, x in zip(encoders, views.sample(batch), strict=True)]
        nway_contrastive(features, score=score).backward()
        optimizer.step()
    return before, now()
