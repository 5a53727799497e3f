"""Where the values of weights come from: `load_state_dict` and in-place initialisation."""

from __future__ import annotations

import weakref
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
        observe_method(self.script, torch, "load", after=self._file_loaded)

    def _file_loaded(self, result: Any, *_: Any, **__: Any) -> None:
        self._files += 1

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
        self._loads.append({"kept": kept, "place": facts.get("place"), "model": facts["model"]})

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
