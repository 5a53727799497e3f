from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import onset_record, say_list
from headway.core.findings import Finding
from headway.core.model_facts import LinearChainFacts
from headway.core.records import SetupRecord


class MissingNonlinearity(Check):
    """Linear layers follow each other without a nonlinearity between them.

    ## What it checks
    The ops between one linear layer or convolution and the next, in the graph of the loss.

    ## Why it matters
    Consecutive linear layers are equivalent to one linear layer. The depth has no effect: the model
    cannot learn more than a single layer could, however long it trains.

    ## How it is measured
    Reshaping, dropout, batch norm, averaging and constants are linear. Reported are three or more
    layers in a row, two adjacent layers in one `nn.Sequential`, two numbered layers of one module
    (`fc1` and `fc2`), and two or more layers in a model without any nonlinearity.

    ## False alarms
    A narrow layer between wide ones (LoRA, a factorised embedding, the code of an autoencoder) is
    intended for its rank, and a depthwise convolution for its cost. Results that are used twice
    (queries and keys, residual streams) end a chain. Two layers in a row that belong to different
    parts of the model are not reported.

    ## What to do
    Add an activation (ReLU, GELU) between the layers, or merge them into one.

    ## References
    stackoverflow.com/questions/46181692.
    """

    code = "HD908"
    name = "missing-nonlinearity"
    summary = "consecutive linear layers without a nonlinearity"
    needs = Needs(kinds=(SetupRecord,), topics=("linear-chain",))
    explains = (*POOR_FIT, "HD105", "HD203", "HD404")
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        length: int = 3
        """Number of layers in a row that is reported anywhere in the model."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic != "linear-chain":
            return
        facts = LinearChainFacts.of(record)
        length, members = facts.length or 0, facts.members
        nowhere = facts.nonlinearities == 0
        if length < 2 or not (length >= self.limits.length or nowhere or facts.neighbours):
            return
        name = ", ".join(members)
        widths = [int(width) for width in facts.widths]
        shown = f", {' → '.join(str(width) for width in widths)}" if widths else ""
        rest = "; the model has no nonlinearity at all" if nowhere else ""
        yield self.find(
            onset_record(record),
            f"{length} linear layers follow each other without a nonlinearity "
            f"({say_list(members, 4)}{shown}): together they are equivalent to one linear "
            f"layer{rest}",
            subject=name,
            where=facts.locate(rank=record.rank, module=members[0] if members else None),
            remedies=["Add an activation such as ReLU or GELU between them."],
            layers=members,
            length=length,
            widths=widths,
        )
