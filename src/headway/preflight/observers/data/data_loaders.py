"""What loaders deliver: the size of their batches, and the random numbers of their workers."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.source_lines import find_taking_line
from headway.preflight.worker_seeds import SeedRecordingCollate, SeedRecordingInit, read_notes
from headway.torch_adapters import tensor_values
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.frames import is_installed_file, is_internal_file
from headway.torch_adapters.patching import call_after

# What the user's code says about the size of a batch: variables, options, calls.

SIZES = ("batch_size", "batchsize", "bs", "train_batch_size", "per_device_train_batch_size", "bsz")
_OPTIONS = re.compile(
    r"arg|opt|cfg|conf|param|hp|flag|setting|train|model|self|spec|exp|run|data|hyper", re.I
)
"""Names under which people keep their options."""
_NAMESPACES = ("Namespace", "SimpleNamespace")
_EVALUATION = re.compile(r"(^|_)(test|val|valid|validation|eval|evaluation|infer)(_|$)", re.I)
"""Names of what is not for training: `test_kwargs`, `val_batch_size`."""


def is_batch_size(name: str) -> bool:
    """Whether a name can only mean the size of a training batch."""
    return name.lower() in SIZES


def find_named_sizes(frame: FrameType) -> set[tuple[str, int]]:
    """Batch sizes that a frame's variables, or the options among them, name: all values of a
    name."""
    found = _sizes_of(frame.f_locals)
    for name, value in list(frame.f_locals.items())[:500]:
        for held in _options(name, value, 2):
            found |= _sizes_of(held)
    return found


def _options(name: str, value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    """The attributes or items of what may be options of the script, including nested ones."""
    if isinstance(value, type) or not (_OPTIONS.search(name) or _is_plain_record(value)):
        return
    if _EVALUATION.search(name):
        return
    held = _held(value)
    if held is None:
        return
    yield held
    if depth > 1:
        for key, item in list(held.items())[:100]:
            if isinstance(key, str) and key not in ("self", "_modules"):
                yield from _options(key, item, depth - 1)


def _is_plain_record(value: Any) -> bool:
    """Whether an object is a container of options, under any name."""
    return is_dataclass(value) or type(value).__name__ in _NAMESPACES or hasattr(value, "_fields")


def _held(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if is_internal_file(getattr(inspect.getmodule(type(value)), "__file__", None) or ""):
        return vars(value) if type(value).__name__ in _NAMESPACES else None
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and held:
        # Defaults of a class that nobody has overridden are options as well.
        shared = {key: item for key, item in vars(type(value)).items() if type(item) is int}
        return {**shared, **held}
    slots = getattr(type(value), "__slots__", ()) or getattr(type(value), "_fields", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    shared = {key: item for key, item in vars(type(value)).items() if type(item) is int}
    own = {key: getattr(value, key, None) for key in names if isinstance(key, str)}
    return {**shared, **own} or None


def _sizes_of(held: Mapping[Any, Any]) -> set[tuple[str, int]]:
    return {
        (key, item)
        for key, item in list(held.items())[:500]
        if isinstance(key, str) and type(item) is int and item > 0 and _says_size(key.lower())
    }


def _says_size(name: str) -> bool:
    if _EVALUATION.search(name):
        return False
    return name in SIZES or ("batch" in name and "n_" not in name and "num" not in name)


def lacks_batch_size(place: Mapping[str, Any] | None) -> bool:
    """Whether the call of DataLoader that begins on this line names no batch size."""
    if place is None:
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(place["file"])))
    except (SyntaxError, ValueError, KeyError):
        return False
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= place["line"] <= (node.end_lineno or node.lineno)
        and "DataLoader" in ast.unparse(node.func)
    ]
    if not calls:
        return False
    call = max(calls, key=lambda node: node.lineno)
    named = [item.arg for item in call.keywords]
    starred = any(isinstance(item, ast.Starred) for item in call.args) or None in named
    return not starred and len(call.args) < 2 and not {"batch_size", "batch_sampler"} & {*named}


# How many samples of a batch reach the model, against how many the script means to take.

# Judged for every loader by itself: one that was made without a size, late in a run, is a fault of
# its own however many good batches came before.

UNBATCHED = {"linear": 1, "conv1d": 2, "conv2d": 3, "conv3d": 4}
"""Layers, and the axes of a single sample."""
SIZED = 50
"""Steps of one loader whose batch size is looked at."""
MOST_SIZED_LOADERS = 32


@dataclass(slots=True)
class LoaderBatches:
    """The batches of one loader, or of none."""

    made_at: dict[str, Any] | None = None
    unsized: bool = False
    """Whether the line that made it says nothing of a size."""
    size: int | None = None
    first: int = 0
    drawn: int | None = None
    sample_axes: frozenset[int] = frozenset()
    """Lengths of the axes of one sample."""
    place: dict[str, Any] | None = None
    whole: int = 0
    collapsed: list[tuple[int, int, str]] = field(default_factory=list)


_LABELS = re.compile(r"label|target|answer", re.I)


def _named_tensors(held: Mapping[Any, Any]) -> list[Tensor]:
    """Tensors by name, with at least one axis, that are not labels."""
    return [
        item
        for name, item in held.items()
        if isinstance(item, Tensor) and item.ndim and not _LABELS.search(str(name))
    ]


class BatchSizes(Observer):
    """Reports each loader (topic `batch-size`)."""

    functions = find_aliases(*UNBATCHED)

    def start(self) -> None:
        self._taken: dict[int, LoaderBatches] = {}
        self._kept: list[Any] = []
        self._loader: Any = None
        self._made: WeakKeyDictionary[Any, dict[str, Any] | None] = WeakKeyDictionary()
        self._sizes: list[tuple[int, Sequence[int]]] = []
        """(rows the model got, all axes of its input) of forwards since the last step."""
        self._single = False
        """Whether a layer of the current forward is given a sample without the batch axis."""
        self.script.undo.enter_context(call_after(DataLoader, "__init__", self._loader_made))

    def _loader_made(self, loader: Any, args: Any, result: Any) -> None:
        self._made[loader] = self.script.place()

    # Loaders.

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._loader = loader
        taken = self._of(loader)
        if taken is not None:
            taken.drawn = tensor_values.batch_size(batch)
            tensors = tensor_values.batch_tensors(batch)
            taken.sample_axes = frozenset(size for item in tensors for size in item.shape[1:])

    def _of(self, loader: Any) -> LoaderBatches | None:
        known = self._taken.get(id(loader))
        if known is None and len(self._taken) < MOST_SIZED_LOADERS:
            known = self._taken[id(loader)] = LoaderBatches(first=self.script.step)
            if loader is not None:
                self._kept.append(loader)  # so that no identity is given twice
                known.made_at = self._made.get(loader)
                known.unsized = lacks_batch_size(known.made_at)
                size = getattr(loader, "batch_size", None)
                if size is None:
                    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
                known.size = size if isinstance(size, int) else None
        return known

    # Forwards.

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._single = False

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if not torch.is_grad_enabled() or not module.training or len(self._sizes) >= 4096:
            return
        tensors = [item for item in args if isinstance(item, Tensor) and item.ndim]
        held = [kwargs, *(item for item in args if isinstance(item, Mapping))]
        named = [item for some in held for item in _named_tensors(some)]
        if not (tensors or named) or not any(p.requires_grad for p in module.parameters()):
            return
        taken = self._of(self._loader)
        # The first of the positional arguments is the data. By name, any of them may be.
        rows = max(item.shape[0] for item in tensors[:1] or named)
        lengths = [size for item in (*tensors, *named) for size in item.shape]
        self._sizes.append((1, [1]) if self._single else (rows, lengths))
        if taken is not None and taken.place is None:
            taken.place = self.script.place()

    def function_ended(self, call: TorchCall) -> None:
        """A layer that is given a sample without the axis of the batch."""
        data = call.args[0] if call.args else None
        if not self.script.stack or not torch.is_grad_enabled() or not isinstance(data, Tensor):
            return
        if not data.requires_grad and data.ndim == UNBATCHED.get(call.name):
            self._single = True

    def step_ended(self, optimizer: Optimizer) -> None:
        sizes, self._sizes = self._sizes, []
        taken = self._of(self._loader)
        if not sizes or taken is None or len(taken.collapsed) + taken.whole >= SIZED:
            return
        meant, whence = self._meant(taken)
        if meant is None:
            return
        # Whatever the layout, some axis of the input is the batch; pieces of one add up.
        fed = max(max(rows, 0) for rows, _ in sizes)
        axes = {length for _, lengths in sizes for length in lengths}
        # A multiple is a batch merged with another axis, unless samples have an axis that long.
        merged = any(length % meant == 0 for length in axes - taken.sample_axes - {0})
        whole = fed * len(sizes) * 4 > meant or meant in axes or merged
        # Last, because it reads the variables of all frames.
        if whole or (fed > 1 and any(fed == size for _, size in self._named())):
            taken.whole += 1
        else:
            taken.collapsed.append((fed * len(sizes), meant, whence))

    def _meant(self, taken: LoaderBatches) -> tuple[int | None, str]:
        """The intended number of samples of a step, and where the script states it."""
        own = taken.size or 0
        if own > 1 and not taken.unsized:
            return (own, "the loader's batch_size") if own >= 8 else (None, "")
        named = self._named()
        if not taken.unsized and any(own == size for _, size in named):
            return (own, "the loader's batch_size") if own >= 8 else (None, "")
        world = 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            world = torch.distributed.get_world_size()
        sizes = [size // world for name, size in named if is_batch_size(name)]
        size = min((size for size in sizes if size >= 8), default=0)
        return (size, "the script") if size >= max(8, own) else (None, "")

    def _named(self) -> set[tuple[str, int]]:
        """The sizes of batches, whole ones or pieces, that the script's variables name."""
        named: set[tuple[str, int]] = set()
        for frame in self.script.frames():
            if not is_installed_file(frame.f_code.co_filename):
                named |= find_named_sizes(frame)
        return named

    # The end.

    def finished(self) -> None:
        others_whole = any(taken.whole > len(taken.collapsed) for taken in self._taken.values())
        loaders: Sequence[Any] = [*self._kept]
        for at, taken in self._taken.items():
            if not taken.collapsed and not taken.whole:
                continue
            fed_rows, meant, whence = max(taken.collapsed, default=(0, 0, ""))
            loader = next((item for item in loaders if id(item) == at), None)
            self.evidence.record(
                "batch-size",
                {
                    "collapsed": len(taken.collapsed),
                    "whole": taken.whole,
                    "samples": fed_rows,
                    "meant": meant,
                    "whence": whence,
                    "drawn": taken.drawn,
                    # A second loader that was given a size of its own is intended.
                    "wanted": others_whole and not taken.unsized and fed_rows == taken.size,
                    "place": self._line(loader, taken),
                    "first_step": taken.first,
                },
            )

    def _line(self, loader: Any, taken: LoaderBatches) -> dict[str, Any] | None:
        """Where the samples are lost: as far up as is known."""
        if loader is None or taken.drawn is None or not taken.collapsed:
            return taken.place
        if taken.size is not None and taken.drawn * 4 <= taken.size:
            return find_taking_line(getattr(loader, "collate_fn", None)) or taken.place
        if taken.size is not None and taken.drawn <= taken.size < taken.collapsed[0][1]:
            return taken.made_at or taken.place
        return taken.place


# Whether the workers of a loader draw the same random numbers as each other.

WORKER_SEEDS_TOPIC = "worker-seeds"
MOST_WATCHED_LOADERS = 4


class WorkerSeeds(Observer):
    """Puts a note-taker into the workers while they are started."""

    def start(self) -> None:
        self._folders: list[tuple[str, int, dict[str, Any] | None]] = []
        self._met: set[int] = set()
        self._kept: list[Any] = []
        self._undo: list[tuple[Any, str, Any]] = []
        self._alone = False
        self._made: WeakKeyDictionary[Any, dict[str, Any] | None] = WeakKeyDictionary()
        self.script.undo.enter_context(call_after(DataLoader, "__init__", self._loader_made))

    def _loader_made(self, loader: Any, args: Any, result: Any) -> None:
        self._made[loader] = self.script.place()

    def pass_begun(self, loader: Any) -> None:
        self._put_back()
        if not isinstance(loader, DataLoader) or loader.num_workers < 2:
            self._alone = True
            return
        if id(loader) in self._met or len(self._met) >= MOST_WATCHED_LOADERS:
            return
        self._met.add(id(loader))
        self._kept.append(loader)
        folder = tempfile.mkdtemp(prefix="headway-workers-")
        place = self._made.get(loader) or self.script.place()
        self._folders.append((folder, loader.num_workers, place))
        init, collate = loader.worker_init_fn, loader.collate_fn
        loader.worker_init_fn = SeedRecordingInit(init, folder)
        loader.collate_fn = SeedRecordingCollate(collate, folder)
        self._undo = [(loader, "worker_init_fn", init), (loader, "collate_fn", collate)]

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._put_back()

    def _put_back(self) -> None:
        undo, self._undo = self._undo, []
        for owner, name, value in undo:
            setattr(owner, name, value)

    def finished(self) -> None:
        self._put_back()
        for folder, workers, place in self._folders:
            with suppress(OSError):
                self._report(folder, workers, place)
            shutil.rmtree(folder, ignore_errors=True)
        if self._alone and not self._folders:
            self.evidence.unavailable(WORKER_SEEDS_TOPIC, "no loader has two workers or more")

    def _report(self, folder: str, workers: int, place: dict[str, Any] | None) -> None:
        notes = read_notes(folder)
        shared = []
        for name, states in notes.items():
            firsts = [first for first, _ in states.values()]
            twins = len(firsts) > len(set(firsts)) and len(firsts) > 1
            used = any(later is not None and later != first for first, later in states.values())
            if twins and used:
                shared.append(name)
        facts = {"workers": workers, "seen": max(map(len, notes.values()), default=0)}
        self.evidence.record(
            WORKER_SEEDS_TOPIC, {**facts, "shared": shared, "place": place, "first_step": 0}
        )
