"""Proposes edits of the source for the findings of a report.

bad_numbers.py     NaN and Inf: the op at the origin is kept in its domain
training_loop.py   zero_grad, unscale_ and clipping, schedules, train and eval, kept graphs
loss_arguments.py  softmax before cross entropy, shapes, reductions, ignored labels, targets
set_up.py          the optimizer's place, samplers and loaders

A proposal is only a proposal: a fresh run decides whether it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from headway.core.findings import Finding, Remedy
from headway.fix.proposals import loss_arguments, set_up, training_loop
from headway.fix.proposals.bad_numbers import propose_for_bad_number
from headway.fix.syntax import SyntaxFile
from headway.report import Report
from headway.torch_adapters.frames import is_installed_file, is_internal_file

Proposer = Callable[[Finding, SyntaxFile], Iterator[Remedy]]

PROPOSERS: dict[str, tuple[Proposer, ...]] = {
    "HD109": (loss_arguments.align_shapes,),
    "HD110": (loss_arguments.pass_logits,),
    "HD111": (loss_arguments.pass_logits, loss_arguments.loss_with_logits),
    "HD116": (loss_arguments.average_loss,),
    "HD205": (training_loop.clear_after_step,),
    "HD206": (training_loop.clear_gradients,),
    "HD209": (training_loop.average_micro_batches,),
    "HD306": (training_loop.clear_after_step, set_up.optimizer_after_move),
    "HD314": (training_loop.unscale_before_clipping,),
    "HD401": (set_up.optimizer_after_move, loss_arguments.detach_target),
    "HD402": (set_up.optimizer_after_move,),
    "HD405": (training_loop.step_schedule_per_epoch,),
    "HD505": (loss_arguments.ignore_label,),
    "HD507": (set_up.set_epoch, set_up.shuffle),
    "HD603": (set_up.set_epoch,),
    "HD801": (training_loop.release_graph,),
    "HD802": (training_loop.release_graph,),
    "HD803": (training_loop.release_graph,),
    "HD902": (training_loop.train_mode,),
    "HD903": (training_loop.eval_mode,),
    "HD904": (set_up.optimizer_after_move,),
    "HD911": (set_up.prevent_crash,),
}
"""Where to look for an edit, by the code of the finding."""
MOST_PROPOSALS = 6
"""Edits for one finding: each takes a fresh run."""


def propose_edits(report: Report, script: Path) -> Report:
    """The report whose remedies include edits, wherever an edit is known for a finding.

    `script`: the file to edit for a finding without a line.
    """
    return report.with_findings([_with_edits(finding, script) for finding in report.findings])


def _with_edits(finding: Finding, script: Path) -> Finding:
    known = {remedy.edits for remedy in finding.remedies if remedy.edits}
    new: list[Remedy] = []
    for remedy in (*propose_for_bad_number(finding), *_propose(finding, script)):
        if remedy.edits and remedy.edits not in known:
            known.add(remedy.edits)
            new.append(remedy)
    chosen = new[:MOST_PROPOSALS]
    return replace(finding, remedies=(*finding.remedies, *chosen)) if chosen else finding


def _propose(finding: Finding, script: Path) -> Iterator[Remedy]:
    proposers = PROPOSERS.get(finding.code, ())
    path = finding.where.file or str(script)
    if not proposers or is_installed_file(path) or is_internal_file(path):
        return
    file = SyntaxFile.read(path)
    for propose in proposers if file is not None else ():
        assert file is not None
        yield from propose(finding, file)
