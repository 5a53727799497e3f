from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NONFINITE_STEP
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say_nonfinite
from headway.core.records import TensorRecord


class NonfiniteOptimizerState(Check):
    """A moment of the optimizer contains NaN or Inf.

    ## What it checks
    The tensors that an optimizer keeps for each parameter (momentum, first and second moment),
    wherever they are read: at a bad step, at a resume, in a checkpoint.

    ## Why it matters
    A moment is a running mean, and a mean with one NaN stays NaN forever. Every further step writes
    it into the weight, so finite weights with a non-finite moment are lost at the next step.

    ## How it is measured
    Elements that are NaN or infinite are counted; one is enough. Further tensors of the same scan
    are counted in the same finding.

    ## False alarms
    None: no optimizer stores such a value on purpose.

    ## What to do
    Go back to a checkpoint whose weights and moments are both finite. If there is none and the
    weights are finite, delete the state of these parameters and repeat the warm-up; the moments
    settle within a few hundred steps. Skipping steps does not help: the state stays non-finite.

    ## References
    Kingma and Ba, "Adam"; PyTorch, `torch.optim.Optimizer.state_dict`.
    """

    code = "HD408"
    name = "nonfinite-optimizer-state"
    severity = Severity.ERROR
    summary = "a moment contains NaN or Inf"
    needs = Needs(kinds=(TensorRecord,), roles=("moment",))
    explains = (*NONFINITE_STEP, "HD301", "HD303", "HD602")
    yields_to = ("HD301",)

    def observe(self, record: TensorRecord) -> Iterable[Finding]:
        if record.role != "moment" or not record.nonfinite:
            return
        nan, inf = (int(record.stats.get(kind, 0)) for kind in ("nan", "inf"))
        size = int(record.stats.get("numel", 0))
        of = f" of {size}" if size else ""
        yield self.find(
            record,
            f"optimizer state {record.name} contains {say_nonfinite(nan, inf)}{of}: every further "
            f"step writes them into the weights",
            where=Where(
                module=record.name, file=record.facts.get("file"), rank=record.rank or None
            ),
            remedies=[
                "Go back to a checkpoint whose weights and moments are both finite.",
                "If only the moments are non-finite, delete the optimizer state of these "
                "parameters and repeat the warm-up.",
            ],
            tensor=record.name,
            nan=nan,
            inf=inf,
            numel=size or None,
        )
