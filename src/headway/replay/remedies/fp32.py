"""Everything in float32: no autocast, and half weights and inputs computed as float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from headway.replay.ambient import eagerly
from headway.replay.explanation import Birth
from headway.replay.remedies.base import Remedy
from headway.replay.remedies.half_free import HalfFree
from headway.replay.remedies.precision import HALVES, half_in_play
from headway.replay.remedies.regions import Casting, change_regions, changed_regions
from headway.replay.scene import Scene
from headway.torch_tools.nested import tensors_in


class Fp32(Remedy):
    key = "fp32"

    def __init__(self, *, merely_autocast: bool) -> None:
        self._merely_autocast = merely_autocast
        self._changed = 0
        self.keepable = merely_autocast

    @classmethod
    def fitting(cls, birth: Birth, scene: Scene) -> Fp32 | None:
        if not half_in_play(birth):
            return None
        return cls(merely_autocast=birth.autocast is not None and not _holds_halves(scene))

    @property
    def text(self) -> str:
        if self._merely_autocast:
            return "Train in float32: `torch.autocast(..., enabled=False)`"
        return "Train in float32: `model.float()`, float32 inputs, no `.half()` and no autocast"

    @property
    def engaged(self) -> bool:
        return self._changed > 0

    @contextmanager
    def applied(self, scene: Scene) -> Iterator[None]:
        self._changed = 0
        with changed_regions(self._off):
            if self._merely_autocast:
                yield
                return
            mode = HalfFree()
            try:
                with eagerly(), mode:
                    yield
            finally:
                self._changed += mode.changed

    def keep(self, scene: Scene) -> Callable[[], None]:
        return change_regions(self._off) if self.keepable else super().keep(scene)

    def _off(self, casting: Casting) -> Casting:
        self._changed += casting.enabled
        return casting._replace(enabled=False)


def _holds_halves(scene: Scene) -> bool:
    weights = (tensor for model in scene.models for tensor in model.parameters())
    inputs: Iterator[Tensor] = (tensor for _, tensor in tensors_in(list(scene.batches)))
    return any(tensor.dtype in HALVES for tensor in (*weights, *inputs))
