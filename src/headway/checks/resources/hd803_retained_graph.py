from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headway.checks.resources._shared import (
    AllocationSite,
    allocation_where,
    describe_line,
    read_allocation_site,
)
from headway.core.check import Check, Needs
from headway.core.ending_facts import CRASH, OUT_OF_MEMORY
from headway.core.findings import Finding, Severity
from headway.core.records import EventRecord, Header, Moment, StepRecord, moment_of, record_at

SIGNAL = "graphs_kept"


class RetainedGraph(Check):
    """Tensors are kept with their autograd graphs from step to step.

    ## What it checks
    Whether the autograd graphs of earlier steps are released. A loss appended to a list, a running
    sum of losses, an output kept for a metric, a hidden state carried over: each keeps its graph
    alive, and with it the activations that backward did not free.

    ## Why it matters
    Memory grows with every step until it runs out, in a step that has nothing to do with the cause.
    A state that is carried over with its graph makes every backward pass longer than the one
    before.

    ## How it is measured
    A few nodes of the graph of every 25th step (and of the first 16) are tracked by weak
    references, which keep nothing alive. It is reported if the graphs of about 100 earlier steps
    are alive and their number has no bound. The reported line is that of the latest part of a graph
    that is still alive three steps later; to find it, autograd records lines for one step. At the
    end of a shorter run 10 graphs are enough if none was released: a warning, or an error if memory
    ran out.

    ## False alarms
    Truncated backpropagation, the last few outputs, losses collected until the next update and
    `retain_graph=True` within a step keep a bounded number of graphs, and pass. A `deque(maxlen=…)`
    is known to be bounded. A list that is truncated by hand to more than 100 tensors with their
    graphs counts as a leak.

    ## What to do
    Keep numbers: `losses.append(loss.item())`, or `loss.detach()` if reading the value would wait
    for the device. Detach a state before it is carried over: `hidden = hidden.detach()`.

    ## References
    PyTorch FAQ, "My model reports CUDA out of memory" (do not accumulate history across your
    training loop); pytorch/examples, word_language_model (`repackage_hidden`).
    """

    code = "HD803"
    name = "retained-graph"
    severity = Severity.ERROR
    summary = "tensors are kept with their autograd graphs; names the line that created them"
    needs = Needs(signals=(SIGNAL,), kinds=(StepRecord, EventRecord))
    explains = ("HD801", "HD802", "HD804", "HD808", "HD809")

    @dataclass(frozen=True)
    class Limits:
        kept: int = 100
        """Graphs of earlier steps that may be alive."""
        short: int = 10
        """The same at the end of a run in which none was released."""
        share: float = 0.9
        """Share of the steps whose graphs must be alive to count as all of them."""

    def start(self) -> None:
        self.origin: AllocationSite = {}
        self._restart()

    def _restart(self) -> None:
        self.first: int | None = None
        self.kept = 0.0
        self.last: Moment = (0, 0, 0, 0)
        self.reported = False
        self.out_of_memory = False

    def begin(self, header: Header) -> None:
        self._restart()  # a new process retains nothing yet; the code is the same

    def observe(self, record: StepRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            self._add_event(record)
            return
        if self.first is None:
            self.first = record.step
        kept = record.values.get(SIGNAL)
        if kept is None or not 0 <= kept < float("inf"):
            return
        self.kept, self.last = kept, moment_of(record)
        if self.reported:
            self.reported = kept >= self.limits.kept / 2
        elif kept >= self.limits.kept and "bound" not in self.origin:
            self.reported = True
            yield self._finding(self.severity)

    def finish(self) -> Iterable[Finding]:
        if self.reported or self.first is None or "bound" in self.origin:
            return
        steps = self.last[2] - self.first
        if self.kept >= self.limits.short and self.kept >= self.limits.share * steps:
            yield self._finding(self.severity if self.out_of_memory else Severity.WARNING)

    def _add_event(self, event: EventRecord) -> None:
        if event.kind == "retained":
            self.origin = read_allocation_site(event)
        elif event.kind == OUT_OF_MEMORY:
            self.out_of_memory = True
        elif event.kind in (CRASH, "exception"):
            self.out_of_memory = "out of memory" in str(event.data.get("error", "")).lower()

    def _finding(self, severity: Severity) -> Finding:
        origin = self.origin
        line = describe_line(origin)
        made = f"; the retained tensors were created at {line}" if line else ""
        holder = f" and are held by {origin['holder']}" if "holder" in origin else ""
        # The line to change is the one that keeps the tensors, if it is known.
        keeps = {
            name: origin[f"keeps_{name}"]
            for name in ("line", "function")
            if f"keeps_{name}" in origin
        }
        carried = bool(origin.get("carried"))
        if carried:
            made += ", and the graph of each step continues that of the step before"
        short = self.kept < self.limits.kept
        rule = "none was released" if short else f"limit {self.limits.kept}"
        return self.find(
            record_at(self.last),
            f"autograd graphs of about {round(self.kept):,} past steps are still alive "
            f"({rule}){made}{holder}",
            severity=severity,
            where=replace(allocation_where(origin, self.last[3]), **keeps),
            remedies=[
                "Detach the state before it is carried over to the next step: `hidden = "
                "hidden.detach()`."
            ]
            if carried
            else [
                "Keep the number, not the tensor: use `.item()`, or `.detach()` if reading the "
                "value would wait for the device.",
            ],
            kept=self.kept,
            **{name: origin[name] for name in ("op", "holder", "carried") if name in origin},
        )
