"""The N-way contrastive loss as a module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from headway.numerics.nway.loss import nway_contrastive
from headway.numerics.nway.names import find_score


class NWayContrastive(nn.Module):
    """`nway_contrastive` with its options kept; `scale` may be a module such as `Temperature`.

        criterion = NWayContrastive(score="norm", scale=Temperature())
        loss = criterion([image, *captions])

    The options are those of the function.
    """

    def __init__(
        self, *, score: str = "norm", scale: float | nn.Module = 1 / 0.07, **options: Any
    ) -> None:
        super().__init__()
        self.score = find_score(score).name
        self.scale = scale
        self.options = options

    def forward(
        self, *features: Any, targets: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Of a sequence of features, or of features given one by one."""
        many = features[0] if len(features) == 1 else features
        scale = self.scale() if isinstance(self.scale, nn.Module) else self.scale
        return nway_contrastive(
            many, score=self.score, scale=scale, targets=targets, mask=mask, **self.options
        )

    def extra_repr(self) -> str:
        shown = {"score": self.score, **self.options}
        if not isinstance(self.scale, nn.Module):
            shown["scale"] = self.scale
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())
