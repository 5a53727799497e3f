"""What re-running a step needs from the guard that watches the training.

`rerun` never imports `guard`: a guard implements `RerunHost`, and passes itself to the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.policy import Policy
from headway.torch_adapters.optimizer_adapter import LossScaling
from headway.torch_adapters.rank_group import SingleProcess
from headway.torch_adapters.saved_state import BufferBackup

if TYPE_CHECKING:
    from headway.rerun.batch_identity import RecordedBatch
    from headway.rerun.rerun_group import RerunGroup


class RerunHost(Protocol):
    """A guarded training, as far as re-runs use it."""

    # Fixed for the life of the guard.

    @property
    def models(self) -> Sequence[nn.Module]: ...

    @property
    def optimizers(self) -> Sequence[Optimizer]: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def scaling(self) -> LossScaling: ...

    @property
    def buffers(self) -> BufferBackup:
        """Copies of the buffers from the beginning of the step."""

    @property
    def agreement(self) -> SingleProcess:
        """Rare agreements among the ranks; trivial in a single process."""

    @property
    def rerun_group(self) -> RerunGroup | None:
        """The ranks that run a step again together; None in a single process."""

    # The current step.

    @property
    def step(self) -> int:
        """Number of the current step, counted from 0."""

    @property
    def latest(self) -> RecordedBatch | None:
        """The last batch that was handed to the loop."""

    @property
    def run_dir(self) -> Path | None:
        """Where incidents are written; None: nowhere."""

    def parameter_names(self) -> Mapping[int, str]:
        """Names of the parameters by their `id`."""

    def usual(self) -> Mapping[str, float]:
        """Loss, its components and gradient norms of the last good step."""

    def stateful(self) -> Iterable[Any]:
        """Objects with a `state_dict` that the user gave to the guard, models excluded."""

    def capture_state(self) -> Mapping[str, Any] | None:
        """The training state for an incident file; None where it is sharded."""

    def older_weights(self, step: int) -> Callable[[], AbstractContextManager[None]] | None:
        """Switches to the weights of a snapshot from before this step; None: there is none."""

    # Effects.

    def record_event(self, step: int, kind: str, data: Mapping[str, Any]) -> None:
        """Write an event into the record of the run."""

    def inspect_batches(self, step: int, batches: Sequence[RecordedBatch]) -> None:
        """Report which samples of these batches are non-finite."""

    def exclude_time(self, seconds: float) -> None:
        """Leave this time out of the duration of the step."""


def trained_parameters(host: RerunHost) -> list[Tensor]:
    """Every parameter of the optimizers and the models, each once."""
    groups = [group["params"] for item in host.optimizers for group in item.param_groups]
    models = [list(model.parameters()) for model in host.models]
    return list({id(p): p for parameters in [*groups, *models] for p in parameters}.values())
