"""Finds the op where a non-finite value first appears, walking back from a bad loss or gradient.

The walk follows bad inputs only. An op with a bad result and finite inputs is an origin. Infinities
are followed to the op that computed them. Deliberate infinities (masks) are never an origin, but an
op that turns them into NaN is, and so is an op that selects a masked element for the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.explain import bad_inputs
from headway.explain.explanation import Operand, Origin
from headway.explain.failing_step import FailingStep
from headway.explain.origin.bad_call import OriginKind, classify_masked
from headway.explain.trace import Trace
from headway.explain.traced_call import BadInput, BadLeaf, BadResult, TracedCall
from headway.torch_adapters.op_recording.op_frames import FrameLine
from headway.torch_adapters.op_schema import PASSED_OVER, name_set
from headway.torch_adapters.tensor_values import NAN, POSITIVE

# Copies: the op that reads their result is the one that uses a bad tensor.
_CARRIES = name_set("to_copy clone copy")
_DATA_ROLES = frozenset(("batch", "data", "carried", "constant"))


class BatchRows(NamedTuple):
    """Samples of one of the step's batches."""

    batch: int
    rows: tuple[int, ...]


class _Path(NamedTuple):
    """The path on which a walk reached a bad value."""

    rows: BatchRows | None = None
    """The samples that reach the loss, if not all do."""
    through: tuple[str, str] | None = None
    """(role, name) of the parameter, buffer or batch that brought it into the step."""
    backward: TracedCall | None = None
    """The op of the backward pass that reads a value of the forward pass."""


class FoundOrigin(NamedTuple):
    """An origin: an op; or a tensor that is already bad, and the op that reads it."""

    call: TracedCall
    leaf: BadLeaf | None = None
    rows: BatchRows | None = None
    """The samples that reach the loss, if not all do."""
    through: tuple[str, str] | None = None
    masked: Operand | None = None
    """NaN in the data that a mask hides from the loss, but not from the gradient."""

    def same_as(self, other: FoundOrigin) -> bool:
        return self.call is other.call and self.leaf is other.leaf


def find_origins(trace: Trace, failing_step: FailingStep) -> tuple[Origin, ...]:
    """The origins in a traced pass; the first one is the one to fix first."""
    if trace.ends.losses:
        walk = _walk_from(trace, trace.ends.losses, bad_loss=True)
        origins = [(found, set(trace.ends.gradients)) for found in walk.found]
    else:
        origins = _from_gradients(trace)
    named = [_make_origin(trace, found, reached) for found, reached in origins]
    return tuple(_distinct(sorted(named, key=lambda origin: origin.order)))


def _from_gradients(trace: Trace) -> list[tuple[FoundOrigin, set[str]]]:
    reached: dict[tuple[int, int], tuple[FoundOrigin, set[str]]] = {}
    for name, source in trace.ends.gradients.items():
        for found in _walk_from(trace, [source]).found:
            key = (found.call.order, 0 if found.leaf is None else id(found.leaf))
            reached.setdefault(key, (found, set()))[1].add(name)
    return list(reached.values())


def _walk_from(trace: Trace, sources: Iterable[BadInput], *, bad_loss: bool = False) -> _Walk:
    walk = _Walk(trace.calls, bad_loss)
    for source in sources:
        walk.follow(source, None)
    trace.incomplete |= walk.incomplete
    if not walk.found:
        walk.found = walk.elsewhere
    return walk


@dataclass(slots=True)
class _Walk:
    """A walk back from the results of a pass."""

    calls: Sequence[TracedCall]
    bad_loss: bool = False
    found: list[FoundOrigin] = field(default_factory=list)
    elsewhere: list[FoundOrigin] = field(default_factory=list)
    """Origins in samples that do not become NaN: infinities without effect."""
    seen: set[tuple[int, BatchRows | None]] = field(default_factory=set)
    incomplete: bool = False
    """Whether it came to a part of the step that was passed over."""

    def follow(self, source: BadInput, reader: TracedCall | None) -> None:
        todo: list[tuple[BadInput, TracedCall | None, _Path]] = [(source, reader, _Path())]
        while todo:
            source, reader, path = todo.pop()
            if source.passed_over:
                self.incomplete = True
                continue
            if source.deliberate:
                self._blame_picker(source)
                continue
            if source.owner is not None and path.through is None:
                path = path._replace(through=source.owner)
            if path.backward is None and self._enters_forward(source, reader):
                path = path._replace(backward=reader)
            writers = source.writers
            if source.leaf is not None:
                writers = self._end_at(source.leaf, reader, path)
            for order in writers:
                if (order, path.rows) in self.seen:
                    continue
                self.seen.add((order, path.rows))
                call = self._visit(order)
                further = self._further(call)
                if not further or (call.trouble is not None and call.trouble.fresh):
                    self._blame(call, path)
                after = path._replace(rows=_narrowed(path.rows, call))
                carried = call.facts.aten in _CARRIES and reader is not None
                todo.extend((item, reader if carried else call, after) for item in further)

    def _visit(self, order: int) -> TracedCall:
        """A call whose inputs decide where the walk goes on."""
        call = self.calls[order]
        if call.trouble is not None and any(item.passed_over for item in call.trouble.sources):
            self.incomplete = True
        return call

    def _enters_forward(self, source: BadInput, reader: TracedCall | None) -> bool:
        """Whether an op of the backward pass reads NaN that the forward pass left behind."""
        if self.bad_loss or reader is None or reader.phase != "backward":
            return False
        return bool(source.flags & NAN) and all(
            self.calls[order].phase == "forward" for order in source.writers
        )

    def _blame(self, call: TracedCall, path: _Path) -> None:
        known, rows = _rows_of(call), path.rows
        if call.facts.constant and call.trouble is not None and path.backward is not None:
            self._blame_masked(path, call.trouble.inputs[0])
            return
        apart = rows is not None and known is not None and not _meet(rows, known)
        origins = self.elsewhere if apart else self.found
        if all(other.call is not call or other.leaf is not None for other in origins):
            origins.append(FoundOrigin(call, rows=rows, through=path.through))

    def _blame_masked(self, path: _Path, operand: Operand) -> None:
        """The data has NaN on purpose, and the loss leaves it out; 0 · NaN is NaN all the same."""
        call = path.backward
        if call is not None and all(other.call is not call for other in self.found):
            self.found.append(FoundOrigin(call, rows=path.rows, masked=operand))

    def _further(self, call: TracedCall) -> list[BadInput]:
        """The inputs to follow; none if the op itself is the origin."""
        trouble = call.trouble
        if trouble is None:
            return []
        with_nan = [source for source in trouble.sources if source.flags & NAN]
        if not trouble.flags & NAN:
            computed = [source for source in trouble.sources if not source.deliberate]
            return computed if computed or trouble.fresh else list(trouble.sources)
        if with_nan:
            return with_nan
        if trouble.fresh:
            return []
        masked = not any(source.flags & POSITIVE for source in trouble.sources)
        if masked and bad_inputs.is_softmax(call.facts.aten):
            return []
        if call.phase == "backward" and self._own_result(call, trouble.sources):
            return []
        return [source for source in trouble.sources if not source.deliberate]

    def _own_result(self, call: TracedCall, sources: Sequence[BadInput]) -> bool:
        """Whether the forward of this backward op computed the infinity: hidden in the forward pass
        (`where`), it shows here."""
        makers = [self._visit(order) for source in sources for order in source.writers]
        for maker in makers:
            if maker.trouble is None or not maker.same_code(call):
                continue
            inherited = maker.trouble.sources
            if self._own_result(maker, inherited) if inherited else maker.phase == "forward":
                return True
        return False

    def _end_at(self, leaf: BadLeaf, reader: TracedCall | None, path: _Path) -> tuple[int, ...]:
        """The leaf is an origin, unless its writer was not traced and an earlier op is likely."""
        if leaf.unseen and (likely := self._last_bad_before(reader)) is not None:
            return (likely.order,)
        if path.backward is not None and leaf.operand.role in _DATA_ROLES:
            self._blame_masked(path, leaf.operand)
            return ()
        call = leaf.maker or reader
        if call is not None and all(other.leaf is not leaf for other in self.found):
            self.found.append(FoundOrigin(call, leaf))
        return ()

    def _last_bad_before(self, reader: TracedCall | None) -> TracedCall | None:
        """The last bad call before a write that torch does not see: its likely input."""
        self.incomplete |= any(call.facts is PASSED_OVER for call in self.calls)
        end = len(self.calls) if reader is None else reader.order
        for call in reversed(self.calls[:end]):
            if call.trouble is not None and not call.trouble.deliberate:
                return call
        return None

    def _blame_picker(self, source: BadInput) -> None:
        """All infinities are deliberate: find the op that selects some of them by mistake."""
        chain = [call for call in self._meant(source) if call.trouble and call.trouble.kind]
        used = [call for call in chain if call.trouble and call.trouble.sources]
        choices = (
            [call for call in used if call.facts.aten in bad_inputs.SELECTS],
            [call for call in used if call.facts.aten in bad_inputs.REDUCES],
            used,
            chain,
        )
        chosen = next((choice for choice in choices if choice), None)
        if chosen is None:
            return
        first = min(chosen, key=lambda call: call.order)
        if all(other.call is not first for other in self.found):
            self.found.append(FoundOrigin(first))

    def _meant(self, source: BadInput) -> list[TracedCall]:
        todo, chain = [source], dict[int, TracedCall]()
        while todo:
            for order in todo.pop().writers:
                if order not in chain:
                    call = chain[order] = self._visit(order)
                    todo.extend(call.trouble.sources if call.trouble else ())
        return list(chain.values())


def _rows_of(call: TracedCall) -> BatchRows | None:
    """The samples of an origin, if known."""
    rows = call.trouble.rows if call.trouble is not None else ()
    return BatchRows(call.batch, rows) if rows else None


def _narrowed(rows: BatchRows | None, call: TracedCall) -> BatchRows | None:
    """The samples to follow before an op: those it selects, or in which it turns infinities into
    NaN."""
    trouble = call.trouble
    if trouble is None or not (call.facts.chooses or (trouble.kind and trouble.flags & NAN)):
        return rows
    return _rows_of(call) or rows


def _meet(one: BatchRows, other: BatchRows) -> bool:
    return one.batch != other.batch or not set(one.rows).isdisjoint(other.rows)


def _make_origin(trace: Trace, found: FoundOrigin, reached: set[str]) -> Origin:
    call, leaf, harmed, through, masked = found
    located = call.located_call
    trouble = call.trouble
    if leaf is not None:
        read = () if trouble is None or leaf.maker is call else trouble.rows
        trouble = BadResult(0, kind=leaf.kind, inputs=(leaf.operand,), rows=leaf.rows or read)
    elif trouble is None:
        trouble = BadResult(0)
    rows = trouble.rows
    if harmed is not None and harmed.batch == call.batch:
        rows = tuple(row for row in rows if row in harmed.rows) or rows
    kind = classify_masked(masked) if masked is not None else trouble.kind
    kind = kind or OriginKind("unknown", f"{located.op} returns a non-finite result")
    place, called_from = located.around.place, _called_from(trace, located)
    return Origin(
        kind=kind.name,
        cause=kind.cause,
        phase=call.phase,
        op=located.op,
        node=call.node,
        module=located.module.path,
        place=None if place is None else place.read(),
        called_from=None if called_from is None else called_from.read(),
        inputs=trouble.inputs,
        output=trouble.output,
        rows=rows,
        reached=tuple(name for name in trace.ends.gradients if name in reached),
        component=_component(trace, found),
        order=call.order,
        autocast=located.autocast,
        batch=call.batch,
        through=None if through is None else through[0],
        through_name=None if through is None else through[1],
    )


def _called_from(trace: Trace, call: TracedCall) -> FrameLine | None:
    """The caller of a library function, or of a user function that several lines call."""
    place, library, caller = call.around.place, call.around.called_from, call.around.caller
    if place is None or caller is None:
        return library
    callers = trace.callers_of((place.file, place.begins))
    return caller if len(callers) > 1 else None


def _component(trace: Trace, found: FoundOrigin) -> str | None:
    """The loss component it passes through, if there is only one."""
    through = {
        component.name
        for component in trace.ends.components
        if component.sources
        and any(found.same_as(other) for other in _walk_from(trace, component.sources).found)
    }
    if not through and not trace.ends.losses:
        number = found.call.located_call.number
        through = {item.name for item in trace.ends.components if number in item.numbers}
    return through.pop() if len(through) == 1 else None


def _distinct(origins: Iterable[Origin]) -> Iterator[Origin]:
    """One origin per line and op: further iterations or layers are not counted. An origin in
    backward replaces one in forward, where it was hidden."""
    distinct: dict[tuple[object, ...], Origin] = {}
    for origin in origins:
        bad_input = origin.inputs[0].name if origin.output is None and origin.inputs else None
        key = (origin.op, origin.module, origin.place, bad_input)
        first = distinct.get(key)
        if first is None or (first.phase == "forward" and origin.phase == "backward"):
            distinct[key] = origin
    yield from sorted(distinct.values(), key=lambda origin: origin.order)
