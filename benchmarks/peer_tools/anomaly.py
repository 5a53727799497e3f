"""torch.autograd.set_detect_anomaly(True), as its documentation shows it."""

from __future__ import annotations

import re
import warnings
from typing import Any, ClassVar

from peer_tools.base import Alarm, Tool, codes

FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class Anomaly(Tool):
    name = "detect_anomaly"
    package = "torch"
    reach = "a NaN in a backward pass; an error raised by autograd"
    means: ClassVar[dict[str, frozenset[str]]] = {
        # It names the function whose gradient is NaN and where that function was called.
        "nan": codes(101, 112, 201, 303, 311),
        "backward": codes(907),
    }

    def begin(self, text: str) -> None:
        import torch

        self.shown: list[str] = []
        warnings.showwarning = self._show
        torch.autograd.set_detect_anomaly(True)

    def _show(self, message: Any, *rest: Any, **more: Any) -> None:
        self.shown.append(str(message))

    def raised(self, error: BaseException, script: str) -> list[Alarm] | None:
        told = [text for text in self.shown if "Traceback of forward call" in text]
        lines = tuple(
            int(number) for text in told for file, number in FRAME.findall(text) if file == script
        )
        if re.search(r"returned nan values in its", str(error)):
            return [Alarm("nan", str(error), lines)]
        if told:
            return [Alarm("backward", str(error), lines)]
        return None


TOOL = Anomaly
