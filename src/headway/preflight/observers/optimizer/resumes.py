"""Training that is resumed: with which weights, with which moments, at which rate.

An optimizer that makes its first step is compared with the one that moved these weights before, in
this process or as a checkpoint tells of it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from headway.preflight.observer import Observer
from headway.preflight.observers.optimizer.schedule_resumes import LoadedFile
from headway.preflight.observers.optimizer.schedules import SETS_RATE
from headway.preflight.script_context import observe_method
from headway.preflight.source_lines import find_line

TOPIC = "resume"
_HYPER = ("lr", "initial_lr", "betas", "momentum", "weight_decay", "eps", "alpha")
ENOUGH = 3
"""Steps before which there is nothing to lose."""
WATCHED = 4
"""Steps after a loading whose rates are looked at together."""
JUMP = 2.0


class Resumes(Observer):
    """Follows weights, moments and rates through saving, loading and re-creation."""

    def start(self) -> None:
        self._lives: dict[int, dict[str, Any]] = {}
        self._files: list[dict[str, Any]] = []
        self._loaded_models: list[tuple[weakref.ref[nn.Module], dict[str, Any]]] = []
        self._data: int | None = None
        self._latest: dict[str, Any] | None = None
        self._saved: dict[str, tuple[dict[str, Any], int]] = {}
        """By file: the optimizer that had moved the weights, and its steps at the time."""
        observe_method(self.script, torch, "save", after=self._file_saved)
        observe_method(self.script, torch, "load", after=self._file_loaded)
        observe_method(self.script, lr_scheduler.LRScheduler, "__init__", after=self._schedule_made)
        for kind in list(vars(lr_scheduler).values()):
            schedule = isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)
            if schedule and "load_state_dict" in vars(kind):
                observe_method(self.script, kind, "load_state_dict", after=self._schedule_loaded)

    # What is loaded and built.

    def _file_saved(self, result: Any, what: Any, file: Any = None, *_: Any, **__: Any) -> None:
        if self._latest is not None and isinstance(file, (str, os.PathLike)):
            self._saved[os.path.abspath(file)] = (self._latest, self._latest["steps"])

    def _file_loaded(self, result: Any, file: Any = None, *args: Any, **kwargs: Any) -> None:
        found = LoadedFile.of(result)
        writer, steps = self._written_by(file)
        ended = writer is None or writer["steps"] == steps
        self._files.append(
            {
                "file": os.path.basename(str(file)) if isinstance(file, (str, os.PathLike)) else "",
                "states": found.optimizers,
                "written_by": writer,
                "tensors": found.tensors,
                "used": False,
                "model_used": False,
                "a_model": ended and _weights_alone(result),
            }
        )
        del self._files[:-8]

    def _written_by(self, file: Any) -> tuple[dict[str, Any] | None, int]:
        """The optimizer that had moved the weights when this process wrote the file."""
        known = isinstance(file, (str, os.PathLike))
        return self._saved.get(os.path.abspath(file), (None, 0)) if known else (None, 0)

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        if isinstance(owner, Optimizer):
            life = self._life(owner)
            life["restored"] = bool(_moments_in(state))
            life["loaded_rates"] = _rates(owner)
            life["loaded_initial"] = [group.get("initial_lr") for group in owner.param_groups]
            life["schedule_after_load"] = None
            for known in self._files:
                known["used"] = known["used"] or any(state is item for item in known["states"])
        elif isinstance(owner, nn.Module) and isinstance(state, Mapping):
            place = self.script.place()
            given = {id(value) for value in state.values() if isinstance(value, Tensor)}
            source = None
            for known in self._files:
                if given & known["tensors"]:
                    known["model_used"] = True
                    source = known
            loaded = {"place": place, "file": source, "same_as_last": self._as_left(state)}
            self._loaded_models.append((weakref.ref(owner), loaded))
            del self._loaded_models[:-8]

    def _schedule_made(
        self, result: Any, schedule: Any, optimizer: Any = None, *_: Any, **__: Any
    ) -> None:
        owner = getattr(schedule, "optimizer", optimizer)
        if isinstance(owner, Optimizer):
            life = self._life(owner)
            if life.get("loaded_rates") and life["steps"] == 0:
                life["schedule_after_load"] = self.script.place()
                life["schedule"] = schedule

    def _schedule_loaded(self, result: Any, schedule: Any, *_: Any, **__: Any) -> None:
        owner = getattr(schedule, "optimizer", None)
        if isinstance(owner, Optimizer):
            self._life(owner)["schedule_restored"] = True

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._life(optimizer)["place"] = self.script.place()

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._data = id(getattr(loader, "dataset", loader))

    # The first step of each optimizer, and what it leaves behind.

    def step_begins(self, optimizer: Optimizer) -> None:
        life = self._life(optimizer)
        if life["steps"] == 0:
            life["fresh"] = not _moments_in({"state": optimizer.state})
            life["rates"] = _rates(optimizer)
            first = next(iter(_held(optimizer)), None)
            life["as_found"] = None if first is None else _sample(first)

        self._follow_rate(optimizer, life)

    def _follow_rate(self, optimizer: Optimizer, life: dict[str, Any]) -> None:
        """A schedule made by hand, or made before the state was loaded, may restart too."""
        rate = _first(_rates(optimizer))
        course: list[float] = life["course"]
        if rate is None:
            return
        if course and rate > 1.5 * course[-1] and course[-1] < course[0]:
            life["cyclic"] = True
        course.append(rate)
        del course[1:-WATCHED]
        loaded = _first(life.get("loaded_rates") or [])
        excused = life.get("schedule_restored") or life.get("schedule_after_load")
        if loaded is None or excused or life["steps"] != WATCHED - 1 or not life.get("restored"):
            return
        cyclic = any(other.get("cyclic") for other in self._lives.values())
        begun = None if cyclic else _starts_over(loaded, course)
        if begun is not None:
            self.evidence.record(
                TOPIC,
                {
                    "optimizer": type(optimizer).__name__,
                    "rate": begun,
                    "restored_rate": loaded,
                    "rate_by_schedule": True,
                    "place": find_line(self.script, SETS_RATE) or life.get("place"),
                },
            )

    def step_ended(self, optimizer: Optimizer) -> None:
        life = self._life(optimizer)
        life["steps"] += 1
        if life["steps"] == 1:
            life["stateful"] = _keeps_moments(optimizer)
            self._compare(optimizer, life)
        life["rates_now"] = _rates(optimizer)
        life["data"] = self._data
        self._latest = life
        first = next(iter(_held(optimizer)), None)
        if first is not None:
            life["as_left"] = _sample(first)

    def _compare(self, optimizer: Optimizer, life: dict[str, Any]) -> None:
        facts: dict[str, Any] = {
            "optimizer": type(optimizer).__name__,
            "fresh": bool(life["fresh"]),
            "stateful": bool(life["stateful"]),
            "rate": _first(life["rates"]),
        }
        evidence = self._went_before(optimizer, life)
        if evidence is not None:
            facts |= evidence
        if life.get("loaded_rates"):
            facts["restored_rate"] = _first(life["loaded_rates"])
            facts["rate_by_schedule"] = life.get("schedule_after_load") is not None
            facts["schedule_restored"] = bool(life.get("schedule_restored"))
            facts["restarted"] = _is_restarted(life)
        place = life.get("schedule_after_load") or facts.get("place") or life.get("place")
        if place is not None:
            facts["place"] = place
        self.evidence.record(TOPIC, facts)

    def _went_before(self, optimizer: Optimizer, life: dict[str, Any]) -> dict[str, Any] | None:
        held = _held(optimizer)
        mine = {id(p) for p in held}
        by_file = self._from_file(optimizer, mine)
        earlier = [
            other
            for key, other in self._lives.items()
            if key != id(optimizer) and other["steps"] >= ENOUGH
        ]
        for other in reversed(earlier):
            # Another data set is a new task, restarted on purpose.
            same_task = other.get("data") == self._data
            same = same_task and bool(mine & other["ids"]) and _unmoved(other, life)
            again = any(
                loaded["same_as_last"] is other
                or (loaded["file"] is not None and loaded["file"]["written_by"] is other)
                for model, loaded in self._loaded_models
                if not (loaded["file"] or {}).get("a_model")
                and (m := model()) is not None
                and any(id(p) in mine for p in m.parameters())
            )
            if (same and mine == other["ids"]) or (again and other["shapes"] == life["shapes"]):
                return {
                    "before": other["kind"],
                    "before_steps": other["steps"],
                    "before_rate": _first(other.get("rates_now") or []),
                    "same_settings": other["settings"] == life["settings"],
                    "same_objects": same,
                    "loaded": again,
                }
        return by_file

    def _from_file(self, optimizer: Optimizer, mine: set[int]) -> dict[str, Any] | None:
        """What a checkpoint says whose weights these are."""
        for model, loaded in self._loaded_models:
            owner, file = model(), loaded["file"]
            if owner is None or file is None or not any(id(p) in mine for p in owner.parameters()):
                continue
            for state in file["states"]:
                return {
                    "checkpoint": file["file"],
                    "checkpoint_moments": bool(_moments_in(state)),
                    "checkpoint_used": bool(file["used"]),
                    "same_settings": _same_settings(state, optimizer),
                    "before_rate": _saved_rate(state),
                    "loaded": True,
                    "place": loaded["place"],
                }
        return None

    def _as_left(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """The optimizer that left weights exactly as they are in this state."""
        given = [value for value in list(state.values())[:64] if isinstance(value, Tensor)]
        lives: list[dict[str, Any]] = list(self._lives.values())
        for life in reversed(lives):
            left = life.get("as_left")
            if life["steps"] < ENOUGH or left is None:
                continue
            if any(_same(left, _sample(value)) for value in given if _fits(life, value)):
                found: dict[str, Any] = life
                return found
        return None

    def _life(self, optimizer: Optimizer) -> dict[str, Any]:
        if id(optimizer) not in self._lives:
            held = _held(optimizer)
            self._lives[id(optimizer)] = {
                "keep": optimizer,  # so that no identity is given twice
                "kind": type(optimizer).__name__,
                "steps": 0,
                "course": [],
                "ids": {id(p) for p in held},
                "shapes": [tuple(p.shape) for p in held],
                "settings": _settings(optimizer),
                "place": None,
            }
        return self._lives[id(optimizer)]


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def _starts_over(loaded: float, course: list[float]) -> float | None:
    """The rate to which a schedule was reset: far above the loaded one, falling step by step."""
    for at, rate in enumerate(course[:2]):
        rest = course[at:]
        falls = all(later < earlier for earlier, later in pairwise(rest))
        if loaded > 0 and rate >= JUMP * loaded and len(rest) > 2 and falls:
            return rate
    return None


def _is_restarted(life: Mapping[str, Any]) -> bool:
    """Whether the schedule of the checkpoint begins again: the same base rates, at its first
    position."""
    schedule = life.get("schedule")
    position = getattr(schedule, "last_epoch", None)
    base = getattr(schedule, "base_lrs", None)
    return isinstance(position, int) and position <= 1 and base == life.get("loaded_initial")


def _first(rates: list[float]) -> float | None:
    return rates[0] if rates else None


def _settings(optimizer: Optimizer) -> dict[str, Any]:
    defaults = {key: value for key, value in optimizer.defaults.items() if key in _HYPER}
    return {"kind": type(optimizer).__name__, **{k: _plain(v) for k, v in defaults.items()}}


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) else value


def _same_settings(state: Mapping[str, Any], optimizer: Optimizer) -> bool:
    groups = state.get("param_groups") or []
    own = optimizer.param_groups
    if len(groups) != len(own):
        return False
    for saved, group in zip(groups, own, strict=True):
        if len(saved.get("params", ())) != len(group["params"]):
            return False
        for key in ("betas", "momentum", "weight_decay", "eps", "alpha"):
            if saved.get(key) != group.get(key):
                return False
        rates = {saved.get("lr"), saved.get("initial_lr")} - {None}
        if not rates & {group.get("lr"), group.get("initial_lr"), optimizer.defaults.get("lr")}:
            return False
    return True


def _saved_rate(state: Mapping[str, Any]) -> float | None:
    for group in state.get("param_groups") or []:
        rate = group.get("lr")
        if isinstance(rate, (int, float)):
            return float(rate)
    return None


def _weights_alone(loaded: Any) -> bool:
    """Weights of a training that has ended, and nothing else: a model to begin with."""
    return isinstance(loaded, Mapping) and all(isinstance(v, Tensor) for v in loaded.values())


def _moments_in(state: Any) -> bool:
    entries = state.get("state") if isinstance(state, Mapping) else None
    if not isinstance(entries, Mapping):
        return False
    return any(
        isinstance(value, Tensor) and value.numel() > 1
        for entry in list(entries.values())[:64]
        if isinstance(entry, Mapping)
        for value in entry.values()
    ) or any(
        isinstance(entry, Mapping) and any(isinstance(v, Tensor) for v in entry.values())
        for entry in list(entries.values())[:64]
    )


def _keeps_moments(optimizer: Optimizer) -> bool:
    for parameter in _held(optimizer):
        entry = optimizer.state.get(parameter)
        if isinstance(entry, dict) and any(
            isinstance(value, Tensor) and value.shape == parameter.shape and value.numel() > 1
            for value in entry.values()
        ):
            return True
    return False


@torch.no_grad()
def _sample(tensor: Tensor) -> Tensor:
    """A few of its numbers: equal for equal weights, and next to never for others."""
    return tensor.detach().reshape(-1)[:8].clone()


def _same(one: Tensor, other: Tensor) -> bool:
    alike = one.shape == other.shape and one.dtype == other.dtype and one.is_floating_point()
    return alike and one.device.type != "meta" and torch.equal(one.cpu(), other.cpu())


def _unmoved(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether no other weights were loaded in between (another task's, the best ones)."""
    left, found = before.get("as_left"), now.get("as_found")
    return left is not None and found is not None and _same(left, found)


def _fits(life: Mapping[str, Any], value: Tensor) -> bool:
    return bool(life["shapes"]) and tuple(value.shape) == life["shapes"][0]
