"""The batches of a script before there is a guard, which describe a failure that comes first."""

from __future__ import annotations

from collections import deque
from typing import Any

from headway.guard.endings.batch_history import BatchHistory
from headway.guard.endings.device_assert import HostInputs
from headway.guard.endings.failure import FailureMoment
from headway.guard.step_machine import RECENT_BATCHES
from headway.torch_adapters.nonfinite_scan import batch_size, is_on_host


class EarlyBatches:
    """Keeps the last batches, and the shapes of all of them."""

    def __init__(self) -> None:
        self._history = BatchHistory()
        self._last: Any = None
        self._on_host: deque[Any] = deque(maxlen=RECENT_BATCHES)

    def add(self, batch: Any) -> None:
        self._history.add(batch, batch_size(batch) or 0)
        self._last = batch
        if is_on_host(batch):
            self._on_host.append(batch)

    def failure_moment(self, script: dict[str, Any] | None) -> FailureMoment:
        """What is known of the batch at which the script failed."""
        described = [] if self._last is None else self._history.describe(self._last)
        inputs = HostInputs(script, tuple(self._on_host))
        return FailureMoment(batch=described, host_inputs=inputs)

    def hand_over(self) -> BatchHistory:
        """The history, for a guard that keeps the batches from here on."""
        self._last = None
        return self._history
