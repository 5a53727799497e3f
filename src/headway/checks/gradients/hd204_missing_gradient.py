from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Parameters, say_list, trained_positions
from headway.core.findings import Finding, Severity, Where
from headway.core.optimizer_facts import (
    UNUSED,
    BypassedModuleFacts,
    ClearedGradientsFacts,
    GraphCutFacts,
    UncalledModuleFacts,
)
from headway.core.records import (
    Column,
    Header,
    Moment,
    SetupRecord,
    StepRecord,
    moment_of,
    record_at,
)

NAMELESS = re.compile(r"(optimizer\d+\.)?group\d+\.\d+")
"""Name of an optimizer's tensor that belongs to no model."""
IDLE = re.compile(r"expert|pooler", re.I)
"""May have no gradient in a correct model: experts not chosen, a pooled output not used."""


class MissingGradient(Check):
    """Trainable parameters never get a gradient: the graph is cut before them.

    ## What it checks
    That every parameter that is trainable and belongs to an optimizer gets a gradient in some step,
    and that a step finds the gradients that the backward pass made.

    ## Why it matters
    A conversion to numpy, a `no_grad` block, a `detach` or a branch whose result is not used leaves
    part of the model at its random initial values. The rest trains around it and the loss still
    falls.

    ## How it is measured
    The parameters without any gradient (`.grad` is None, not 0) in all measured steps so far. If
    they are exactly those before some point of the model, the graph is cut there: 5 steps must
    agree. If they are a branch, 30 must agree; if the set of parameters with a gradient changes
    from step to step, 100. At the end of a run too short for that, 3 are enough; a branch is then a
    warning only, and with fewer than 8 steps information. Gradients that `zero_grad()` clears
    before the step: in all of the first three steps.

    ## False alarms
    LayerDrop, stochastic depth and alternating tasks give each parameter a gradient sometimes. With
    several optimizers nothing is judged before a step of each one was measured. Parameters with
    "expert" or "pooler" in their name may be idle: that is information only. So are the parameters
    of a module that is never called: nothing is cut there. Frozen parameters, and those of which
    this rank has no element (FSDP), are ignored. A head whose loss is switched on later looks like
    a cut until then. Tensors that an optimizer still has from a layer that was replaced do not
    count.

    ## What to do
    Follow the data from the first named parameter to the loss and look for `.numpy()`, `.item()`,
    `.data`, `.detach()`, `torch.tensor(x)` or `no_grad` on the way. If the branch is not meant to
    train, freeze it or remove it from the optimizer.

    ## References
    Humbatova et al., "Taxonomy of real faults in deep learning systems" (wrong backpropagation).
    """

    code = "HD204"
    name = "missing-gradient"
    severity = Severity.ERROR
    summary = "trainable parameters get no gradient: the graph is cut"
    needs = Needs(signals=("param/grad_norm",), kinds=(StepRecord, SetupRecord))
    explains = ("HD306", "HD105")

    @dataclass(frozen=True)
    class Limits:
        samples: int = 5
        """Measured steps without a gradient for all parameters before some point of the model."""
        branch_samples: int = 30
        """The same, for parameters elsewhere."""
        dynamic_samples: int = 100
        """The same, if the set of parameters with a gradient changes."""
        short_samples: int = 3
        """The same, at the end of a run too short for more."""
        short_branch_samples: int = 8
        """The same, for a branch to be a warning there instead of information."""

    def start(self) -> None:
        self.expected = 0
        self.missing: set[int] = set()
        self.cuts: dict[str, tuple[str, int, str, str]] = {}
        """Parameter → the line where its graph ends, and the call there."""
        self.uncalled: list[str] = []
        """Paths of modules that are never called …"""
        self.registered_at: tuple[str, int, str] | None = None
        """… and the line that makes the first of them."""
        self.bypassed: list[str] = []
        """Paths of modules that are never called: what they replaced still runs."""
        self._restart()

    def _restart(self) -> None:
        self.samples = 0
        self.first: list[int] = []
        self.dynamic = False
        self.optimizers: set[str] = set()
        self.optimizer_count = 1
        self.last: Moment = (0, 0, 0, 0)

    def begin(self, header: Header) -> None:
        self.samples = 0  # repeated steps add no evidence

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            if record.topic == "cleared-gradients":
                yield from self._cleared(record, ClearedGradientsFacts.of(record))
            elif record.topic == "graph-cut":
                self._add_cut(GraphCutFacts.of(record))
            elif record.topic == "uncalled-module":
                self._add_uncalled(UncalledModuleFacts.of(record), self.uncalled)
            elif record.topic == "bypassed-module":
                self._add_uncalled(BypassedModuleFacts.of(record), self.bypassed)
            parameters = Parameters.of(record)
            if parameters is not None:
                self._restart()
                self.missing = _model_positions(parameters, trained_positions(parameters))
                self.expected = len(self.missing)
            return
        column = record.columns.get("param/grad_norm")
        if column is None or not self.missing:
            return
        self._add_sample(record, column)
        if self.missing and self.samples >= self._enough() and self._all_stepped():
            yield from self._findings(sure=True)

    def _cleared(self, record: SetupRecord, facts: ClearedGradientsFacts) -> Iterable[Finding]:
        if not facts.empty:
            return
        yield self.find(
            record,
            f"the gradients are cleared between backward() and step(): {facts.optimizer} found "
            f"none in all {facts.steps} inspected steps, so nothing is trained",
            subject="cleared",
            where=facts.locate(rank=record.rank),
            remedies=["Call `zero_grad()` before `backward()`, or after `step()`."],
            samples=facts.steps,
        )

    def _add_cut(self, facts: GraphCutFacts) -> None:
        where, function = facts.locate(), facts.function
        if where.file is not None and where.line is not None and function:
            for name in facts.parameters:
                self.cuts[name] = (where.file, where.line, where.function or "", function)

    def _add_uncalled(
        self, facts: UncalledModuleFacts | BypassedModuleFacts, paths: list[str]
    ) -> None:
        where = facts.locate()
        if self.registered_at is None and where.file is not None and where.line is not None:
            self.registered_at = (where.file, where.line, where.function or "")
        paths += facts.modules

    def finish(self) -> Iterable[Finding]:
        seen_enough = self.samples >= self.limits.short_samples and not self.dynamic
        if self.missing and seen_enough and self._all_stepped():
            yield from self._findings(sure=self._upstream(), short=True)

    def _enough(self) -> int:
        limits: MissingGradient.Limits = self.limits
        if self.dynamic:
            return limits.dynamic_samples
        return limits.samples if self._upstream() else limits.branch_samples

    def _upstream(self) -> bool:
        """Whether everything before some point has no gradient, and everything after it has."""
        return bool(self.first) and max(self.missing) < min(self.first)

    def _add_sample(self, record: StepRecord, column: Column) -> None:
        present = list(range(len(column.values)) if column.index is None else column.index)
        self.missing.difference_update(present)
        if self.samples == 0:
            self.first = present
        elif present != self.first:
            self.dynamic = True
        self.samples += 1
        self.last = moment_of(record)
        self.optimizer_count = int(record.values.get("optimizers", 1))
        if self.optimizer_count > 1:
            self.optimizers.update(name for name, _ in record.family("grad_norm"))

    def _all_stepped(self) -> bool:
        return self.optimizer_count == 1 or len(self.optimizers) >= self.optimizer_count

    def _findings(self, *, sure: bool, short: bool = False) -> Iterable[Finding]:
        names = {at: self.context.name("param", at) for at in sorted(self.missing)}
        idle = [name for name in names.values() if IDLE.search(name)]
        unused = [name for name in names.values() if _is_below(name, self.uncalled)]
        cut = [name for name in names.values() if name not in (*idle, *unused)]
        upstream = self._upstream() and not unused
        self.missing = set()  # report once; a new set-up record starts again
        if cut:
            severity = Severity.ERROR if sure else Severity.WARNING
            if short and not sure and self.samples < self.limits.short_branch_samples:
                severity = Severity.INFO  # it may still get one
            yield self._finding(cut, severity, upstream=upstream)
        if idle:
            yield self._finding(idle, Severity.INFO, upstream=False)
        if unused:
            yield self._unused(unused)

    def _unused(self, names: list[str]) -> Finding:
        modules = [path for path in self.uncalled if any(n.startswith(f"{path}.") for n in names)]
        file, line, function = self.registered_at or (None, None, None)
        return self.find(
            record_at(self.last),
            f"{say_list(modules)}: never called, so {len(names)} of {self.expected} trained "
            f"parameters have no gradient",
            severity=Severity.INFO,
            subject="never called",
            where=Where(file, line, function, module=modules[0], rank=self.last[3] or None),
            remedies=["If it is meant to train, call it in forward; otherwise remove it."],
            tensors=names[:LISTED],
            tensor_count=len(names),
            trained_count=self.expected,
            samples=self.samples,
        )

    def _finding(self, names: list[str], severity: Severity, *, upstream: bool) -> Finding:
        # The cut is after the last parameter without a gradient.
        where = names[-1] if upstream else names[0]
        after = self.context.name("param", min(self.first)) if upstream else ""
        cut = f"; the graph is cut after {where}, before {after}" if upstream else ""
        idle = IDLE.search(names[0]) is not None
        at = next((self.cuts[name] for name in reversed(names) if name in self.cuts), None)
        file, line, function = (None, None, None) if at is None or idle else at[:3]
        unused = at is not None and not idle and at[3] == UNUSED
        bypassed = [path for path in self.bypassed if any(_is_below(n, [path]) for n in names)]
        if bypassed and self.registered_at is not None:
            file, line, function = self.registered_at
            one = len(bypassed) == 1
            cut = f"; {say_list(bypassed)} " + (
                "is never called: the model still runs the module that it replaced"
                if one
                else "are never called: the model still runs the modules that they replaced"
            )
        elif unused:
            cut = f"; the loss does not use the result of line {line}"
        elif at is not None and not idle:
            cut = (cut or "; the graph is cut") + f" by {_spell_call(at[3])} on line {at[1]}"
        return self.find(
            record_at(self.last),
            f"{len(names)} of {self.expected} trained parameters "
            f"{'has' if len(names) == 1 else 'have'} no gradient in any of "
            f"{self.samples} measured steps: {say_list(names)}{cut}",
            severity=severity,
            subject="experts" if idle else "",
            where=Where(file, line, function, module=where, rank=self.last[3] or None),
            remedies=[
                "If this continues, check how the router balances the load, or freeze these "
                "parameters."
            ]
            if idle
            else [
                "A list, a copy or another attribute still refers to the module that was "
                "replaced: replace it there, too, or before that reference is made."
            ]
            if bypassed
            else [
                "Use the result in the forward pass, or remove the layer.",
                "If it is not meant to train, freeze it or remove it from the optimizer.",
            ]
            if unused
            else [
                f"Follow the data from {where} to the loss and look for .numpy(), .item(), .data, "
                ".detach(), torch.tensor(x) or a no_grad block on the way.",
                "If it is not meant to train, freeze it or remove it from the optimizer.",
            ],
            tensors=names[:LISTED],
            tensor_count=len(names),
            trained_count=self.expected,
            samples=self.samples,
        )


def _is_below(name: str, paths: Sequence[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _spell_call(function: str) -> str:
    if function == "no_grad":
        return "no_grad"
    return f".{function}" if function == "data" else f"{function}()"


def _model_positions(parameters: Parameters, positions: Sequence[int]) -> set[int]:
    """The positions that belong to the model; all of them if no model is known."""
    held = {at for at in positions if at >= len(parameters.numel) or parameters.numel[at]}
    named = {at for at in held if not NAMELESS.fullmatch(parameters.name(at))}
    return named or held
