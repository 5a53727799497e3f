"""Edits for a NaN or an infinity, from the line, the op and the kind of its origin."""

from __future__ import annotations

from collections.abc import Iterator

from headway.core.findings import Finding, Remedy
from headway.explain.explanation import Operand, Origin, Phase
from headway.explain.remedies.edits import edits_for
from headway.torch_adapters.frames import Location, is_installed_file, is_internal_file
from headway.torch_adapters.source import SourceFile

LOWS = (-1.0, 0.0)
"""The operands are not in the finding. The edit for both signs comes first: it is right for
positive operands, too."""


def propose_for_bad_number(finding: Finding) -> Iterator[Remedy]:
    """An edit for each way to keep the op of the origin finite."""
    where, evidence = finding.where, finding.evidence
    if where.file is None or where.line is None or where.op is None or "kind" not in evidence:
        return
    if is_installed_file(where.file) or is_internal_file(where.file):
        return
    file = SourceFile.read(where.file)
    statement = None if file is None else file.statement_at(where.line)
    if file is None or statement is None:
        return
    phase: Phase = "backward" if evidence.get("phase") == "backward" else "forward"
    place = Location(where.file, where.line, where.function)
    for low in LOWS:
        operand = Operand("self", "computed", (), "torch.float32", low, 1.0, zero=1)
        inputs = (operand, operand)
        origin = Origin(str(evidence["kind"]), "", phase, where.op, place=place, inputs=inputs)
        for guard in edits_for(origin):
            for spans in guard.alternatives(statement):
                edits = tuple(file.edit(*span) for span in spans)
                yield Remedy(f"At {place} {guard.words}", edits=edits, same_loss=True)
