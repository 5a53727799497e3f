"""The user's lines that do what every training does: backward, step, clip, freeze, …

Any finding that names no line of its own may point at one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.engine import PLACES
from headway.preflight.observer import Call, Observer
from headway.preflight.overhear import overhear
from headway.preflight.user_source import find_line

_SETTER = Tensor.requires_grad.__set__  # type: ignore[attr-defined]

CLIP_SETTING = r"\b(gradient_clip_val|max_grad_norm|clip_grad_norm|gradient_clipping)[\"']?\s*[=:]"
"""How frameworks are asked to clip."""


class Places(Observer):
    """Says each place once, and again where another line does the same later."""

    functions = (Tensor.requires_grad_, _SETTER)

    def start(self) -> None:
        self._said: dict[str, Any] = {}
        for owner in (Optimizer, nn.Module):
            overhear(self.scene, owner, "zero_grad", after=self._cleared)

    def _cleared(self, *_: Any, **__: Any) -> None:
        # A framework clears where it should; the user's own line may stand in the wrong place.
        if "clear" not in self._said and self.scene.users_own_call():
            self._note("clear")

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._note("optimizer")

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._note_once("backward")

    def step_begins(self, optimizer: Optimizer) -> None:
        self._note_once("step")

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        if "clip" not in self._said:
            asked = None if self.scene.users_own_call() else find_line(self.scene, CLIP_SETTING)
            self._note("clip", asked)

    def pass_begun(self, loader: Any) -> None:
        self._note_once("loader")

    def function_ended(self, call: Call) -> None:
        wanted = call.argument(1, "requires_grad", True)
        if wanted is False and call.args and isinstance(call.args[0], Tensor):
            self._note("freeze")

    def _note_once(self, what: str) -> None:
        if what not in self._said:
            self._note(what)

    def _note(self, what: str, place: dict[str, Any] | None = None) -> None:
        place = place or self.scene.place()
        if place is not None and place != self._said.get(what):
            self._said[what] = place
            self.evidence.tell(PLACES, {what: place})
