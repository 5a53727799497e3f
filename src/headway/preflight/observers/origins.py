"""Which lines fill weights in place: `nn.init`, `normal_`, `copy_`, an assignment to `.data`.

It tells nothing by itself: others ask `scene.origins`.
"""

from __future__ import annotations

from torch import Tensor, nn

from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings

FILLS = spellings("normal_", "uniform_", "zero_", "fill_", "copy_", "trunc_normal_", "ones_")
INITS = tuple(
    function
    for name, function in vars(nn.init).items()
    if name.endswith("_") and callable(function)
)
DATA = Tensor.data.__set__  # type: ignore[attr-defined]


class Fills(Observer):
    """Before the first step only: later writes are training."""

    functions = (*FILLS, *INITS, DATA)

    def function_ended(self, call: Call) -> None:
        target = call.argument(0, "tensor")
        if self.scene.step == 0 and isinstance(target, Tensor):
            self.scene.origins.wrote(target)
