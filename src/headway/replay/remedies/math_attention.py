"""Attention by its plain formula, instead of a fused kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel

from headway.replay.explanation import Birth
from headway.replay.remedies.base import Remedy
from headway.replay.scene import Scene


class MathAttention(Remedy):
    """Not safe: it needs the memory for every score."""

    key = "math-attention"

    def __init__(self, birth: Birth) -> None:
        self._where = "" if birth.place is None else f" around {birth.place}"

    @classmethod
    def fitting(cls, birth: Birth) -> MathAttention | None:
        return cls(birth) if "scaled_dot_product" in birth.op else None

    @property
    def text(self) -> str:
        return f"Use `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`{self._where}"

    @contextmanager
    def applied(self, scene: Scene) -> Iterator[None]:
        with sdpa_kernel([SDPBackend.MATH]):
            yield
