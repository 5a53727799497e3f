from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import Parameters, say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.optimizer_facts import OptimizerCoverageFacts
from headway.core.records import Header, SetupRecord


class ParameterNotOptimized(Check):
    """A trainable parameter is in no optimizer.

    ## What it checks
    Every parameter of the model that requires a gradient, against the parameter groups of all
    optimizers.

    ## Why it matters
    Such a parameter gets a gradient and never changes. Training works otherwise, so the only
    symptom is a model that is worse than it should be.

    ## How it is measured
    By identity of the tensors, at the start and whenever the model or an optimizer changes. A
    parameter that is unfrozen later must be added to the optimizer, too. `headway check` is more
    precise: it counts only parameters for which a backward pass produced a gradient.

    ## False alarms
    Frozen parameters (a teacher, a frozen backbone) do not count. A parameter that is meant to stay
    constant but requires a gradient wastes time and memory: set `requires_grad_(False)`. In a
    check, a feature extractor under `no_grad` passes; a loaded body before a trained head, or a
    network through which only a trained input passes, is information.

    ## What to do
    Create the optimizer after the model is complete and every head or adapter is attached, from all
    of its parameters; or add later ones with `optimizer.add_param_group`.

    ## References
    huggingface/accelerate#3209 (a head attached after the optimizer was built).
    """

    code = "HD401"
    name = "parameter-not-optimized"
    severity = Severity.ERROR
    summary = "a trainable parameter is in no optimizer"
    points_at = "optimizer"
    needs = Needs(kinds=(SetupRecord,), topics=("parameters", "optimizer-coverage"))
    explains = (*POOR_FIT, "HD105", "HD205", "HD306", "HD307", "HD403", "HD404", "HD415")

    def start(self) -> None:
        self.reported: set[str] = set()
        self.by_gradients = False
        """Whether it is observed which parameters get a gradient at all."""

    def begin(self, header: Header) -> None:
        self.reported = set()  # a new process creates its optimizer again

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == "optimizer-coverage":
            yield from self._judge_coverage(record)
            return
        parameters = None if self.by_gradients else Parameters.of(record)
        if parameters is None or parameters.trainable is None or parameters.optimized is None:
            return
        missing = sorted(parameters.trainable - parameters.optimized)
        names = {parameters.name(position) for position in missing}
        news, self.reported = names - self.reported, names
        if news:
            yield self._finding(record, parameters, missing)

    def _judge_coverage(self, record: SetupRecord) -> Iterable[Finding]:
        self.by_gradients = True
        facts = OptimizerCoverageFacts.of(record)
        names = facts.unoptimized
        if (facts.stale_count or 0) > 0:
            return  # the optimizer has their predecessors: HD402
        news, self.reported = set(names) - self.reported, set(names)
        if news:
            yield self._found_by_gradients(record, facts, names)

    def _found_by_gradients(
        self, record: SetupRecord, facts: OptimizerCoverageFacts, names: list[str]
    ) -> Finding:
        count = facts.unoptimized_count or len(names)
        elements = facts.unoptimized_elements or 0
        total = facts.trainable or count
        meant = facts.loaded_body or facts.passed_through
        return self.find(
            record,
            f"{count} of {total} parameters that get gradients ({elements:,} elements) belong to "
            f"no optimizer and will never change: {say_list(names)}",
            severity=Severity.INFO if meant else None,
            where=facts.locate(rank=record.rank, module=names[0]),
            remedies=_remedies(names),
            parameters=names,
            count=count,
            elements=elements,
            trainable=total,
        )

    def _finding(self, record: SetupRecord, parameters: Parameters, missing: list[int]) -> Finding:
        names = [parameters.name(position) for position in missing]
        total, elements = len(parameters.trainable or ()), parameters.elements(missing)
        size = f" ({elements:,} elements)" if elements else ""
        return self.find(
            record,
            f"{len(names)} of {total} trainable parameters{size} belong to no optimizer and will "
            f"never change: {say_list(names)}",
            where=Where(module=names[0], rank=record.rank or None),
            remedies=_remedies(names),
            parameters=parameters.listed(missing),
            count=len(missing),
            elements=elements,
            trainable=total,
        )


def _remedies(names: list[str]) -> list[str]:
    return [
        "Create the optimizer after the model is complete, from `model.parameters()`, or "
        f"add {say_list(names, 1)} with `optimizer.add_param_group`.",
        "If they are meant to stay constant, call `requires_grad_(False)` on them.",
    ]
