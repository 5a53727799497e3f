"""Ranks that no wrapper holds together: whether their replicas stay equal, and how they clip.

A guard follows ranks whose model is wrapped (DDP, FSDP) or sharded (DTensor). Where a script
exchanges gradients or activations by itself, each rank leaves checksums of its parameters in the
store of the process group, and the first rank compares them. Ranks that exchange nothing may be far
apart: the first one waits for the others, for a few seconds in all. No other rank waits.

What begins equal on all ranks is a replica and must stay equal; what begins different is a shard.
Equal constants (biases of zero, norms of one) are replicas only if their gradients say so, too.
"""

from __future__ import annotations

import ast
import json
import linecache
import re
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.core.facts import LISTED
from headway.engine import PLACES
from headway.guard.ranks.rank_table import checksum_tensors
from headway.preflight.observer import Observer, TorchCall
from headway.preflight.observers.rank_states import (
    RankState,
    combine_checksums,
    find_clip_norms,
    find_replicas,
)
from headway.preflight.script_context import observe_method
from headway.preflight.source_lines import find_line, find_user_files
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.process_groups.rank_group import default_store

SIGNAL, CLIP = "rank/weights_hash", "rank/clip_norm"
TOPIC = "rank-replicas"
CLOSELY, EVERY = 10, 10
"""The first steps are all inspected, then every n-th."""
WAITING = 8
"""Steps at most whose checksums are still expected."""
PATIENCE_S, LOOK_S = 3.0, 0.01
"""How long the first rank waits in a whole run, and how often it looks meanwhile."""
SMALL = 16
"""Elements up to which an exchange is a number to log, not an activation."""
SEEDS = r"(manual_seed|set_seed|seed_everything)\(.*rank"
_BETWEEN_TWO = ("batch_isend_irecv", "send", "isend", "recv", "irecv")
_COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather"),
    *("all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single", "gather", "scatter"),
)
_WEIGHTS = re.compile(r"param|weight|model|state|\.data\b|\b[pw]\b")
_ON_GRADIENTS = (Tensor.mul_, Tensor.__imul__, Tensor.div_, Tensor.__itruediv__)


@dataclass
class Exchange:
    """A tensor that went to other ranks."""

    memory: weakref.ref[torch.UntypedStorage]
    """Dead once the memory is free: its address may belong to a gradient afterwards."""
    address: int
    size: int
    in_backward: bool


class ManualRanks(Observer):
    """Listens for collectives between backward and the step, and compares checksums."""

    functions = _ON_GRADIENTS

    def start(self) -> None:
        self._after_backward = self._in_backward = self._trained = False
        self._exchanges: list[Exchange] = []
        """Since the last backward began."""
        self._shares = self._averages = False
        self._ran: set[tuple[str, int]] = set()
        """The lines of collectives that ran."""
        self._places: dict[str, Any] = {}
        self._gradients: list[float] = []
        self._norm: float | None = None
        self._clip: float | None = None
        self._waiting: list[int] = []
        self._patience = PATIENCE_S
        self._why: list[str] | None = None
        """Why each parameter is a replica: "exchanged", "gradient" or "start"; "" for a shard. None
        before the first comparison."""
        self._reported = False
        self._equal_at: int | None = None
        """The last step before which all replicas were equal."""
        if dist.is_available():
            for name in _COLLECTIVES:
                observe_method(self.script, dist, name, before=self._exchanged)
            for name in _BETWEEN_TWO:
                observe_method(self.script, dist, name, before=self._sent_to_one)

    # Events.

    @property
    def _alone(self) -> bool:
        """Whether there are no other ranks, or the guard follows them already."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
            return True
        guard = self.script.launch.guard
        return guard is not None and guard.session.ranks is not None

    def _sent_to_one(self, *args: Any, **kwargs: Any) -> None:
        if max((tensor.numel() for _, tensor in find_tensors([args, kwargs])), default=0) > SMALL:
            self._shares = True  # a pipeline: each rank has its own stage

    def _exchanged(self, *args: Any, **kwargs: Any) -> None:
        if self._alone:
            return
        place = self.script.place()
        if place is not None:
            self._ran.add((str(place["file"]), int(place["line"])))
        tensors = [tensor for _, tensor in find_tensors([args, kwargs])]
        if self._after_backward or self._in_backward:
            self._exchanges += [
                Exchange(
                    memory=weakref.ref(tensor.untyped_storage()),
                    address=tensor.data_ptr(),
                    size=tensor.numel(),
                    in_backward=self._in_backward,
                )
                for tensor in tensors
            ]
            if self._after_backward and max(map(Tensor.numel, tensors), default=0) > 1:
                self._places.setdefault("exchange", place)
                self._clip = None  # what each rank clipped before is averaged
        elif self._trained or self.script.stack:
            weights = self._weights()
            known = {weight.data_ptr() for weight in weights}
            whole = 0.9 * sum(weight.numel() for weight in weights)
            large = [tensor for tensor in tensors if tensor.numel() > SMALL]
            if any(t.data_ptr() in known or 0 < whole <= t.numel() for t in large):
                self._averages = True
            elif large and self.script.stack:
                self._shares = True

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self._in_backward, self._after_backward = True, False

    @torch.no_grad()
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._in_backward, self._after_backward, self._trained = False, True, True
        if self._alone or not self._is_due():
            return
        gradients = [weight.grad for weight in self._weights()]
        self._gradients = [0.0 if item is None else _checksum(item) for item in gradients]
        self._norm = _norm_of(gradients)

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        if not self._alone and self._is_due():
            self._clip = float(total)

    def function_ended(self, call: TorchCall) -> None:
        """Note the line that scales a gradient by hand, which is where a clip would be."""
        if not self._after_backward or self._alone or "clip" in self._places or not call.args:
            return
        gradients = {id(weight.grad) for weight in self._weights() if weight.grad is not None}
        place = self.script.place()
        if id(call.args[0]) in gradients and place is not None:
            self._places["clip"] = place

    def step_begins(self, optimizer: Optimizer) -> None:
        if self._after_backward and self._gradients and not self._alone and self._is_due():
            self._look(optimizer)
        self._after_backward = False
        self._exchanges.clear()
        self._gradients, self._norm, self._clip = [], None, None

    def _is_due(self) -> bool:
        return self.script.step < CLOSELY or self.script.step % EVERY == 0

    def _weights(self) -> list[nn.Parameter]:
        models = self.script.models
        return [p for model in models for p in model.parameters() if p.requires_grad]

    # What this rank reports.

    @torch.no_grad()
    def _look(self, optimizer: Optimizer) -> None:
        step, store, weights = self.script.step, default_store(), self._weights()
        if store is None or step in self._waiting or len(self._gradients) != len(weights):
            return
        exchanged = self._find_exchanged(weights)
        after = _norm_of([weight.grad for weight in weights])
        state = RankState(
            weights=[_checksum(weight) for weight in weights],
            gradients=self._gradients,
            exchanged=exchanged,
            varied=[_is_varied(weight) for weight in weights] if self._why is None else [],
            sizes=[weight.numel() for weight in weights],
            rates=[float(group["lr"]) for group in optimizer.param_groups],
            shares=self._shares,
            averages=self._averages,
            norm=self._norm,
            factor=after / self._norm if self._norm and not any(exchanged) else None,
            clip=self._clip,
        )
        store.set(_key(step, dist.get_rank()), json.dumps(asdict(state)))
        if dist.get_rank() == 0:
            self._waiting.append(step)
            self._read(store)

    def _find_exchanged(self, weights: Sequence[Tensor]) -> list[bool]:
        """Which gradients went to other ranks: by their memory, or by their size."""
        owned = {item.address for item in self._exchanges if item.memory() is not None}
        found = [weight.grad is not None and weight.grad.data_ptr() in owned for weight in weights]
        left = Counter(
            weight.numel() for weight, known in zip(weights, found, strict=True) if not known
        )
        afterwards = [item.size for item in self._exchanges if not item.in_backward]
        everything = sum(weight.numel() for weight in weights)
        if any(10 * size >= 9 * everything for size in afterwards):
            return [True] * len(weights)  # one flat buffer
        sent = Counter(afterwards)
        matched = {size for size, count in left.items() if size > 1 and sent[size] >= count}
        within = Counter(item.size for item in self._exchanges)
        if all(within[size] >= count for size, count in left.items()):
            matched |= set(left)  # hooks: activations do not have the sizes of all parameters
        return [
            known or weight.numel() in matched for weight, known in zip(weights, found, strict=True)
        ]

    # What the first rank compares.

    def _read(self, store: Any) -> None:
        ranks = range(dist.get_world_size())
        del self._waiting[:-WAITING]
        step = self._waiting[0]  # one at a time: a step has one column
        keys = [_key(step, rank) for rank in ranks]
        while not (known := store.check(keys)) and self._patience > 0:
            time.sleep(LOOK_S)
            self._patience -= LOOK_S
        if known:
            self._waiting.remove(step)
            self._compare(step, [RankState(**json.loads(store.get(key))) for key in keys])

    def _compare(self, step: int, states: Sequence[RankState]) -> None:
        if len({len(state.sizes) for state in states}) > 1:
            return  # each rank trains a model of its own
        if self._why is None:
            self._why = find_replicas(states)
            if len({combine_checksums(state, self._why) for state in states}) > 1:
                seed = find_line(self.script, SEEDS)
                self._say("desync", seed or self.script.origins.of_module(self.script.models[0]))
        why = self._why
        if "start" in why and self._may_differ(states):
            why = ["" if reason == "start" else reason for reason in why]
        if not any(why):
            return
        hashes = [combine_checksums(state, why) for state in states]
        if len(set(hashes)) == 1:
            self._equal_at = step
        elif not self._reported:
            self._reported = True
            self._report(states, why)
        self.evidence.column(SIGNAL, {str(rank): value for rank, value in enumerate(hashes)})
        norms = find_clip_norms(states, why)
        if norms is not None:
            self._say("clip", self._places.get("clip"))
            self.evidence.column(CLIP, {str(rank): value for rank, value in enumerate(norms)})

    def _may_differ(self, states: Sequence[RankState]) -> bool:
        """Whether replicas without a common gradient may differ for a while, or permanently."""
        if any(state.averages for state in states) or len({str(s.rates) for s in states}) > 1:
            return True
        return any(
            line not in self._ran
            for file in find_user_files(self.script)
            for line in _weight_collectives(file)
        )

    def _report(self, states: Sequence[RankState], why: Sequence[str]) -> None:
        names = [self.script.name_of(weight) or "?" for weight in self._weights()]
        apart = [
            name
            for name, reason, values in zip(
                names, why, zip(*(state.weights for state in states), strict=True), strict=True
            )
            if reason and len(set(values)) > 1
        ]
        exchanged = sum(map(any, zip(*(state.exchanged for state in states), strict=True)))
        if exchanged:
            self._say("desync", self._places.get("exchange"))
        self.evidence.record(
            TOPIC,
            {
                "ranks": len(states),
                "replicas": sum(map(bool, why)),
                "parameters": len(why),
                "apart": apart[:LISTED],
                "apart_count": len(apart),
                "exchanged": exchanged,
                "equal_at": self._equal_at,
            },
        )

    def _say(self, what: str, place: Any) -> None:
        if place is not None and f"said {what}" not in self._places:
            self._places[f"said {what}"] = place
            self.evidence.record(PLACES, {what: place})


def _weight_collectives(file: str) -> list[tuple[str, int]]:
    """The lines of a file that exchange something that is called like a weight."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            averaging = name in _COLLECTIVES or name == "average_parameters"
            written = ast.unparse(node)
            if averaging and "grad" not in written and _WEIGHTS.search(written):
                found.append((file, node.lineno))
    return found


def _checksum(tensor: Tensor) -> float:
    found = checksum_tensors([tensor.detach()], torch.device("cpu"))
    return 0.0 if found is None else float(found)


def _is_varied(tensor: Tensor) -> bool:
    return bool(tensor.numel() > 1 and (tensor != tensor.reshape(-1)[0]).any())


def _norm_of(gradients: Sequence[Tensor | None]) -> float:
    squares = [float(item.double().square().sum()) for item in gradients if item is not None]
    return float(sum(squares) ** 0.5)


def _key(step: int, rank: int) -> str:
    return f"headway/weights/{step}/{rank}"
