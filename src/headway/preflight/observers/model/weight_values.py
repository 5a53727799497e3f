"""Where the values of weights come from: `load_state_dict`, in-place initialisation, and writes
between steps.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.core.facts import LISTED
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.script_context import observe_method
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.frames import current_frame, describe_frame, is_user_frame, walk_callers

# Which lines fill weights in place: `nn.init`, `normal_`, `copy_`, an assignment to `.data`.

# It reports nothing itself: other observers use `script.origins`.

FILLS = find_aliases("normal_", "uniform_", "zero_", "fill_", "copy_", "trunc_normal_", "ones_")
INITS = tuple(
    function
    for name, function in vars(nn.init).items()
    if name.endswith("_") and callable(function)
)
DATA = Tensor.data.__set__  # type: ignore[attr-defined]


class WeightFills(Observer):
    """Before the first step only: later writes are training."""

    functions = (*FILLS, *INITS, DATA)

    def function_ended(self, call: TorchCall) -> None:
        target = call.argument(0, "tensor")
        if self.script.step == 0 and isinstance(target, Tensor):
            self.script.origins.wrote(target)


# What `load_state_dict` really loaded, and whether it was still there when training went on.

LOADED_TOPIC = "weights-loaded"
PREFIXES = ("module.", "model.", "_orig_mod.", "net.", "backbone.", "encoder.", "state_dict.")
MOST_LOADED_ELEMENTS = 1 << 24
MOST_AT_A_LINE, MOST_LINES = 3, 20


class WeightLoading(Observer):
    """Compares keys when a state is loaded, and values before the next backward pass."""

    functions = (*FILLS, *INITS, DATA)

    def start(self) -> None:
        self._loads: list[dict[str, Any]] = []
        self._seen: dict[str, int] = {}
        self._written: dict[int, Any] = {}
        self._files = 0
        self._taken: dict[int, tuple[weakref.ref[Any], Any, int]] = {}
        """States that the script took: the line and the step."""
        observe_method(self.script, torch, "load", after=self._file_loaded)
        observe_method(self.script, nn.Module, "state_dict", after=self._state_taken)

    def _file_loaded(self, result: Any, *_: Any, **__: Any) -> None:
        self._files += 1

    def _state_taken(self, result: Any, *args: Any, **given: Any) -> None:
        # A module calls its children with the mapping that they are to fill.
        if len(args) > 1 or given.get("destination") is not None:
            return
        if isinstance(result, OrderedDict):  # a plain dict has no weak references
            known = {key: item for key, item in self._taken.items() if item[0]() is not None}
            known[id(result)] = (weakref.ref(result), self.script.place(), self.script.step)
            self._taken = known

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        if not isinstance(owner, nn.Module) or not isinstance(state, Mapping):
            return
        place = str(self.script.place())
        self._seen[place] = self._seen.get(place, 0) + 1
        if self._seen[place] > MOST_AT_A_LINE or len(self._seen) > MOST_LINES:
            return  # a target network is loaded again and again
        facts = self._facts(owner, state, result)
        self.evidence.record(LOADED_TOPIC, facts)
        matched = {n: p for n, p in owner.named_parameters() if n in state}
        self._remember(owner, matched, facts)

    def function_ended(self, call: TorchCall) -> None:
        if not self._loads:
            return
        target = call.argument(0, "tensor")
        if isinstance(target, Tensor) and len(self._written) < 10_000:
            self._written.setdefault(target.data_ptr(), self._calls())

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        for load in self._loads:
            self._compare(load)
        self._loads.clear()
        self._written.clear()

    def _facts(self, owner: nn.Module, state: Mapping[str, Any], result: Any) -> dict[str, Any]:
        own = dict(owner.named_parameters(remove_duplicate=False))
        given = {name: v for name, v in state.items() if isinstance(v, Tensor)}
        missing = [name for name in own if name not in given]
        known = own.keys() | {name for name, _ in owner.named_buffers(remove_duplicate=False)}
        unexpected = [name for name in given if name not in known]
        # A state that holds the model's own tensors brings nothing.
        mine = [
            name
            for name in own
            if name in given and given[name].data_ptr() == own[name].data_ptr() != 0
        ]
        facts: dict[str, Any] = {
            "model": type(owner).__name__,
            "elements": _elements(own.values()),
            "missing": missing[:LISTED],
            "missing_count": len(missing),
            "missing_elements": _elements(own[name] for name in missing),
            "unexpected": unexpected[:LISTED],
            "unexpected_count": len(unexpected),
            "unexpected_elements": _elements(given[name] for name in unexpected),
            "given_elements": _elements(given.values()),
            "own": len(mine),
            "own_elements": _elements(own[name] for name in mine),
            "parameters": len(own),
            "after_file": self._files > 0,
        }
        prefix = _prefix(missing, unexpected)
        if prefix is not None:
            facts["prefix"], facts["prefix_on"] = prefix
        place = self.script.place()
        if place is not None:
            facts["place"] = place
        reference, taken_at, taken_step = self._taken.get(id(state), (None, None, None))
        if reference is not None and reference() is state:
            facts |= {"taken_at": taken_at, "taken_step": taken_step}
        return facts

    @torch.no_grad()
    def _remember(
        self, owner: nn.Module, matched: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        mine = {id(p) for p in matched.values()}
        self._loads = [load for load in self._loads if not mine & set(load["kept"])]
        self._written = {}
        kept: dict[int, tuple[str, weakref.ref[Tensor], Tensor]] = {}
        elements = 0
        for name, parameter in matched.items():
            elements += parameter.numel()
            if elements > MOST_LOADED_ELEMENTS and kept:
                break
            kept[id(parameter)] = (name, weakref.ref(parameter), parameter.detach().clone())
        load = {"kept": kept, "place": facts.get("place"), "model": facts["model"]}
        self._loads.append({**load, "owner": weakref.ref(owner)})

    def _calls(self) -> list[dict[str, Any]]:
        """The user's lines that run now, the outermost first; down to the last `apply`, which is
        the one that means it."""
        lines: list[dict[str, Any]] = []
        for frame in walk_callers(current_frame(1)):
            if frame.f_code is nn.Module.apply.__code__:
                lines.clear()
            elif is_user_frame(frame):
                lines.insert(0, describe_frame(frame).to_dict())
        return lines

    @torch.no_grad()
    def _compare(self, load: Mapping[str, Any]) -> None:
        self._compare_rows(load)
        total = lost = 0
        names: list[str] = []
        writers: list[list[dict[str, Any]]] = []
        for name, ref, before in load["kept"].values():
            parameter = ref()
            if parameter is None:
                continue
            total += parameter.numel()
            if parameter.shape == before.shape and not _alike(parameter.detach(), before):
                lost += parameter.numel()
                names.append(name)
                writers += filter(None, [self._written.get(parameter.data_ptr())])
        if not total or not lost:
            return
        place = _common(writers)
        facts: dict[str, Any] = {
            "model": load["model"],
            "overwritten": names[:LISTED],
            "overwritten_count": len(names),
            "overwritten_elements": lost,
            "loaded_elements": total,
        }
        if place or load["place"]:
            facts["place"] = place or load["place"]
        if load["place"]:
            facts["loaded_at"] = load["place"]
        self.evidence.record(LOADED_TOPIC, facts)

    def _compare_rows(self, load: Mapping[str, Any]) -> None:
        """Report tables that were replaced by larger ones without their loaded rows."""
        owner = load["owner"]()
        own = {} if owner is None else dict(owner.named_parameters())
        for name, ref, before in load["kept"].values():
            now = own.get(name)
            if now is None or now is ref() or before.dim() < 2 or not _has_grown(now, before):
                continue
            tables = [p.detach() for p in own.values() if p.shape[1:] == before.shape[1:]]
            if any(_holds_rows(table, before) for table in tables):
                continue
            facts: dict[str, Any] = {
                "model": load["model"],
                "replaced": name,
                "rows": len(before),
                "rows_now": len(now),
            }
            module = owner.get_submodule(name.rpartition(".")[0])
            place, when = self.script.origins.registered(module)
            place = place if when else self.script.origins.of_parameter(now)
            facts |= {"place": place or load["place"], "loaded_at": load["place"]}
            self.evidence.record(LOADED_TOPIC, {k: v for k, v in facts.items() if v is not None})


MOST_GROWTH = 1.5
"""A head of many more rows is one for another task."""


def _has_grown(now: Tensor, before: Tensor) -> bool:
    same = now.shape[1:] == before.shape[1:]
    return same and len(before) < len(now) <= MOST_GROWTH * len(before)


def _holds_rows(table: Tensor, rows: Tensor) -> bool:
    """Whether at least half of the rows are in a table, at its beginning or anywhere."""
    count = min(len(table), len(rows))
    table, rows = table.float().flatten(1).cpu(), rows.float().flatten(1).cpu()
    if int((table[:count] == rows[:count]).all(1).sum()) * 2 >= len(rows):
        return True
    known = {row.numpy().tobytes() for row in table}
    return sum(row.numpy().tobytes() in known for row in rows) * 2 >= len(rows)


def _common(calls: Sequence[list[dict[str, Any]]]) -> dict[str, Any] | None:
    """The innermost line that all of these go through."""
    level = zip(*calls, strict=False)
    shared = [lines[0] for lines in level if all(line == lines[0] for line in lines)]
    return shared[-1] if shared else next((lines[-1] for lines in calls if lines), None)


def _elements(tensors: Any) -> int:
    return sum(item.numel() for item in tensors)


def _alike(now: Tensor, before: Tensor) -> bool:
    """Whether they are the same numbers, up to a change of precision."""
    if now.dtype == before.dtype and now.device == before.device:
        return torch.equal(now, before)
    return torch.allclose(now.float().cpu(), before.float().cpu(), rtol=1e-2, atol=1e-3)


def _prefix(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str] | None:
    """(a prefix that makes the names fit, whose it is: `state` or `model`)."""
    wanted, given = set(missing), set(unexpected)
    if not wanted or not given:
        return None
    heads = [*PREFIXES, *{name.partition(".")[0] + "." for name in (*missing, *unexpected)}]
    for prefix in dict.fromkeys(heads):
        stripped = {name.removeprefix(prefix) for name in given if name.startswith(prefix)}
        if len(stripped & wanted) * 2 > len(wanted):
            return prefix, "state"
        shorter = {name.removeprefix(prefix) for name in wanted if name.startswith(prefix)}
        if len(shorter & given) * 2 > len(given):
            return prefix, "model"
    return None


# Writes to frozen weights by the user's own code, between two steps.

MOST_ELEMENTS = 1 << 23
SAME_DIRECTION = 0.999
"""Cosine from which a change counts as parallel to another vector."""


class WritesBetweenSteps:
    """Frozen weights that the user's own code changes between two steps.

    A weight that moves towards another one is an average or a target network, and one that moves
    alone may be a codebook: both are meant. Decay is not, nor a write to all weights of a model.
    """

    def __init__(self) -> None:
        self.moved: list[Tensor] = []
        self.place: dict[str, Any] | None = None
        self.factor: float | None = None
        """By how much all of them were multiplied, if that is what happened."""
        self.done = False
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._trained: list[tuple[Tensor, Tensor]] = []
        self._others: Sequence[Tensor] = ()

    def begin(self, frozen: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
        """A step has ended."""
        elements = 0
        for p in frozen:
            elements += p.numel()
            if elements <= MOST_ELEMENTS and p.numel() > 1:
                self._kept.append((p, p.detach().clone()))
        if self._kept:
            self._others = trained
            chosen = sorted(trained, key=Tensor.numel)[:4]
            self._trained = [(p, p.detach().clone()) for p in chosen]

    def is_written(self, call: TorchCall) -> bool:
        """Whether a call changes one of the weights in place."""
        if not call.name.endswith("_") or not call.args or self.place is not None:
            return False
        first = call.args[0]
        memory = {p.data_ptr() for p in self.moved}
        written = first if isinstance(first, (list, tuple)) else [first]
        return any(isinstance(item, Tensor) and item.data_ptr() in memory for item in written)

    def end(self) -> None:
        """The next step begins."""
        kept, self._kept = self._kept, []
        trained, self._trained = self._trained, []
        found = [(p, before) for p, before in kept if not p.requires_grad and _differ(p, before)]
        factors = [_factor(p.detach(), before) for p, before in found]
        all_written = any(_differ(p, before) for p, before in trained)
        self.moved = []
        if found and (all_written or all(factors)):
            self.moved = [p for p, old in found if not _follows(p.detach(), old, self._others)]
            known = [item for item in factors if item is not None]
            self.factor = known[0] if len(known) == len(factors) else None


def _differ(now: Tensor, before: Tensor) -> bool:
    same_kind = (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device)
    return same_kind and not torch.equal(now.detach(), before)


def _factor(now: Tensor, before: Tensor) -> float | None:
    """The number that the whole tensor was multiplied by, or None."""
    if not before.is_floating_point() or not bool(before.any()):
        return None
    before, now = before.float().flatten(), now.float().flatten()
    factor = float(now @ before / (before @ before))
    close = torch.allclose(now, factor * before, rtol=1e-4, atol=1e-8)
    return factor if close and factor != 1 else None


def _follows(now: Tensor, before: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether a weight was moved towards another one of its shape."""
    change = (now - before).float().flatten()
    for other in others:
        if other.shape == before.shape:
            way = (other.detach() - before).float().flatten()
            cosine = torch.nn.functional.cosine_similarity(change, way, dim=0)
            if float(cosine) > SAME_DIRECTION:
                return True
    return False
