from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.records import EventRecord

UNGUARDED = "unguarded"
"""Event: training continues, but no guarded optimizer steps."""


class NothingGuarded(Check):
    """The guard saw no optimizer step, or no longer sees any.

    ## What it checks
    Whether the optimizers that the guard knows are those that train: while backward passes run, one
    of them must step.

    ## Why it matters
    A guard works at `optimizer.step()`. If it sees none, no update is checked or skipped, and a
    report without findings says nothing about the run.

    ## How it is measured
    `Guard` counts backward passes since the last step of its optimizers. It reports when another
    optimizer steps the same parameters 3 times in a row, after 1000 backward passes without a step,
    and at `close()` if there was no step at all. `headway run` and `headway check` report it at the
    end of a script in which no `torch.optim.Optimizer` stepped. If the weights change all the same,
    they check loss, inputs, graph and gradients of every backward pass. `check` reports it as
    information, because it exits with 2 in this case; as an error if the script created an
    optimizer, ran 20 backward passes or more, and ended by itself. The optimizers of fastai and
    Keras are guarded in part: an update with NaN or Inf is skipped, and this is reported as
    information.

    ## False alarms
    Gradient accumulation over fewer than 1000 batches, evaluation, a second model with its own
    optimizer, and a script that crashes or is interrupted before its first step are not reported.

    ## What to do
    Create the guard after the optimizer has its final form: after a checkpoint is loaded, not
    before. Pass every optimizer that steps: `Guard(model, [first, second])`. If the script starts
    its own processes, create the guard inside them or start them with `torchrun`. Use
    `headway run --require-guard` where an unguarded run must fail.

    ## References
    PyTorch, `torch.optim.Optimizer.register_step_pre_hook`.
    """

    code = "HD003"
    name = "nothing-guarded"
    severity = Severity.ERROR
    summary = "no guarded optimizer steps: updates are not checked"
    needs = Needs(kinds=(EventRecord,), events=(UNGUARDED,))
    explains = ()
    once = "run"
    points_at = ("backward",)

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        data = record.data
        partly = bool(data.get("partly"))
        quiet = data.get("command") == "check" and not data.get("forgotten")
        severity = Severity.INFO if partly or quiet else None
        guarded = "updates are guarded in part" if partly else "no update is guarded"
        yield self.find(
            record,
            f"{guarded}: {data.get('why', 'no optimizer step was seen')}",
            severity=severity,
            remedies=[str(data["advice"])] if data.get("advice") else [],
            backwards=data.get("backwards"),
        )
