"""Detects autograd graphs that outlive their step, and finds the line that created them.

A loss in a list, a sum of losses, a hidden state carried over: each retains the graph of its step,
so memory grows with every step. At every 25th step (and at the first ones) a token is attached to a
few nodes of the graph, with a weak reference here: it lives as long as the graph does, and keeps
nothing alive. Most steps cost nothing.

When the tokens of many steps are alive, autograd records for one step which line created which node
(anomaly mode, without the search for NaN, and never during backward). A few steps later the newest
node of that step that is still alive is what the user retains. The result is recorded as an event;
the check HD803 decides whether it is a fault.
"""

from __future__ import annotations

import gc
import linecache
import re
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.torch_adapters.autograd_graph import find_earliest_node, node_number, walk_graph
from headway.torch_adapters.frames import (
    Location,
    add_function_name,
    find_user_location,
    parse_traceback,
)
from headway.torch_adapters.live_objects import find_referrer

GRAPH_COUNT_INTERVAL = 25
"""Steps between two probes."""
AT_FIRST = 16
"""Number of first steps that are all probed, so that a short run shows it too."""
SUSPICIOUS = 6.0
"""Number of retained graphs that starts a trace. They may be intended."""
RESCAN_GROWTH = 64.0
"""Number of retained graphs at which the garbage collector runs again, at the latest."""
MAX_PROBES = 400
NEAR = 48
"""Number of nodes next to the loss that get the token."""
MAX_FORWARDS = 4
"""Maximum number of forwards of a step that are probed before a backward pass."""
AGE = 3
"""Steps after which a traced graph that is alive counts as retained."""
ATTEMPTS = 6
"""Maximum number of traced steps, where not every step's graph is retained."""
MAX_REPORTED = 4
"""Maximum number of searches in a run."""
_KEY, _LINE_KEY = "headway", "headway-line"

ReportEvent = Callable[[int, str, dict[str, Any]], None]


class _Token:
    """Attached to nodes; alive as long as one of them."""

    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


@dataclass(slots=True)
class _Probe:
    """The graph of one step, which represents the steps since the last probe."""

    step: int
    weight: int
    token: weakref.ref[_Token]


@dataclass(frozen=True, slots=True)
class _Made:
    """A node of a traced step, and the line that created it."""

    token: weakref.ref[_Token]
    number: int
    op: str
    place: Location | None


class GraphRetention:
    """Counts the retained graphs of one training."""

    def __init__(self, report: ReportEvent, every: int = GRAPH_COUNT_INTERVAL) -> None:
        """`report` is called with (step, kind of event, findings)."""
        self._report_event = report
        self._every = every
        self._probes: deque[_Probe] = deque(maxlen=MAX_PROBES)
        self._reading: float | None = None
        self._step = -1
        self._last_probe: int | None = None
        self._first = -1
        self._newest = self._before = self._long_before = -1
        """The number of the newest node: now, after the last step, and after the one before."""
        self._look_at = SUSPICIOUS
        self._left = MAX_REPORTED
        self._attempts = 0
        self._tracing = False
        self._traced: list[_Made] = []
        self._traced_step = -1
        self._reaches_back = False
        self._forwards = 0
        """Forwards of this step that got the token before a backward pass."""
        self.many = False
        """Whether the number of retained graphs alone explains growing memory."""

    def reading(self) -> float | None:
        """The number of retained graphs, if this step was a probe. Read once."""
        reading, self._reading = self._reading, None
        return reading

    def forward_over(self) -> None:
        """A backward pass is next."""
        if self._tracing:
            torch.set_anomaly_enabled(False)

    def backward_ended(self, step: int, roots: Sequence[Tensor]) -> None:
        """The gradients of these losses were computed for a step."""
        if self._first < 0:
            self._first = step
        if not self._attends(step):
            return
        self._watch(step, [root.grad_fn for root in roots if root.grad_fn is not None])
        if self._attempts:
            self._pursue(step)

    def forward_ended(self, step: int, outputs: Sequence[Tensor]) -> None:
        """A model returned these: their graph may be retained without a backward pass."""
        if self._first < 0 or not self._is_probe(step):
            return
        self._forwards = self._forwards + 1 if step == self._step else 1
        starts = [output.grad_fn for output in outputs if output.grad_fn is not None]
        if starts and self._forwards <= MAX_FORWARDS:
            self._watch(step, starts)

    def close(self) -> None:
        """Switch anomaly mode off."""
        self._attempts = 0
        self._trace_if(False)

    def _is_probe(self, step: int) -> bool:
        return step - self._first < AT_FIRST or step % self._every == 0

    def _attends(self, step: int) -> bool:
        """Whether this step matters: a probe needs the newest nodes of the two steps before it."""
        # Whether `_is_probe` holds for this step or one of the next two.
        return bool(self._attempts) or step - self._first < AT_FIRST or -step % self._every <= 2

    def _watch(self, step: int, starts: Sequence[Any]) -> None:
        if step != self._step:
            self._step = step
            self._before, self._long_before = self._newest, self._before
        for start in starts:
            self._newest = max(self._newest, node_number(start))
        if self._is_probe(step) and starts:
            self._probe(step, starts)

    def _probe(self, step: int, starts: Sequence[Any]) -> None:
        if step != self._last_probe:
            self._reading = self._count_suspiciously(step)
            self.many = self._reading >= RESCAN_GROWTH
            # The first represents itself alone: a guard may continue the steps of another.
            since = 1 if self._last_probe is None else max(step - self._last_probe, 1)
            self._probes.append(_Probe(step, since, _DEAD))
            self._last_probe = step
        if self._tracing and (not self._traced or step == self._traced_step):
            self._harvest(step, starts)
        probe = self._probes[-1]
        token = probe.token() or _Token(step)  # further backward passes of a step share it
        probe.token = weakref.ref(token)
        for start in starts:
            find_earliest_node(start, after=self._before).metadata[_KEY] = token
        for node in walk_graph(starts, after=self._before, most=NEAR):
            node.metadata.setdefault(_KEY, token)

    def _count(self, step: int) -> float:
        alive = [probe for probe in self._probes if probe.token() is not None]
        if len(alive) != len(self._probes):
            self._probes = deque(alive, maxlen=MAX_PROBES)
        kept = float(sum(probe.weight for probe in alive))
        if not alive or alive[-1].step != self._last_probe:
            return kept
        # If the last probe's graph is alive, the steps since then count like those before it.
        return kept * max(step - self._first, 1) / (alive[-1].step - self._first + 1)

    def _count_suspiciously(self, step: int) -> float:
        kept = self._count(step)
        if kept < SUSPICIOUS / 2:
            self._look_at = min(
                self._look_at, RESCAN_GROWTH
            )  # released: reported again if it returns
        if kept < self._look_at:
            return kept
        gc.collect()  # objects in a cycle only wait for the collector
        kept = self._count(step)
        if kept < SUSPICIOUS:
            self._look_at = min(2 * self._look_at, RESCAN_GROWTH)
        elif self._left > 0:
            self._left -= 1
            self._look_at = float("inf")
            self._attempts = ATTEMPTS
        return kept

    # Which line.

    def _pursue(self, step: int) -> None:
        """Trace all backward passes of one step; nodes that stay alive are counted later."""
        if self._traced and step - self._traced_step >= AGE:
            self._find_out(step)
        if self._traced:
            self._trace_if(step == self._traced_step)
        else:
            self._trace_if(self._attempts > 0 and self._is_probe(step + 1))

    def _trace_if(self, wanted: bool) -> None:
        """Switch the recording of lines on until the next backward, or off."""
        if wanted and (self._tracing or not torch.is_anomaly_enabled()):
            self._tracing = True
            torch.set_anomaly_enabled(True, check_nan=False)
        elif self._tracing:
            self._tracing = False
            torch.set_anomaly_enabled(False)

    def _harvest(self, step: int, starts: Sequence[Any]) -> None:
        """Read the line of each node, and give each node its own token."""
        self._traced_step = step
        for node in walk_graph(starts, after=self._before):
            if _LINE_KEY in node.metadata and not node.metadata.get("traceback_"):
                continue  # read when its forward ended
            lines = node.metadata.pop("traceback_", ())
            token = node.metadata[_LINE_KEY] = _Token(step)
            place = find_user_location(parse_traceback(lines))
            self._traced.append(
                _Made(weakref.ref(token), node_number(node), type(node).__name__, place)
            )
            self._reaches_back = self._reaches_back or any(
                self._is_carried(following) for following, _ in node.next_functions
            )

    def _is_carried(self, node: Any) -> bool:
        """Whether this part of a graph is from earlier steps, and not merely from the last one."""
        return (
            node is not None
            and node_number(node) <= self._before
            and node_number(find_earliest_node(node, after=-1)) <= self._long_before
        )

    def _find_out(self, step: int) -> None:
        if torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled():
            # A `detect_anomaly` block of the user found ours on, and has restored it since.
            torch.set_anomaly_enabled(False)
        traced, self._traced = self._traced, []
        alive = [made for made in traced if made.token() is not None]
        self._attempts = 0 if alive else self._attempts - 1
        if self._attempts == 0:
            self._report(step, max(alive, key=lambda made: made.number, default=None))
        self._reaches_back = False

    def _report(self, step: int, made: _Made | None) -> None:
        found: dict[str, Any] = {"kept": self._count(step), "carried": self._reaches_back}
        held = _RetainedTensors(step)
        holder = None if self._reaches_back else find_referrer(held)
        if holder is not None:
            found.update(holder=str(holder), bound=holder.bound)
            made = held.youngest(made)
        if made is not None:
            found["op"] = made.op
            if made.place is not None:
                found.update(made.place.to_dict())
                if holder is not None:
                    grown = _find_growing_line(made.place.file, holder.name)
                    if grown is not None:
                        found.update(keeps_line=grown.line, keeps_function=grown.function)
        self._report_event(step, "retained", found)


def _dead() -> weakref.ref[_Token]:
    return weakref.ref(_Token(-1))


_DEAD = _dead()


class _RetainedTensors:
    """The tensors that are retained, and the line of the newest one of a traced step.

    Only this finds what was computed from a model's output without a backward pass.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._made: list[_Made] = []

    def __call__(self, tensor: Tensor) -> bool:
        old = _is_old(tensor, self._step)
        node: Any = tensor.grad_fn
        if old and node is not None and (lines := node.metadata.pop("traceback_", None)):
            place = find_user_location(parse_traceback(lines))
            made = _Made(_DEAD, node_number(node), type(node).__name__, place)
            self._made.append(made)
        return old

    def youngest(self, known: _Made | None) -> _Made | None:
        """The newest of these and a known one."""
        all_made = self._made if known is None else [known, *self._made]
        return max(all_made, key=lambda made: made.number, default=None)


def _is_old(tensor: Tensor, step: int) -> bool:
    """Whether the graph of a tensor contains a token of an earlier step."""
    return any(
        token.step <= step - AGE
        for node in walk_graph([tensor.grad_fn], most=64)
        for key in (_KEY, _LINE_KEY)
        if (token := node.metadata.get(key)) is not None
    )


def _find_growing_line(file: str, name: str) -> Location | None:
    """The one line of a file that adds to a variable or attribute: `total += loss`,
    `losses.append(loss)`; None where there is none, or more than one."""
    last = re.escape(re.split(r"[.\[]", name)[-1] or name)
    grows = re.compile(
        rf"\b{last}\s*(\+=|\.(append|extend|add)\(|=\s*(\w+\.)?{last}\s*\+|\[.*\]\s*=[^=])"
    )
    found = [
        number
        for number, text in enumerate(linecache.getlines(file), start=1)
        if grows.search(text.partition("#")[0])
    ]
    return add_function_name(Location(file, found[0])) if len(found) == 1 else None
