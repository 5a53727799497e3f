"""bfloat16 wherever autocast says float16: the same size, the range of float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from headway.replay.remedies.base import Remedy
from headway.replay.remedies.regions import Casting, change_regions, changed_regions
from headway.replay.scene import Scene


class Bf16(Remedy):
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
    def applied(self, scene: Scene) -> Iterator[None]:
        self._changed = 0
        with changed_regions(self._to_bfloat16):
            yield

    def keep(self, scene: Scene) -> Callable[[], None]:
        return change_regions(self._to_bfloat16)

    def _to_bfloat16(self, casting: Casting) -> Casting:
        if not casting.enabled or casting.dtype is not torch.float16:
            return casting
        self._changed += 1
        return casting._replace(dtype=torch.bfloat16)
