"""Remedies that switch a mode of torch: bfloat16 autocast, deterministic algorithms, eager mode,
math attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.torch_adapters.autocast_regions import AutocastSetting, change_regions, changed_regions

# bfloat16 wherever autocast says float16: the same size, the range of float32.


class Bf16(StepRemedy):
    """Every autocast region that would cast to float16 casts to bfloat16."""

    key = "bf16"
    text = "Autocast to bfloat16 instead of float16: `torch.autocast(..., dtype=torch.bfloat16)`"
    keepable = True

    def __init__(self) -> None:
        self._changed = 0

    @property
    def engaged(self) -> bool:
        return self._changed > 0

    @contextmanager
    def applied(self, scene: FailingStep) -> Iterator[None]:
        self._changed = 0
        with changed_regions(self._to_bfloat16):
            yield

    def keep(self, scene: FailingStep) -> Callable[[], None]:
        return change_regions(self._to_bfloat16)

    def _to_bfloat16(self, casting: AutocastSetting) -> AutocastSetting:
        if not casting.enabled or casting.dtype is not torch.float16:
            return casting
        self._changed += 1
        return casting._replace(dtype=torch.bfloat16)


# Deterministic algorithms only: what sums in another order each time, does not.


class Deterministic(StepRemedy):
    key = "deterministic"
    text = "Call `torch.use_deterministic_algorithms(True, warn_only=True)` before training"
    safe = True

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not

    @contextmanager
    def applied(self, scene: FailingStep) -> Iterator[None]:
        on = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(on, warn_only=warn_only)


# Without torch.compile: what was compiled runs as it was written.


class Eager(StepRemedy):
    key = "eager"
    text = 'Run without torch.compile, or call `torch.compiler.set_stance("force_eager")`'
    safe = True

    @contextmanager
    def applied(self, scene: FailingStep) -> Iterator[None]:
        with torch.compiler.set_stance("force_eager"):
            yield


# Attention by its plain formula, instead of a fused kernel.


class MathAttention(StepRemedy):
    """Not safe: it needs the memory for every score."""

    key = "math-attention"

    def __init__(self, birth: Origin) -> None:
        self._where = "" if birth.place is None else f" around {birth.place}"

    @classmethod
    def fitting(cls, birth: Origin) -> MathAttention | None:
        return cls(birth) if "scaled_dot_product" in birth.op else None

    @property
    def text(self) -> str:
        return f"Use `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`{self._where}"

    @contextmanager
    def applied(self, scene: FailingStep) -> Iterator[None]:
        with sdpa_kernel([SDPBackend.MATH]):
            yield
