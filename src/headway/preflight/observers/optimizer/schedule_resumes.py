"""The position of a learning-rate schedule at the first update after a resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from headway.preflight.observer import Observer
from headway.preflight.script_context import observe_method

TOPIC = "schedule-resume"
DEEPEST = 3
"""Levels of a checkpoint in which the state of a schedule is looked for."""
MOST_FILES = 8


@dataclass(slots=True)
class FollowedSchedule:
    """A schedule between its creation or loading and the next update."""

    schedule: Any
    made_at: dict[str, Any] | None
    restored: bool = False
    saved_at: int | None = None
    advanced: int = 0
    """Calls of `step` since then."""
    advanced_at: dict[str, Any] | None = None


@dataclass(slots=True)
class LoadedFile:
    """The optimizers and schedules in a file that was loaded."""

    optimizers: list[Any]
    schedules: list[Mapping[str, Any]]
    tensors: set[int]
    """The tensors in its tables."""
    continued: bool = False
    """Whether a model has loaded some of them."""

    @classmethod
    def of(cls, loaded: Any) -> LoadedFile:
        """What `torch.load` has returned."""
        tables = list(_tables(loaded))
        return cls(
            [table for table in tables if {"param_groups", "state"} <= table.keys()],
            [table for table in tables if {"last_epoch", "base_lrs"} <= table.keys()],
            {id(v) for table in tables for v in table.values() if isinstance(v, Tensor)},
        )


class ScheduleResumes(Observer):
    """Counts how often a schedule is advanced between a resume and the next update."""

    def start(self) -> None:
        self._schedules: dict[int, FollowedSchedule] = {}
        self._loaded: dict[int, tuple[Optimizer, float | None, LoadedFile | None]] = {}
        """Optimizers whose state was loaded, until their next step: rate, and the file."""
        self._files: list[LoadedFile] = []
        self._making = 0
        base = lr_scheduler.LRScheduler
        observe_method(self.script, torch, "load", after=self._file_loaded)
        observe_method(self.script, base, "__init__", before=self._makes, after=self._made)
        observe_method(self.script, base, "load_state_dict", after=self._schedule_loaded)
        observe_method(self.script, base, "step", after=self._advanced)
        kind = lr_scheduler.LambdaLR
        observe_method(self.script, kind, "load_state_dict", after=self._schedule_loaded)

    def _file_loaded(self, result: Any, *_: Any, **__: Any) -> None:
        file = LoadedFile.of(result)
        if file.optimizers or file.schedules:
            self._files = [*self._files[1 - MOST_FILES :], file]

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        if isinstance(owner, Optimizer):
            files = (f for f in self._files if any(state is item for item in f.optimizers))
            self._loaded[id(owner)] = (owner, _rate(owner), next(files, None))
            for followed in self._schedules.values():
                if followed.schedule.optimizer is owner:
                    followed.advanced = 0
        elif isinstance(owner, nn.Module) and isinstance(state, Mapping):
            given = {id(value) for value in state.values()}
            for file in self._files:
                file.continued = file.continued or not given.isdisjoint(file.tensors)

    def _makes(self, *_: Any, **__: Any) -> None:
        self._making += 1

    def _made(self, result: Any, schedule: Any, *_: Any, **__: Any) -> None:
        self._making -= 1
        self._schedules[id(schedule)] = FollowedSchedule(schedule, self.script.place())

    def _schedule_loaded(self, result: Any, schedule: Any, state: Any = None, **_: Any) -> None:
        followed = self._schedules.get(id(schedule))
        saved = state.get("last_epoch") if isinstance(state, Mapping) else None
        if followed is not None and type(saved) is int:
            followed.restored, followed.saved_at, followed.advanced = True, saved, 0

    def _advanced(self, result: Any, schedule: Any, *_: Any, **__: Any) -> None:
        followed = self._schedules.get(id(schedule))
        if followed is None or self._making:
            return
        followed.advanced += 1
        if followed.restored or id(schedule.optimizer) in self._loaded:
            followed.advanced_at = self.script.place()

    def step_begins(self, optimizer: Optimizer) -> None:
        _, rate, file = self._loaded.pop(id(optimizer), (None, None, None))
        resumed = rate is not None
        for followed in self._schedules.values():
            if followed.schedule.optimizer is not optimizer:
                continue
            if followed.restored or resumed:
                self._report(followed, optimizer, rate, file)
            followed.restored, followed.saved_at, followed.advanced = False, None, 0

    def _report(
        self,
        followed: FollowedSchedule,
        optimizer: Optimizer,
        restored_rate: float | None,
        file: LoadedFile | None,
    ) -> None:
        schedule = followed.schedule
        saved = followed.saved_at
        if not followed.restored and file is not None:
            saved = _saved_position(schedule, file)
        facts: dict[str, Any] = {
            "schedule": type(schedule).__name__,
            "stands_at": int(schedule.last_epoch),
            "advanced": followed.advanced,
            "restored": followed.restored,
            "continues": file is not None and file.continued,
            "rate": _rate(optimizer),
            "restored_rate": restored_rate,
        }
        own = _own_rate(schedule, optimizer)
        if own is not None:
            facts["own_rate"] = own
        if saved is not None:
            facts["saved_at"] = saved
        place = followed.advanced_at if followed.advanced > 1 else followed.made_at
        if place is not None:
            facts["place"] = place
        self.evidence.record(TOPIC, facts)


def _rate(optimizer: Optimizer) -> float | None:
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    return float(rate) if isinstance(rate, (int, float)) else None


def _own_rate(schedule: Any, optimizer: Optimizer) -> float | None:
    """The rate that the schedule last gave, if the saved run had a schedule of this base rate.

    `initial_lr` comes with the loaded state: a schedule was attached when it was saved.
    """
    began = optimizer.param_groups[0].get("initial_lr") if optimizer.param_groups else None
    bases = getattr(schedule, "base_lrs", None)
    if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) or not bases:
        return None
    try:
        given = schedule.get_last_lr()
    except AttributeError:  # it has not given any yet
        return None
    same = isinstance(began, (int, float)) and began == bases[0]
    return float(given[0]) if same and given and isinstance(given[0], (int, float)) else None


def _saved_position(schedule: Any, file: LoadedFile) -> int | None:
    """Where a schedule of this kind stood in the file; None if it has none or several."""
    own = schedule.state_dict().keys()
    found = [state["last_epoch"] for state in file.schedules if state.keys() == own]
    return found[0] if len(found) == 1 and type(found[0]) is int else None


def _tables(loaded: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if isinstance(loaded, Mapping):
        yield loaded
        inner = list(loaded.values())
    elif isinstance(loaded, (list, tuple)):
        inner = list(loaded)
    else:
        return
    if depth < DEEPEST and len(inner) < 1000:
        for item in inner:
            yield from _tables(item, depth + 1)
