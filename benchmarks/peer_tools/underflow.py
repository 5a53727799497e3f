"""transformers.debug_utils.DebugUnderflowOverflow(model)."""

from __future__ import annotations

from typing import Any, ClassVar

from peer_tools.base import Alarm, Tool, codes


class Underflow(Tool):
    name = "DebugUnderflowOverflow"
    package = "transformers"
    reach = "NaN or Inf in a module's weights, inputs or outputs, forward only"
    # It prints the weights, inputs and outputs of the module where the first NaN or Inf is.
    means: ClassVar[dict[str, frozenset[str]]] = {"inf/nan": codes(301, 303, 311, 501)}

    def preload(self) -> None:
        import transformers.debug_utils  # noqa: F401

    def begin(self, text: str) -> None:
        self.watching: list[Any] = []

    def attach(self, model: Any, optimizer: Any) -> None:
        from transformers.debug_utils import DebugUnderflowOverflow

        if not any(seen.model is model for seen in self.watching):
            self.watching.append(DebugUnderflowOverflow(model))

    def raised(self, error: BaseException, script: str) -> list[Alarm] | None:
        if "DebugUnderflowOverflow: inf/nan detected" in str(error):
            return [Alarm("inf/nan", str(error))]
        return None


TOOL = Underflow
