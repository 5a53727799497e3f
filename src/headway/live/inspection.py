"""What is being trained: written down at the start and when it changes, and looked through for
numbers that are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.live import scan
from headway.live.batch_identity import Kept
from headway.live.graph import dtypes_in_graph
from headway.live.notices import Notices
from headway.live.recorder import Recorder
from headway.live.roster import Roster


class Inspection:
    """Looks at models, optimizers and batches, and records what there is to say."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        recorder: Recorder,
        notices: Notices,
    ) -> None:
        self.roster = Roster(models, optimizers)
        self._models = models
        self._optimizers = optimizers
        self._recorder = recorder
        self._notices = notices
        self._parameters: dict[str, Any] = {}
        self.precision_known = False

    def at_start(self) -> None:
        """State that came from a checkpoint may be bad before the first step."""
        self._record_parameters(0, self.roster.refresh())
        self.state(0)
        self._recorder.event(0, "scan", {"roles": ["weight", "buffer", "moment"]})

    def state(self, step: int) -> tuple[str, ...]:
        """Record every non-finite tensor of the state; the names of weights and moments."""
        names = self.roster.by_identity()
        poisoned = []
        for bad in scan.scan_state(self._models, self._optimizers, names):
            self._record_tensor(step, bad)
            if bad.role in ("weight", "moment"):
                poisoned.append(bad.name)
        return tuple(poisoned)

    def batches(self, step: int, batches: Sequence[Kept]) -> None:
        """Record every non-finite tensor of the step's batches."""
        for kept in batches:
            if kept.lost:
                continue  # what is bad in it, the loop may have put there
            with kept.as_given():
                for bad in scan.scan_batch(kept.batch, kept.indices()):
                    self._record_tensor(step, bad)

    def parameters(self, step: int) -> None:
        """Look again at which parameters there are and which of them train."""
        present = self.roster.refresh()
        if present != self._parameters:
            self._record_parameters(step, present)
        gone = self.roster.vanished()
        if gone:
            self._notices.once(
                "vanished",
                f"the optimizer holds {gone[0]}"
                + (f" and {len(gone) - 1} more" if len(gone) > 1 else "")
                + ", which the model no longer has: it is watched on, but trains nothing. "
                "Build the optimizer after the model is final",
            )

    def precision(self, step: int, roots: Sequence[Tensor], *, scaled: bool) -> None:
        """Record in which dtypes the weights lie and the losses were computed."""
        self.precision_known = True
        dtypes = {self._parameters["dtypes"][at] for at in self._parameters["trainable"]}
        facts = {
            "weights": sorted(dtypes),
            "compute": sorted(dtypes_in_graph(roots)),
            "scaler": scaled,
        }
        self._recorder.setup(step, "precision", facts)

    def _record_parameters(self, step: int, present: dict[str, Any]) -> None:
        self._parameters = present
        self._recorder.extend_axis("param", self.roster.names)
        self._recorder.setup(step, "parameters", present)

    def _record_tensor(self, step: int, bad: scan.BadTensor) -> None:
        self._recorder.tensor(
            step,
            bad.name,
            bad.role,
            dtype=str(bad.tensor.dtype).removeprefix("torch."),
            shape=tuple(bad.tensor.shape),
            stats=bad.stats,
            facts=bad.facts,
        )
