"""The ops of a traced pass, what is recorded of a non-finite result, and the autograd nodes that
the ops create.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from headway.explain.explanation import Operand, Phase
from headway.torch_adapters import runtime_state
from headway.torch_adapters.autograd_graph import node_number, walk_graph
from headway.torch_adapters.compat import accelerator_type
from headway.torch_adapters.module_stack import ModuleNames, NamedModule, RunningModule
from headway.torch_adapters.op_recording.op_frames import FrameLine, RawFrames, read_raw_frames
from headway.torch_adapters.op_schema import OpSchema, user_op_name
from headway.torch_adapters.runtime_state import LEAF_NUMBER, last_node_number

if TYPE_CHECKING:
    from headway.explain.origin.bad_call import OriginKind
    from headway.torch_adapters.op_recording.op_frames import FrameContext


@dataclass(slots=True)
class TracedCall:
    """An op that ran. It keeps no tensor alive."""

    order: int
    facts: OpSchema
    module: RunningModule | NamedModule
    around: FrameContext
    phase: Phase = "forward"
    node: str | None = None
    """Name of the autograd node that was running."""
    forward: TracedCall | None = None
    """The forward op of that node."""
    autocast: str | None = None
    batch: int = 0
    """Index of the batch in the step."""
    number: int | None = None
    """Number of the autograd node it created."""
    dims: int = 0
    """Dimensions of its first tensor."""
    from_integers: bool = False
    """A cast of integers or booleans."""
    digest: int | None = None
    """Checksum of uninitialised memory."""
    trouble: BadResult | None = None

    @property
    def op(self) -> str:
        """The name that users know."""
        return user_op_name(self.facts.aten, self.module.kind, self.dims)

    @property
    def by_hand(self) -> bool:
        """Whether Python code inside backward ran it: a custom `backward` or a hook."""
        return self.phase == "backward" and self.around.place is not None

    @property
    def located_call(self) -> TracedCall:
        """The call with a line and module: the forward op, if autograd ran this one."""
        if self.phase == "forward" or self.by_hand or self.forward is None:
            return self
        return self.forward.located_call

    def same_code(self, other: TracedCall | None) -> bool:
        """Whether both come from the same op of the same line; one may be a recomputation."""
        if other is None:
            return False
        mine, others = self.located_call, other.located_call
        return mine is others or (
            mine.around.place is not None
            and (mine.op, mine.module.path, mine.around.place)
            == (others.op, others.module.path, others.around.place)
        )


@dataclass(slots=True)
class BadLeaf:
    """A non-finite tensor that no op of this pass computed."""

    operand: Operand
    kind: OriginKind
    rows: tuple[int, ...] = ()
    deliberate: bool = False
    """A mask: its infinities are intended."""
    maker: TracedCall | None = None
    """The call that created it, if in this pass: `torch.empty`, or a literal."""
    unseen: bool = False
    """Created finite in this pass, then written by something that torch does not see."""


@dataclass(slots=True)
class BadInput:
    """The origin of the non-finite values of one input."""

    name: str
    flags: int
    writers: tuple[int, ...] = ()
    leaf: BadLeaf | None = None
    deliberate: bool = False
    owner: tuple[str, str] | None = None
    """(role, name), if it is a parameter, a buffer or a batch that an op has written to."""
    passed_over: bool = False
    """Written by an op that the trace passed over."""


@dataclass(slots=True)
class BadResult:
    """Facts about a call that were read while its tensors were alive."""

    flags: int
    sources: tuple[BadInput, ...] = ()
    """The non-finite inputs."""
    deliberate: bool = False
    """All of it are intended infinities."""
    written: bool = False
    """Whether this op wrote them, as literals."""
    fresh: bool = False
    """The op also made non-finite values from finite ones."""
    kind: OriginKind | None = None
    """None if it only passed on non-finite inputs."""
    inputs: tuple[Operand, ...] = ()
    output: Operand | None = None
    rows: tuple[int, ...] = ()


# The autograd nodes that the ops of a pass have created.

MOST_NODES = 200_000


@dataclass(slots=True)
class TracedComponent:
    """A named loss component."""

    name: str
    value: float
    sources: tuple[BadInput, ...]
    """Where its non-finite values come from."""
    number: int | None
    """Number of the autograd node that created it."""
    numbers: frozenset[int] = frozenset()
    """Numbers of all nodes of its graph."""


def _walk_all(starts: Iterable[Any]) -> Iterator[Any]:
    return walk_graph(starts, most=MOST_NODES)


def read_component_graphs(
    roots: Sequence[Tensor], components: Mapping[str, Tensor], found: Mapping[str, TracedComponent]
) -> None:
    """Fill in `numbers`. For a detached component: the part of the graph of the loss that begins at
    the node which created it."""
    whole: dict[int | None, Any] = {
        node_number(node): node for node in _walk_all(root.grad_fn for root in roots)
    }
    for name, tensor in components.items():
        start = tensor.grad_fn or whole.get(found[name].number)
        found[name].numbers = frozenset(node_number(node) for node in _walk_all([start]))


# From an autograd node to its forward op. Nodes are numbered in forward order, per thread. The
# first op traced while a number is the latest one is the forward op of that node.


@dataclass(slots=True)
class _Numbered:
    numbers: list[int] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)


class ForwardCalls:
    """The calls that created a node, by node number."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._threads: dict[int, _Numbered] = {}

    def note(self, call: TracedCall) -> None:
        """Record a call, before the next one in this thread."""
        number = last_node_number()
        known = self._threads.setdefault(threading.get_ident(), _Numbered())
        if number >= 0 and (not known.numbers or number > known.numbers[-1]):
            call.number = number
            known.numbers.append(number)
            known.calls.append(call)

    def pass_over(self, number: int, nothing: TracedCall) -> None:
        """The nodes up to this one belong to no call that is recorded."""
        known = self._threads.setdefault(threading.get_ident(), _Numbered())
        if not known.numbers or number > known.numbers[-1]:
            known.numbers.append(number)
            known.calls.append(nothing)

    def of(self, node: Any, *, nested: bool) -> TracedCall | None:
        """The forward op of a node. `nested`: a forward recomputed in this thread created the
        graph."""
        number = node_number(node)
        known = self._threads.get(threading.get_ident()) if nested else None
        if known is None or not known.numbers:
            known = self._threads.get(self._main)
        if known is None or not 0 <= number < LEAF_NUMBER:
            return None
        # A node without an op belongs to the previous op: writing through a view creates two.
        at = bisect_right(known.numbers, number) - 1
        return known.calls[at] if at >= 0 else None


# The same over many steps, at little cost: of an op only its frames and its module are noted.

MAX_NOTES = 50_000
"""Forward ops that are remembered, newest last: a graph may be older than the last step."""


class _ForwardNote(NamedTuple):
    """An op of a forward pass."""

    facts: OpSchema
    frames: RawFrames
    module: nn.Module | None
    autocast: str | None
    dims: int
    batch: int


@dataclass(slots=True)
class _ThreadNotes:
    numbers: list[int] = field(default_factory=list)
    """Of the newest autograd node when the op ran."""
    notes: list[_ForwardNote] = field(default_factory=list)


class ForwardNotes:
    """From an autograd node to the line of its forward op, over many steps."""

    def __init__(self, names: ModuleNames, running: Callable[[], nn.Module | None]) -> None:
        self.autocast_used = runtime_state.autocast_dtype("cpu") is not None or (
            runtime_state.autocast_dtype(accelerator_type()) is not None
        )
        """Whether the script has entered an autocast region: asking each op takes long."""
        self._names = names
        self._running = running
        self._main = threading.get_ident()
        self._threads: dict[int, _ThreadNotes] = {}

    def add(self, facts: OpSchema, args: tuple[Any, ...], batch: int) -> None:
        """Note an op, before the next one in this thread."""
        number = runtime_state.last_node_number()
        thread = threading.get_ident()
        known = self._threads.get(thread)
        if known is None:
            known = self._threads[thread] = _ThreadNotes()
        if number < 0 or (known.numbers and number <= known.numbers[-1]):
            return
        first = args[0] if args and isinstance(args[0], Tensor) else None
        autocast = None
        if self.autocast_used and first is not None:
            autocast = runtime_state.autocast_dtype(first.device.type)
        dims = 0 if first is None else first.ndim
        frames = read_raw_frames(3)
        known.numbers.append(number)
        known.notes.append(_ForwardNote(facts, frames, self._running(), autocast, dims, batch))

    def note(self, call: TracedCall) -> None:
        """A call of which everything is recorded: `add` has noted it."""
        known = self._threads.get(threading.get_ident())
        if call.phase == "forward" and known is not None and known.numbers:
            call.number = known.numbers[-1]

    def of(self, node: Any, *, nested: bool) -> TracedCall | None:
        """The forward op of a node. `nested`: a forward recomputed in this thread created the
        graph."""
        number = node_number(node)
        known = self._threads.get(threading.get_ident()) if nested else None
        if known is None or not known.numbers:
            known = self._threads.get(self._main)
        if known is None or not 0 <= number < runtime_state.LEAF_NUMBER:
            return None
        # A node without an op belongs to the previous op: writing through a view creates two.
        at = bisect_right(known.numbers, number) - 1
        return None if at < 0 else self._call(known.numbers[at], known.notes[at])

    def _call(self, number: int, note: _ForwardNote) -> TracedCall:
        return TracedCall(
            order=-1,
            facts=note.facts,
            module=self._names.running(note.module),
            around=note.frames.to_context(),
            autocast=note.autocast,
            batch=note.batch,
            number=number,
            dims=note.dims,
        )

    def running(self) -> NamedModule | RunningModule:
        """The innermost module of the script, by the path that is known by now."""
        return self._names.running(self._running())

    def callers_of(self, function: tuple[str, int]) -> set[FrameLine]:
        found: set[FrameLine] = set()
        for known in self._threads.values():
            contexts = {note.frames for note in known.notes}
            for raw in contexts:
                place, _, caller = raw.to_context()[:3]
                if place is not None and (place.file, place.begins) == function and caller:
                    found.add(caller)
        return found

    def trim(self) -> None:
        for known in self._threads.values():
            if len(known.notes) > MAX_NOTES:
                del known.numbers[:-MAX_NOTES], known.notes[:-MAX_NOTES]
