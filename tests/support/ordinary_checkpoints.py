"""What ordinary checkpoints contain beside weights: settings, states and tensors of every kind."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import pickle
import random
import re
import types
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass
class Config:
    """Settings of the user."""

    lr: float = 0.1
    path: pathlib.Path = pathlib.Path("data")


class Phase(enum.Enum):
    """An enum of the user."""

    TRAIN = "train"


class Attributes(dict[str, Any]):
    """Settings that are read as attributes, as OmegaConf and Lightning have them."""

    __getattr__ = dict.__getitem__


def _weights() -> dict[str, torch.Tensor]:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).state_dict()


def _optimizer(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    model = torch.nn.Linear(3, 3)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }


def _lightning() -> dict[str, Any]:
    return {
        "epoch": 1,
        "global_step": 10,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": _weights(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_k_models": {}}},
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "config": Attributes(a=1), "layers": (1, 2)},
        "optimizer_states": [_optimizer(torch.optim.AdamW)["optimizer"]],
    }


def _parametrized() -> torch.nn.Module:
    return torch.nn.utils.weight_norm(torch.nn.Linear(3, 3))


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


def _meshed() -> dict[str, Any]:
    """What a distributed checkpoint has in its metadata."""
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.tensor.placement_types import Replicate, Shard

    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    stored = TensorStorageMetadata(TensorProperties(), torch.Size([2]), [chunk])
    return {
        "metadata": Metadata({"w": stored, "b": BytesStorageMetadata()}),
        "index": MetadataIndex("w", torch.Size([0]), 0),
        "placements": [Shard(0), Replicate()],
        "w": torch.ones(2),
    }


def _rng() -> dict[str, Any]:
    generator = torch.Generator()
    return {
        "w": torch.ones(2),
        "torch": generator.get_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
        "generator": np.random.default_rng(0),
        "old": np.random.RandomState(0),
        "random": random.Random(0),
    }


ORDINARY: dict[str, Callable[[], Any]] = {
    "weights": _weights,
    "a whole model": lambda: torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.LSTM(2, 2), torch.nn.Dropout(0.1)
    ),
    "a transformer": lambda: torch.nn.TransformerEncoderLayer(4, 2, 8),
    "a model with weight norm": _parametrized,
    "SGD": lambda: _optimizer(torch.optim.SGD),
    "AdamW": lambda: _optimizer(torch.optim.AdamW),
    "Adagrad": lambda: _optimizer(torch.optim.Adagrad),
    "a whole optimizer": lambda: {
        "w": torch.ones(2),
        "optimizer": torch.optim.Adam([torch.nn.Parameter(torch.ones(2))]),
    },
    "a Lightning checkpoint": _lightning,
    "arguments": lambda: {"w": torch.ones(2), "args": argparse.Namespace(lr=0.1, out="x")},
    "simple arguments": lambda: {"w": torch.ones(2), "args": types.SimpleNamespace(lr=0.1)},
    "settings of a class": lambda: {"w": torch.ones(2), "config": Config()},
    "an enum": lambda: {"w": torch.ones(2), "phase": Phase.TRAIN},
    "settings with attributes": lambda: {"w": torch.ones(2), "cfg": Attributes(a=Attributes(b=1))},
    "a path": lambda: {"w": torch.ones(2), "path": pathlib.PurePosixPath("a/b")},
    "times": lambda: {
        "w": torch.ones(2),
        "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        "took": datetime.timedelta(seconds=3),
    },
    "numbers": lambda: {
        "w": torch.ones(2),
        "loss": np.float32(1.5),
        "count": np.int64(3),
        "name": np.str_("x"),
        "z": np.complex64(1j),
        "day": np.datetime64("2024-01-01"),
        "exact": decimal.Decimal("0.1"),
        "ratio": fractions.Fraction(1, 3),
        "id": uuid.UUID(int=1),
    },
    "arrays": lambda: {
        "w": np.ones((2, 3), np.float32),
        "fortran": np.asfortranarray(np.ones((2, 3))),
        "rows": np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")]),
        "names": np.array(["a", "bc"]),
        "objects": np.array([None, {"a": 1}], dtype=object),
    },
    "containers": lambda: {
        "w": torch.ones(2),
        "deque": collections.deque([1], 3),
        "counts": collections.Counter("aab"),
        "default": collections.defaultdict(list, a=[1]),
        "nested": collections.defaultdict(functools.partial(collections.defaultdict, float)),
        "sets": {frozenset([1]), frozenset([2])},
        "bytes": bytearray(b"abc"),
        "pattern": re.compile("a+"),
        "slice": slice(1, 2),
    },
    "random states": _rng,
    "quantised": lambda: {"w": _quantized()},
    "sparse": lambda: {
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "w": torch.ones(2),
    },
    "nested tensors": lambda: {
        "n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "w": torch.ones(2),
    },
    "jagged tensors": lambda: {
        "n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "w": torch.ones(2),
    },
    "types and devices": lambda: {
        "w": torch.ones(2).bfloat16(),
        "dtype": torch.float8_e4m3fn,
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "layout": torch.strided,
        "storage": torch.ones(3).untyped_storage(),
    },
    "metadata of shards": _meshed,
    "activations": lambda: {
        "w": torch.ones(2),
        "act": torch.nn.functional.gelu,
        "norm": functools.partial(torch.nn.LayerNorm, eps=1e-6),
    },
    "parameters with attributes": lambda: {"w": _marked()},
    "views of one storage": lambda: dict(zip("ab", torch.ones(4).split(2), strict=True)),
    "conjugated and meta": lambda: {
        "c": torch.ones(2, dtype=torch.complex64).conj(),
        "m": torch.ones(2, device="meta"),
        "w": torch.ones(2),
    },
}


def _marked() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.ones(2))
    made.is_bias = True  # type: ignore[attr-defined]
    return made


def write(folder: Path, name: str) -> list[Path]:
    """Saves one in the formats that it can be saved in."""
    torch.manual_seed(0)
    with warnings.catch_warnings():  # of torch: prototypes, and what it will remove
        warnings.simplefilter("ignore")
        return _write(folder, ORDINARY[name]())


def _write(folder: Path, value: Any) -> list[Path]:
    torch.save(value, folder / "new.pt")
    paths = [folder / "new.pt"]
    torch.save(value, folder / "old.pt", _use_new_zipfile_serialization=False)
    paths.append(folder / "old.pt")
    (folder / "plain.pkl").write_bytes(pickle.dumps(value))
    return [*paths, folder / "plain.pkl"]
