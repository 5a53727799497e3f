from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import Parameters, say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.optimizer_facts import FrozenFacts
from headway.core.records import Header, SetupRecord


class NothingTrainable(Check):
    """All parameters, or all except norm layers and biases, are frozen.

    ## What it checks
    Which parameters require a gradient: none at all, or none of the weight matrices.

    ## Why it matters
    If none does, `backward` fails or nothing is learned. With norm layers and biases alone the loss
    changes a little at first and then stays flat, which looks like a learning rate that is too low.

    ## How it is measured
    From `requires_grad` of every parameter, at the start and whenever it changes.

    ## False alarms
    A trainable head, adapters (LoRA, prompts, own scaling vectors) and a single unfrozen layer all
    pass. Tuning the biases of frozen layers on purpose (BitFit) is information only. Tuning only
    norm layers on purpose cannot be distinguished from a freeze that went too far: ignore this
    finding there.

    ## What to do
    Check the line that sets `requires_grad`: a condition on names that matches too much, a freeze
    that runs after the head is attached, `requires_grad_(False)` on the whole model, or a freeze
    from the first phase that was never lifted.

    ## References
    Ben Zaken et al., "BitFit"; TrainCheck's case forum-84911 (everything frozen but batch norm).
    """

    code = "HD410"
    name = "nothing-trainable"
    severity = Severity.ERROR
    summary = "all, or all but norm/bias, parameters are frozen"
    points_at = "freeze"
    needs = Needs(kinds=(SetupRecord,), topics=("parameters", "frozen"))
    explains = (*NOTHING_MOVES, *POOR_FIT, "HD104", "HD108", "HD204", "HD409", "HD415", "HD905")

    def start(self) -> None:
        self.reported = False
        self.file: str | None = None
        self.line: int | None = None
        """Where the freeze is, if it was observed."""

    def begin(self, header: Header) -> None:
        self.reported = False

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == "frozen":
            where = FrozenFacts.of(record).place
            self.file, self.line = where.file, where.line
            return
        parameters = Parameters.of(record)
        if parameters is None or parameters.trainable is None or not parameters.names:
            return
        finding = self._judge(record, parameters, parameters.trainable)
        if finding is not None and not self.reported:
            yield finding
        self.reported = finding is not None

    def _judge(
        self, record: SetupRecord, parameters: Parameters, trainable: frozenset[int]
    ) -> Finding | None:
        names = parameters.names
        where = Where(file=self.file, line=self.line, rank=record.rank or None)
        remedy = "Check the line that sets `requires_grad`: it freezes more than it should."
        if not trainable:
            return self.find(
                record,
                f"all {len(names)} parameters are frozen: nothing can be learned",
                where=where,
                remedies=[remedy, "Unfreeze at least the head: `requires_grad_(True)`."],
                parameters=len(names),
                trainable=0,
            )
        small = parameters.norm_or_bias or frozenset()
        frozen = set(range(len(names))) - small
        if not frozen or not trainable <= small or _is_adapter(parameters, trainable):
            return None
        on_purpose = _biases_selected(parameters, trainable)
        return self.find(
            record,
            f"all {len(frozen)} weight matrices are frozen; only {len(trainable)} parameters of "
            f"norm layers and biases can learn: {say_list(parameters.listed(trainable))}",
            severity=Severity.INFO if on_purpose else None,
            where=where,
            remedies=[remedy],
            parameters=len(names),
            trainable=len(trainable),
            trainable_elements=parameters.elements(trainable),
            elements=sum(parameters.numel),
        )


def _is_adapter(parameters: Parameters, trainable: frozenset[int]) -> bool:
    """Whether a vector has its own name (a prompt, an adapter's scaling): it was added to train."""
    leaves = {parameters.name(position).rpartition(".")[2] for position in trainable}
    return not leaves <= {"weight", "bias"}


def _biases_selected(parameters: Parameters, trainable: frozenset[int]) -> bool:
    """Whether most frozen matrices have a trainable bias, as in BitFit."""
    small = parameters.norm_or_bias or frozenset()
    where = {name: position for position, name in enumerate(parameters.names)}
    beside = [
        where[name.removesuffix("weight") + "bias"] in trainable
        for position, name in enumerate(parameters.names)
        if position not in small and name.removesuffix("weight") + "bias" in where
    ]
    return sum(beside) * 2 > len(beside)
