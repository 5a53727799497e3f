"""Terms of the loss that were computed from the model and lost their graph.

A number without a graph that is added to a loss is followed back: everything computed from outputs
or weights that train is marked, with the call that left the graph (`detach`, `tolist`, `no_grad`,
`argmax` …). A term from the data alone, or from a teacher that is not trained, bears no mark.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.loss.term_weights import find_number_lines
from headway.preflight.observers.loss.value_names import (
    Scalar,
    SourceLevel,
    choose_names,
    read_levels,
)
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.loss_graph import add_note, find_sums, take_note
from headway.torch_adapters.op_schema import TASK_LOSSES

TOPIC = "loss-component"
SEEN = "graphless-terms"
EARLY = 4
"""Steps that are followed from the start …"""
AGAIN = 4
"""… and when a number that moves is added to a loss later on …"""
MOST_STEPS = 16
"""… up to this many for one line."""
SURE, AT_THE_END = 3, 2
MOVES = 1e-3
"""How much a value must have changed, relative to its size."""
MOST_READS, MOST_MARKS = 256, 20_000
_SUMS = (
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__isub__",
    "stack", "cat",
)  # fmt: skip
_MINUS = ("sub", "sub_", "__sub__", "__isub__")
_READS = ("item", "__float__", "tolist", "numpy", "__array__")
_NEW = ("tensor", "as_tensor", "asarray", "from_numpy")
_SOURCES = (
    *TASK_LOSSES, "kl_div", "mean", "sum", "norm", "vector_norm", "logsumexp", "cosine_similarity",
    "max", "min", "amax", "std", "var",
)  # fmt: skip
_COMPARISONS = ("kl_div", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
"""Losses that are 0 for two equal inputs."""
SAME, NO_DIFFERENCE = "same", 1e-6
_SHAPE_ONLY = ("requires_grad_", "retain_grad", "size", "backward", "grad")
_DATA = Tensor.data.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class GraphCutMark:
    """The op that returned a tensor without a graph from one that has it."""

    cut: str
    place: dict[str, Any] | None
    levels: tuple[SourceLevel, ...] = ()
    """Where it became one number."""
    op: str = ""
    weighed: bool = False
    """It was multiplied by a plain number."""


@dataclass(frozen=True, slots=True)
class NumberRead:
    """Numbers that were taken out of a tensor that depends on the model."""

    mark: GraphCutMark
    function: tuple[str, str] | None
    at: tuple[str, int]
    value: float | None


@dataclass(slots=True)
class GraphlessTermSite:
    """One place where a number without a graph joins a loss."""

    values: list[float] = field(default_factory=list)
    watched: int = 0
    steps: int = 0
    first: int = 0
    mark: GraphCutMark | None = None
    reported: bool = False

    def moves(self) -> bool:
        low, high = min(self.values), max(self.values)
        return high - low > MOVES * max(abs(low), abs(high))


class GraphlessTerms(Observer):
    """Marks what leaves the graph, and observes what is added to losses."""

    functions = find_aliases(*_SUMS, *_READS, *_NEW)
    now_and_then = True

    def start(self) -> None:
        self.every_function = True
        self._until = EARLY
        self._marks: dict[int, tuple[weakref.ref[Tensor], GraphCutMark]] = {}
        self._reads: list[NumberRead] = []
        self._sites: dict[Any, GraphlessTermSite] = {}
        self._visits: dict[Any, int] = {}
        self._trained: set[int] = set()
        self._pending = False
        self._heard: TorchCall | None = None
        self._called_at: dict[str, Any] | None = None

    # What leaves the graph.

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.every_function and not torch.is_grad_enabled():
            self._called_at = self.script.place()

    def function_ended(self, call: TorchCall) -> None:
        if call is self._heard:  # once by name, once as any other
            return
        self._heard = call
        name = call.name
        if self.every_function:
            if name in _READS:
                self._was_read(call)
            self._follow(call, name)
        if name in _SUMS:
            self._joins(call, name)

    def _follow(self, call: TorchCall, name: str) -> None:
        results = call.result if isinstance(call.result, (tuple, list)) else (call.result,)
        fresh = [item for item in results if isinstance(item, Tensor) and not item.requires_grad]
        if not fresh or name.endswith("_like") or name.startswith("new_") or name in _SHAPE_ONLY:
            return
        mark = self._mark_of(call, name)
        if mark is None:
            return
        given = {id(item) for item in _tensors(call)}
        for item in fresh:
            # What is written to in place may live on: a moving average, a buffer.
            if id(item) in given and (item.numel() > 1 or isinstance(item, nn.Parameter)):
                continue
            if item.numel() == 1 and name in _SOURCES and item.is_floating_point():
                mark = replace(mark, levels=read_levels(self.script.frames()), op=name)
            if len(self._marks) >= MOST_MARKS:
                self._marks.clear()
            self._marks[id(item)] = (weakref.ref(item), mark)

    def _mark_of(self, call: TorchCall, name: str) -> GraphCutMark | None:
        source = None
        for item in _tensors(call):
            mark = self._marked(item)
            if mark is not None:
                numbers = [other for other in call.args if isinstance(other, (int, float))]
                weighed = name in ("mul", "__mul__", "__rmul__", "div", "truediv") and numbers
                return replace(mark, weighed=True) if weighed else mark
            if source is None and self._trains(item):
                source = item
        if source is not None:
            if name == "__get__" and call.function != _DATA:
                return None
            if torch.is_grad_enabled():
                return GraphCutMark("data" if name == "__get__" else name, self.script.place())
            # The line that calls the model, not one inside it.
            return GraphCutMark(
                "no_grad", self._called_at if self.script.stack else self.script.place()
            )
        if name in _NEW and call.args and not isinstance(call.args[0], Tensor):
            return self._read_here()
        if name in _COMPARISONS and _compares_equal(call):
            return GraphCutMark(SAME, self.script.place())
        return None

    def _marked(self, item: Tensor) -> GraphCutMark | None:
        found = self._marks.get(id(item))
        return found[1] if found is not None and found[0]() is item else None

    def _trains(self, item: Tensor) -> bool:
        return item.grad_fn is not None or (item.requires_grad and id(item) in self._trained)

    def _was_read(self, call: TorchCall) -> None:
        tensor = call.args[0] if call.args else None
        if not isinstance(tensor, Tensor) or len(self._reads) >= MOST_READS:
            return
        mark = self._marked(tensor)
        if mark is None and self._trains(tensor):
            mark = GraphCutMark(call.name, self.script.place())
        if mark is not None:
            value = call.result if isinstance(call.result, float) else None
            place = self.script.place() or {}
            at = (str(place.get("file")), int(place.get("line") or 0))
            self._reads.append(NumberRead(mark, self._function(), at, value))

    def _read_here(self) -> GraphCutMark | None:
        """What was read in the function that makes a tensor of it now."""
        here = self._function()
        for read in reversed(self._reads):
            if here is not None and read.function == here:
                return read.mark
        return None

    def _function(self) -> tuple[str, str] | None:
        place = self.script.place()
        return None if place is None else (str(place["file"]), str(place["function"]))

    # What is added to a loss.

    def _joins(self, call: TorchCall, name: str) -> None:
        result = call.result
        if not isinstance(result, Tensor) or result.grad_fn is None:
            return
        given: Sequence[Any] = call.args[:2]
        if name in ("stack", "cat"):
            given = call.argument(0, "tensors") or ()
            if not isinstance(given, (list, tuple)) or len(given) > 64:
                return
        elif result.numel() != 1:
            return
        for at, item in enumerate(given):
            if not _is_number(item) or (name in _MINUS and at == 0):
                continue
            value = float(item)
            mark = self._marked(item) if isinstance(item, Tensor) else None
            same = mark is not None and mark.cut == SAME
            if (value == 0 and not same) or value != value:
                continue
            place = self.script.place()
            key = (str(place), at, self._visits.setdefault((str(place), at), 0))
            self._visits[key[:2]] += 1
            self._join(result, key, item, value, minus=name in _MINUS)

    def _join(self, result: Tensor, key: Any, item: Any, value: float, *, minus: bool) -> None:
        if len(self._sites) >= 256 and key not in self._sites:
            return
        site = self._sites.setdefault(key, GraphlessTermSite(first=self.script.step))
        if site.reported:
            return
        site.values = [*site.values[-15:], value]
        if not self.every_function:
            if site.moves() and site.watched < MOST_STEPS:
                self._until = max(self._until, self.script.step + 1 + AGAIN)
            return
        site.watched += 1
        if isinstance(item, Tensor):
            mark = self._marked(item)
        else:
            mark = self._of_number(value, key[1])
        if mark is None or (minus and not mark.weighed):
            return
        if mark.cut == SAME and max(map(abs, site.values)) > NO_DIFFERENCE:
            return
        site.mark = mark
        waiting = take_note(result.grad_fn, SEEN) or []
        self._pending |= add_note(result, SEEN, [*waiting, key])

    def _of_number(self, value: float, position: int) -> GraphCutMark | None:
        """Where a plain number was read: it is the same, or its own lines have read something."""
        for read in reversed(self._reads):
            if read.value is not None and read.value == value:
                return read.mark
        stack = read_levels(self.script.frames())
        if not self._reads or not stack:
            return None
        behind = find_number_lines(stack[0], position)
        for read in self._reads:
            file, line = read.at
            if file == stack[0].file and any(first <= line <= last for first, last in behind):
                return replace(read.mark, levels=read.mark.levels or stack[:1])
        return None

    # Which of it is trained on.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._pending:
            self._pending = False
            for root in roots:
                for node in find_sums(root.grad_fn):
                    for key in take_note(node, SEEN) or ():
                        self._sites[key].steps += 1
                        self._report(self._sites[key], SURE)
        self._marks.clear()
        self._reads.clear()
        self._visits.clear()

    def step_ended(self, optimizer: Optimizer) -> None:
        self.every_function = self.script.step < self._until
        if self.every_function:
            self._trained = {
                id(p)
                for item in self.script.optimizers
                for group in item.param_groups
                for p in group["params"]
            }
        self._marks.clear()
        self._reads.clear()

    def finished(self) -> None:
        for site in self._sites.values():
            self._report(site, AT_THE_END)

    def _report(self, site: GraphlessTermSite, enough: int) -> None:
        mark = site.mark
        same = mark is not None and mark.cut == SAME
        if site.reported or mark is None or site.steps < enough or not (same or site.moves()):
            return
        site.reported = True
        name = "term"
        if mark.levels:
            scalar = Scalar(None, torch.empty(0), mark.op, mark.levels, True)
            name = choose_names([[scalar]])[0]
        self.evidence.record(
            TOPIC,
            {
                "kind": "same" if same else "detached",
                "name": name,
                "steps": site.steps,
                "first_step": site.first,
                "place": mark.place,
                **({} if same else {"cut": mark.cut}),
            },
        )


EQUAL_STEPS = 6
"""Steps for which both sides must be equal, from the first on."""


@dataclass(slots=True)
class EqualSite:
    """One line that compares two values of the model."""

    first: int
    levels: tuple[SourceLevel, ...]
    place: dict[str, Any] | None
    last: int = -1
    steps: int = 0


class EqualSides(Observer):
    """Observes comparisons with a graph whose sides are equal in every step: a picture that was not
    flipped, an output that was given twice."""

    functions = find_aliases(*_COMPARISONS)

    def start(self) -> None:
        self._sites: dict[str, EqualSite | None] = {}
        """By line; None where the sides have differed, or a finding was made."""

    def function_ended(self, call: TorchCall) -> None:
        if not isinstance(call.result, Tensor) or not call.result.requires_grad:
            return
        place = self.script.place()
        key, step = str(place), self.script.step
        site = self._sites.get(key)
        if key in self._sites and site is None:
            return
        if len(self._sites) >= MOST_READS or not _compares_equal(call):
            self._sites[key] = None
            return
        if site is None:
            site = EqualSite(step, read_levels(self.script.frames()), place)
            self._sites[key] = site
        site.steps += site.last != step
        site.last = step
        if site.steps < EQUAL_STEPS:
            return
        self._sites[key] = None
        scalar = Scalar(None, torch.empty(0), call.name, site.levels, True)
        facts = {"kind": "equal", "name": choose_names([[scalar]])[0], "steps": site.steps}
        self.evidence.record(TOPIC, facts | {"first_step": site.first, "place": site.place})


def _compares_equal(call: TorchCall) -> bool:
    """Whether a loss of two tensors is 0 although neither of them is."""
    left, right = call.argument(0, "input"), call.argument(1, "target")
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.numel() < 2:
        return False
    value = float(call.result.detach().abs().max())
    moves = (float(item.detach().float().std()) > 1e3 * NO_DIFFERENCE for item in (left, right))
    return value <= NO_DIFFERENCE and all(moves)


def _is_number(item: Any) -> bool:
    if isinstance(item, Tensor):
        return not item.requires_grad and item.numel() == 1 and item.is_floating_point()
    return isinstance(item, (int, float)) and not isinstance(item, bool)


def _tensors(call: TorchCall) -> Iterator[Tensor]:
    for item in (*call.args, *call.kwargs.values()):
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from (inner for inner in item if isinstance(inner, Tensor))
