from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.check import Check, Needs
from holdfast.core.findings import Finding, Severity, Where
from holdfast.core.parameters import Parameters, some
from holdfast.core.records import Header, SetupRecord


class ParameterNotOptimized(Check):
    """A trainable parameter is in no optimizer.

    ## What it checks
    Every parameter of the model that requires a gradient, against the parameter groups of all
    optimizers.

    ## Why it matters
    Such a parameter gets its gradient and never moves. Training works otherwise, so all that shows
    is a model that is worse than it should be.

    ## How it is measured
    By identity of the tensors, at the start and whenever the model or an optimizer changes. A
    parameter that is unfrozen later must be added to the optimizer, too.

    ## False alarms
    Frozen parameters (a teacher, a frozen backbone) do not count. One that is meant to stay as it
    is but requires a gradient costs time and memory for nothing: set `requires_grad_(False)`.

    ## What to do
    Build the optimizer after the model is complete and every head or adapter is attached, from all
    of its parameters; or add those made later with `optimizer.add_param_group`.

    ## References
    huggingface/accelerate#3209 (a head attached after the optimizer was built).
    """

    code = "HD401"
    name = "parameter-not-optimized"
    severity = Severity.ERROR
    summary = "a trainable parameter is in no optimizer"
    points_at = "optimizer"
    needs = Needs(kinds=(SetupRecord,))

    def start(self) -> None:
        self.told: set[str] = set()

    def begin(self, header: Header) -> None:
        self.told = set()  # a new process built its optimizer anew

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        parameters = Parameters.of(record)
        if parameters is None or parameters.trainable is None or parameters.optimized is None:
            return
        missing = sorted(parameters.trainable - parameters.optimized)
        names = {parameters.name(position) for position in missing}
        news, self.told = names - self.told, names
        if news:
            yield self._finding(record, parameters, missing)

    def _finding(self, record: SetupRecord, parameters: Parameters, missing: list[int]) -> Finding:
        names = [parameters.name(position) for position in missing]
        total, elements = len(parameters.trainable or ()), parameters.elements(missing)
        size = f" ({elements:,} elements)" if elements else ""
        return self.find(
            record,
            f"{len(names)} of {total} trainable parameters{size} belong to no optimizer and will "
            f"never change: {some(names)}",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=[
                "Build the optimizer after the model is complete, from `model.parameters()`, or "
                f"add {some(names, 1)} with `optimizer.add_param_group`.",
                "If they are meant to stay as they are: `requires_grad_(False)`.",
            ],
            parameters=parameters.listed(missing),
            count=len(missing),
            elements=elements,
            trainable=total,
        )
