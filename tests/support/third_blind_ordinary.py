"""A third set of ordinary checkpoints, as people have them. None may be an error.

`NEEDS` names the package that must be installed to write one.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import io
import json
import pathlib
import pickle
import random
import struct
import types
import uuid
import warnings
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from support.blind_ordinary import Net, _trained
from support.third_blind_files import _exported, _old_tar


class Stage(enum.IntEnum):
    """Of the user."""

    WARM = 1


class Flag(enum.Flag):
    """Of the user."""

    A = 1
    B = 2


class Point(NamedTuple):
    """Of the user."""

    x: float
    y: float


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    """Of the user."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclasses.dataclass
class Settings:
    """Of the user."""

    stage: Stage = Stage.WARM
    slots: Slots = dataclasses.field(default_factory=Slots)
    where: pathlib.Path = pathlib.Path("data")


class Tied(nn.Module):
    """Of the user: the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight


def _save(value: object, name: str = "x.pt") -> Callable[[Path], None]:
    return lambda folder: torch.save(value() if callable(value) else value, folder / name)


def _hf_trainer(folder: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    rows = [{"input_ids": [1, 2, 3], "labels": n % 2} for n in range(4)]
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        save_total_limit=2,
        disable_tqdm=True,
    )
    Trainer(BertForSequenceClassification(config), args, train_dataset=rows).train()  # type: ignore[arg-type]


def _sharded_by_fsdp(folder: Path) -> None:
    """State of `fully_shard` on one process, with DCP and with torch.save."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(folder.parent / f"store-{folder.name}"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": state}, checkpoint_id=folder / "dcp")
        torch.save(model.state_dict(), folder / "local.pt")
    finally:
        dist.destroy_process_group()


def _averaged() -> dict[str, Any]:
    model = Net()
    shadow = [p.detach().clone() for p in model.parameters()]
    ema = {"decay": 0.999, "num_updates": 5, "shadow_params": shadow, "collected_params": None}
    return {"model": model.state_dict(), "ema": ema, "global_step": 7}


def _low_precision() -> dict[str, Any]:
    kinds = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float8_e8m0fnu")
    return {name: torch.ones(4).to(getattr(torch, name)) for name in kinds if hasattr(torch, name)}


def _sparse() -> dict[str, Any]:
    eye = torch.eye(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "coo": eye.to_sparse(),
            "csr": eye.to_sparse_csr(),
            "bsr": eye.to_sparse_bsr((2, 2)),
            "csc": eye.to_sparse_csc(),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "complex": torch.ones(2, dtype=torch.complex64).conj(),
            "negative": torch.ones(2, dtype=torch.complex64).imag,
            "bits": torch.zeros(2, dtype=torch.uint16),
            "meta": torch.empty(3, device="meta"),
        }


def _quantised() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        per_tensor = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
        scales = torch.ones(2, dtype=torch.float64)
        zeros = torch.zeros(2, dtype=torch.int64)
        per_channel = torch.quantize_per_channel(torch.ones(2, 2), scales, zeros, 0, torch.qint8)
    return {"w": per_tensor, "v": per_channel}


def _settings() -> dict[str, Any]:
    return {
        "w": torch.ones(2),
        "config": Settings(),
        "args": argparse.Namespace(lr=0.1, data=pathlib.Path("x"), nested=argparse.Namespace(a=1)),
        "space": types.SimpleNamespace(a=[1, 2], device=torch.device("cuda:0")),
        "dtype": torch.bfloat16,
        "point": Point(1.0, 2.0),
        "flag": Flag.A | Flag.B,
    }


def _values() -> dict[str, Any]:
    counts: Any = collections.defaultdict(list, {"loss": [1.0, 0.5]})
    return {
        "w": torch.ones(2),
        "when": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        "zone": datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")),
        "took": datetime.timedelta(seconds=3),
        "run": uuid.UUID(int=5),
        "price": decimal.Decimal("1.5"),
        "numpy": [np.float32(1), np.int64(2), np.bool_(True), np.str_("a"), np.datetime64("2026")],
        "history": counts,
        "queue": collections.deque([1, 2], maxlen=10),
        "counter": collections.Counter("abca"),
        "best": (float("inf"), float("-inf")),
        "names": frozenset({"a"}),
        "range": range(3),
        "slice": slice(0, 3),
        "bytes": bytearray(b"abc"),
        "complex": 1 + 2j,
        "nothing": None,
        "dots": ...,
    }


def _states() -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu")
    return {
        "w": torch.ones(2),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "generator": np.random.default_rng(0),
        "old generator": np.random.RandomState(0),
        "philox": np.random.Generator(np.random.Philox(3)),
        "torch": torch.get_rng_state(),
        "torch generator": torch.Generator().manual_seed(3).get_state(),
        "scaler": scaler.state_dict(),
    }


def _old_model(folder: Path) -> None:
    """A whole model of torch 0.3, written by Python 2."""
    backend = b"ctorch.nn.backends.thnn\n_get_thnn_function_backend\n)R"
    ordered = b"ccollections\nOrderedDict\n)R"
    storage = b"((U\x07storagectorch\nFloatStorage\nU\x017U\x03cpuK\x02NtQ"
    tensor = b"ctorch._utils\n_rebuild_tensor\n" + storage + b"K\x00(K\x02t(K\x01ttR"
    tensor = tensor.replace(b"((U\x07", b"((U\x07", 1)
    weight = b"ctorch.nn.parameter\nParameter\n(" + tensor + b"\x88tR"
    body = (
        b"\x80\x02ccopy_reg\n_reconstructor\n(ctorch.nn.modules.linear\nLinear\n"
        b"c__builtin__\nobject\nNtR}(U\x08_backend" + backend + b"U\x0b_parameters" + ordered
    )
    body += b"(U\x06weight" + weight + b"uU\x08_modules" + ordered + b"U\x08trainingI01\nub."
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    system = pickle.dumps(
        {
            "protocol_version": 1001,
            "little_endian": True,
            "type_sizes": {"short": 2, "int": 4, "long": 4},
        },
        2,
    )
    keys = pickle.dumps(["7"], 2)
    data = struct.pack("<q", 2) + struct.pack("<2f", 1.0, 2.0)
    (folder / "model.pth").write_bytes(magic + system + body + keys + data)


def _old_weights(folder: Path) -> None:
    torch.save(_trained("SGD"), folder / "x.pth.tar", _use_new_zipfile_serialization=False)
    torch.save(Net().state_dict(), folder / "p4.pth", pickle_protocol=4)
    (folder / "tar.pt").write_bytes(_old_tar())


def _python_2(folder: Path) -> None:
    """A pickle of Python 2 with an array in text."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2\ntcnumpy\n"
        b"dtype\n(S'f4'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\n"
        b"S'\\x00\\x00\\x80?\\x00\\x00\\x00@'\ntb"
    )
    (folder / "w.pkl").write_bytes(
        b"(dS'w'\n" + array + b"sS'set'\nc__builtin__\nset\n((lI1\natRs."
    )


def _xla(folder: Path) -> None:
    """A tensor of an XLA device is saved as an array."""
    import copyreg

    array = np.ones(3, np.float32)

    class Later:
        def __reduce__(self) -> Any:
            rebuild = torch._utils._rebuild_device_tensor_from_numpy
            return rebuild, (array, torch.float32, "xla:0", False)

    assert copyreg
    torch.save({"w": Later()}, folder / "x.pt")


def _checkpoint_of_lightning(folder: Path) -> None:
    """As its callbacks and loops leave it, with hyper-parameters of the user."""
    trained = _trained("AdamW")
    made = {
        "epoch": 3,
        "global_step": 100,
        "pytorch-lightning_version": "2.6.0",
        "state_dict": trained["model"],
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {
            "ModelCheckpoint{'monitor': 'val'}": {
                "best_model_score": torch.tensor(0.5),
                "best_k_models": {"a.ckpt": torch.tensor(0.5)},
                "kth_value": torch.tensor(float("inf")),
            },
            "EarlyStopping": {"wait_count": 0, "best_score": torch.tensor(float("inf"))},
        },
        "optimizer_states": [trained["optimizer"]],
        "lr_schedulers": [{"last_epoch": 3, "_last_lr": [0.1], "base_lrs": [0.1]}],
        "MixedPrecision": {"scale": 65536.0},
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "config": Settings(), "activation": nn.ReLU},
        "datamodule_hyper_parameters": {},
    }
    torch.save(made, folder / "epoch=3.ckpt")


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    made = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    (folder / "tokenizer.pkl").write_bytes(pickle.dumps({"tokenizer": made, "w": np.ones(2)}))
    torch.save({"w": torch.ones(2), "tokenizer": made}, folder / "x.pt")


def _whole_of_transformers(folder: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=20, n_positions=8)
    torch.save(GPT2LMHeadModel(config), folder / "model.pt")


def _old_yolo(folder: Path) -> None:
    """A dict with a whole model in half precision, as detectors save it."""
    model = Net().half()
    made = {"epoch": -1, "best_fitness": np.float64(0.5), "model": model, "ema": None, "updates": 3}
    torch.save(made | {"date": "2026-01-01", "train_args": {"lr0": 0.01}}, folder / "best.pt")


def _exports(folder: Path) -> None:
    (folder / "x.pt2").write_bytes(_exported())


def _joblib(folder: Path) -> None:
    import joblib

    value = {
        "w": np.ones((3, 2), np.float32),
        "names": ["a"],
        "fortran": np.ones((2, 2), order="F"),
    }
    joblib.dump(value, folder / "plain.joblib")
    joblib.dump(value, folder / "packed.joblib", compress=3)
    joblib.dump(value, folder / "xz.joblib", compress=("xz", 3))


def _sklearn(folder: Path) -> None:
    import joblib
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    made = make_pipeline(StandardScaler(), LogisticRegression())
    made.fit(np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2)
    joblib.dump(made, folder / "model.joblib")
    (folder / "model.pkl").write_bytes(pickle.dumps(made))


def _scipy(folder: Path) -> None:
    import scipy.sparse

    made = scipy.sparse.csr_matrix(np.eye(3))
    (folder / "sparse.pkl").write_bytes(pickle.dumps({"w": made}))
    scipy.sparse.save_npz(folder / "sparse.npz", made)


def _pandas(folder: Path) -> None:
    import pandas

    torch.save({"w": torch.ones(2), "log": pandas.DataFrame({"loss": [1.0, 0.5]})}, folder / "x.pt")


def _omegaconf(folder: Path) -> None:
    from omegaconf import OmegaConf

    made = OmegaConf.create({"lr": 0.1, "layers": [1, 2], "out": "${lr}"})
    torch.save({"w": torch.ones(2), "cfg": made}, folder / "x.pt")


def _dataloader(folder: Path) -> None:
    sampler = torch.utils.data.DistributedSampler(range(10), num_replicas=2, rank=0)
    dataset = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.zeros(4))
    torch.save({"sampler": sampler, "data": dataset, "w": torch.ones(2)}, folder / "x.pt")


def _parametrised() -> dict[str, Any]:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    other = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    return {"norm": layer.state_dict(), "spectral": other.state_dict()}


def _compiled() -> dict[str, Any]:
    model = torch.compile(Net(), backend="eager")
    return {"model": model.state_dict(), "step": torch.tensor(5)}


def _megatron(folder: Path) -> None:
    rank = folder / "iter_0000010" / "mp_rank_00"
    rank.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("10")
    args = argparse.Namespace(hidden_size=4, params_dtype=torch.float16, rank=0)
    made = {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": 10,
        "model": {"language_model": {}},
    }
    made["model"]["language_model"] = dict(Net().state_dict())  # type: ignore[index]
    made["opt_param_scheduler"] = {"max_lr": 1e-3, "num_steps": 10}
    torch.save(made, rank / "model_optim_rng.pt")


def _nested_io(folder: Path) -> None:
    stream = io.BytesIO()
    torch.save({"w": torch.ones(2)}, stream)
    torch.save({"best": stream.getvalue(), "w": torch.ones(2)}, folder / "x.pt")
    (folder / "note.json").write_text(json.dumps({"a": 1}))


ORDINARY: dict[str, Callable[[Path], None]] = {
    "a state dict": _save(lambda: Net().state_dict(), "pytorch_model.bin"),
    "a whole model": _save(Net, "model.pth"),
    "an ordered dict by hand": _save(lambda: collections.OrderedDict(Net().state_dict())),
    "a list of tensors": _save(lambda: [torch.ones(2), torch.ones(3)]),
    "one tensor": _save(lambda: torch.randn(3, 3), "embedding.pt"),
    "a tied model": _save(lambda: {"whole": Tied(), "state": Tied().state_dict()}),
    "a model of DataParallel": _save(lambda: nn.DataParallel(Net()).state_dict()),
    "averaged weights": _save(_averaged),
    "low precision": _save(_low_precision),
    "sparse and odd tensors": _save(_sparse),
    "quantised tensors": _save(_quantised),
    "settings of the user": _save(_settings),
    "values of many kinds": _save(_values),
    "states of generators": _save(_states),
    "parametrised layers": _save(_parametrised),
    "a compiled model": _save(_compiled),
    "a checkpoint of Lightning by hand": _checkpoint_of_lightning,
    "a run of the Trainer": _hf_trainer,
    "FSDP": _sharded_by_fsdp,
    "an old model": _old_model,
    "old weights": _old_weights,
    "a pickle of Python 2": _python_2,
    "XLA": _xla,
    "tokenizers in a checkpoint": _tokenizer,
    "a whole model of transformers": _whole_of_transformers,
    "a detector": _old_yolo,
    "an export": _exports,
    "joblib's files": _joblib,
    "scikit-learn": _sklearn,
    "scipy": _scipy,
    "pandas": _pandas,
    "OmegaConf": _omegaconf,
    "samplers and data": _dataloader,
    "Megatron": _megatron,
    "a checkpoint in a checkpoint": _nested_io,
}
NEEDS = {
    "a run of the Trainer": "transformers",
    "tokenizers in a checkpoint": "tokenizers",
    "a whole model of transformers": "transformers",
    "joblib's files": "joblib",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "pandas": "pandas",
    "OmegaConf": "omegaconf",
}


def write(folder: Path, name: str) -> None:
    with warnings.catch_warnings():  # of torch: what it will remove
        warnings.simplefilter("ignore")
        ORDINARY[name](folder)
