"""How often a learning-rate schedule is stepped, and where its rate will be by the end."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from headway.engine import PLACES
from headway.preflight.observer import Observer
from headway.preflight.script_context import observe_method
from headway.preflight.source_lines import called_name, find_line, parse_file
from headway.torch_adapters.frames import describe_frame, is_installed_file

TOPIC = "schedule"
LOOKS = (3, 8, 20)
"""Steps of a schedule after which it is reported."""
COLLAPSED = 1e-3
_COUNT = re.compile(r"^(n|num|max|total)?_?(of_)?epochs?(_?(num|max|total|count))?$", re.I)
_CONFIGS = ("namespace", "config", "cfg", "args", "opt", "param", "setting")
_FARTHEST = 1_000_000
INTERVAL = r"""["']interval["']\s*:\s*["']step|interval\s*=\s*["']step"""
"""How a framework is asked to step a schedule with every batch."""
UPWARDS = re.compile(
    r"(^|_)(acc|accuracy|auc|auroc|f1|iou|miou|dice|psnr|ssim|bleu|rouge|r2|recall|precision)"
    r"(_|\d|$)",
    re.I,
)
"""Names of metrics that are to grow …"""
DOWNWARDS = re.compile(r"(^|_)(loss|error|err|mse|mae|rmse|wer|cer|perplexity|ppl|nll)(_|$)", re.I)
"""… and of those that are to fall."""
ENOUGH_METRICS = 3
RESTS = 20
"""First steps with a rate of 0: a warm-up has one of them."""
SETS_RATE = r"""\[["']lr["']\]\s*[*/]?=[^=]"""
"""A rate that is set by hand."""


class Schedules(Observer):
    """Counts a schedule's steps, those of its optimizer, and the batches drawn."""

    def start(self) -> None:
        self._batches = 0
        self._passes = 0
        self._drawn_length: int | None = None
        self._pass_length: int | None = None
        """Of the loader whose batch was drawn last before a step: validation has its own."""
        self._inside = 0
        self._seen: dict[int, dict[str, Any]] = {}
        self._made: dict[int, Any] = {}
        self._rates: dict[int, float] = {}
        self._noted = False
        self._steps: dict[int, int] = {}
        self._metrics: dict[int, list[float]] = {}
        self._resting: dict[int, int] = {}
        """Steps of each optimizer so far, if all of its rates were 0 in all of them."""
        self._schedule_of: dict[int, tuple[str, Any]] = {}
        """The class of an optimizer's schedule, and the line that makes it."""
        kinds = [lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau]
        kinds += [
            kind
            for kind in (
                lr_scheduler.CosineAnnealingWarmRestarts,
                lr_scheduler.SequentialLR,
                lr_scheduler.ChainedScheduler,
            )
            if "step" in vars(kind)
        ]
        for base in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau):  # one each
            observe_method(self.script, base, "__init__", after=self._schedule_made)
        for kind in kinds:
            observe_method(self.script, kind, "step", before=self._begins, after=self._stepped)

    def _schedule_made(self, result: Any, schedule: Any, *_: Any, **__: Any) -> None:
        self._made[id(schedule)] = self.script.place()
        made = (type(schedule).__name__, self._constructed_at(schedule))
        self._schedule_of[id(getattr(schedule, "optimizer", None))] = made

    def _constructed_at(self, schedule: Any) -> dict[str, Any] | None:
        """The user's line outside of the schedule's own methods."""
        for frame in self.script.frames():
            code = frame.f_code
            own = code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is schedule
            if not own and not is_installed_file(code.co_filename):
                return describe_frame(frame).to_dict()
        return self.script.place()

    def step_begins(self, optimizer: Optimizer) -> None:
        if self._noted or self._seen or not optimizer.param_groups:
            return
        rate = optimizer.param_groups[0].get("lr")
        before = self._rates.get(id(optimizer))
        if isinstance(rate, (int, float)):
            self._rates[id(optimizer)] = float(rate)
            if before is not None and before != rate:  # and no schedule has stepped
                place = find_line(self.script, SETS_RATE)
                if place is not None:
                    self._note_place(place)

    def pass_begun(self, loader: Any) -> None:
        self._passes += 1

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._batches += 1
        try:
            self._drawn_length = len(loader)
        except TypeError:
            self._drawn_length = None

    def step_ended(self, optimizer: Optimizer) -> None:
        self._pass_length = self._drawn_length
        self._count_rest(optimizer)
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1

    def _count_rest(self, optimizer: Optimizer) -> None:
        """Tell of a rate that is 0 from the first step on."""
        count = self._steps.get(id(optimizer), 0)
        if self._resting.get(id(optimizer), 0) < count or count >= RESTS:
            return
        rates = [group.get("lr") for group in optimizer.param_groups]
        if not rates or not all(isinstance(rate, (int, float)) and rate == 0 for rate in rates):
            return
        self._resting[id(optimizer)] = count + 1
        if count + 1 == RESTS:
            name, place = self._schedule_of.get(id(optimizer), (None, None))
            facts: dict[str, Any] = {"schedule": name, "resting": RESTS, "place": place}
            self.evidence.record(TOPIC, facts)

    def _begins(self, schedule: Any, *args: Any, **kwargs: Any) -> None:
        self._inside += 1  # a sequence steps its parts

    def _stepped(self, result: Any, schedule: Any, *args: Any, **kwargs: Any) -> None:
        self._inside -= 1
        if self._inside > 0:
            return
        made = self._steps.get(id(getattr(schedule, "optimizer", None)), 0)
        if made == 0:
            return  # its own first step, when it is made
        if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
            self._judge_metric(schedule, args[0] if args else kwargs.get("metrics"))
        seen = self._seen.setdefault(id(schedule), {"keep": schedule, "steps": 0})
        seen["steps"] += 1
        if seen["steps"] in LOOKS:
            self._report(schedule, seen["steps"], made)

    def _judge_metric(self, schedule: Any, metric: Any) -> None:
        """Tell of a plateau that waits for the wrong direction of a metric that improves."""
        known = self._metrics.setdefault(id(schedule), [])
        if len(known) >= ENOUGH_METRICS or not self.script.users_own_call():
            return
        try:
            known.append(float(metric))
        except (TypeError, ValueError):
            return
        name = _metric_name(self.script.place())
        if len(known) < ENOUGH_METRICS or name is None:
            return
        up, down = UPWARDS.search(name), DOWNWARDS.search(name)
        wrong = (up and not down) if schedule.mode == "min" else (down and not up)
        improved = known[-1] > known[0] if schedule.mode == "min" else known[-1] < known[0]
        if wrong and improved:
            facts = {"schedule": type(schedule).__name__, "metric": name, "mode": schedule.mode}
            values = {"metric_from": known[0], "metric_to": known[-1]}
            made = self._made.get(id(schedule)) or self.script.place()
            self.evidence.record(TOPIC, facts | values | {"place": made})

    def _report(self, schedule: Any, steps: int, optimizer_steps: int) -> None:
        facts: dict[str, Any] = {
            "schedule": type(schedule).__name__,
            "steps": steps,
            "optimizer_steps": optimizer_steps,
            "batches": self._batches,
        }
        if self._pass_length:
            facts["pass_length"] = self._pass_length
        epochs = self._epochs()
        if epochs is not None:
            facts["epochs"] = epochs
        horizon = _horizon(schedule)
        if horizon is not None:
            facts["horizon_name"], facts["horizon"] = horizon
        collapse = _collapse(schedule)
        if collapse is not None:
            facts["collapses_after"] = collapse
        place = self._stepped_at(schedule)
        if place is not None:
            facts["place"] = place
            self._note_place(place)
        self.evidence.record(TOPIC, facts)

    def _stepped_at(self, schedule: Any) -> dict[str, Any] | None:
        """The user's line that steps it; where a framework does, the line that asked for that."""
        if self.script.users_own_call():
            return self.script.place()
        asked = find_line(self.script, INTERVAL)
        return asked or self._made.get(id(schedule)) or self.script.place()

    def _note_place(self, place: dict[str, Any]) -> None:
        if not self._noted:
            self._noted = True
            self.evidence.record(PLACES, {"schedule": place})

    def _epochs(self) -> int | None:
        """How many epochs the script speaks of: a variable of that name."""
        for frame in self.script.frames():
            if is_installed_file(frame.f_code.co_filename):
                continue
            found = _named_count(frame)
            if found is not None:
                return found
        return None


def _metric_name(place: dict[str, Any] | None) -> str | None:
    """The variable in `scheduler.step(val_acc)` on this line; None for a computed value."""
    if place is None:
        return None
    for node in ast.walk(parse_file(str(place["file"]))):
        if not isinstance(node, ast.Call) or node.lineno != place["line"]:
            continue
        given = [*node.args, *(item.value for item in node.keywords)]
        if called_name(node) == "step" and len(given) == 1:
            last = given[0]
            if isinstance(last, ast.Subscript) and isinstance(last.slice, ast.Constant):
                return str(last.slice.value)
            return getattr(last, "id", None) or getattr(last, "attr", None)
    return None


def _named_count(frame: FrameType) -> int | None:
    """A whole number called `epochs` or the like, in a variable or in a configuration."""
    local = dict(frame.f_locals)
    if frame.f_code.co_argcount:  # a method's own object, whatever it is called
        local["self"] = local.get(frame.f_code.co_varnames[0])
    for names in (local, frame.f_globals):
        counts = [
            value
            for name, value in _named(dict(names), deep=2)
            if type(value) is int and value > 0 and _is_count(name)
        ]
        if counts:
            return max(counts)
    return None


def _named(names: dict[Any, Any], deep: int) -> Iterator[tuple[str, Any]]:
    """Names and values, also within `self`, configurations and dicts."""
    for name, value in list(names.items()):
        if not isinstance(name, str):
            continue
        yield name, value
        if not deep or len(names) > 500:
            continue
        about = f"{name} {type(value).__name__}".lower()
        if type(value) is dict and len(value) < 100:
            yield from _named(value, deep - 1)
        elif name == "self" or any(word in about for word in _CONFIGS):
            kept = getattr(value, "__dict__", None)
            if isinstance(kept, dict):
                own = kept if isinstance(value, type) else {**vars(type(value)), **kept}
                yield from _named(dict(own), deep - 1)


def _is_count(name: str) -> bool:
    return name.lower() != "epoch" and _COUNT.match(name) is not None


def _horizon(schedule: Any) -> tuple[str, int] | None:
    for name in ("T_max", "step_size", "total_iters", "total_steps", "T_0"):
        value = getattr(schedule, name, None)
        if type(value) is int:
            return name, value
    milestones = getattr(schedule, "milestones", None)
    if isinstance(milestones, dict) and milestones:
        return "milestones", max(milestones)
    return None


def _collapse(schedule: Any) -> int | None:
    """After how many steps its rate is a thousandth of the highest; None: never, or unknown."""
    kind = type(schedule)
    if kind is lr_scheduler.StepLR:
        drops = _drops(schedule.gamma)
        return None if drops is None else drops * schedule.step_size
    if kind is lr_scheduler.ExponentialLR:
        return _drops(schedule.gamma)
    if kind is lr_scheduler.MultiStepLR:
        drops = _drops(schedule.gamma)
        stones = sorted(schedule.milestones.elements())
        return stones[drops - 1] if drops is not None and drops <= len(stones) else None
    if kind is lr_scheduler.CosineAnnealingLR:
        low = max(getattr(schedule, "eta_min", 0.0), 0.0)
        high = max(schedule.base_lrs, default=0.0)
        return int(schedule.T_max) if high > 0 and low <= COLLAPSED * high else None
    if kind is lr_scheduler.PolynomialLR:
        return int(schedule.total_iters)
    if kind is lr_scheduler.LinearLR:
        low = schedule.end_factor <= COLLAPSED * schedule.start_factor
        return int(schedule.total_iters) if low else None
    return None


def _drops(gamma: float) -> int | None:
    if not 0 < gamma < 1:
        return None
    drops = math.ceil(math.log(COLLAPSED) / math.log(gamma) - 1e-9)
    return drops if drops < _FARTHEST else None
