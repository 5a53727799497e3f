"""Saved files of three kinds: in order, damaged, and made to run code when they are loaded.

No tool loads them; a hostile file that is loaded would only create a file.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file


class Call:
    """A call, as a pickle writes it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


class Net(torch.nn.Module):
    """An embedding, a block with batch norm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(200, 32)
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.head = torch.nn.Linear(32, 200)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        hidden = self.norm(hidden + self.down(self.up(hidden).relu()))
        return torch.Tensor(self.head(hidden))


def trained() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(20):
        ids = torch.randint(0, 200, (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(ids), ids).backward()
        optimizer.step()
    return net, optimizer


def write(folder: Path) -> dict[str, list[Path]]:
    """All of them, by kind."""
    kinds = {"healthy": healthy, "damaged": damaged, "hostile": hostile}
    made: dict[str, list[Path]] = {}
    for kind, make in kinds.items():
        place = folder / kind
        place.mkdir(parents=True)
        make(place)
        made[kind] = sorted(place.iterdir())
    return made


def healthy(place: Path) -> None:
    net, optimizer = trained()
    state = net.state_dict()
    training = {"model": state, "optimizer": optimizer.state_dict(), "step": 20}
    torch.save(state, place / "weights.pt")
    torch.save(state, place / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(training, place / "training.pt")
    torch.save({**training, "args": argparse.Namespace(lr=1e-2)}, place / "training_with_args.pt")
    torch.save({k: v.bfloat16() for k, v in state.items()}, place / "bf16.pt")
    torch.save({f"module.{k}": v for k, v in state.items()}, place / "ddp.pt")
    torch.save(net, place / "whole_module.pt")
    mask = torch.full((8, 8), -math.inf).triu(1)
    torch.save({**state, "attn.mask": mask}, place / "causal_mask.pt")
    torch.save({**state, "logit_scale": torch.tensor(100.0)}, place / "logit_scale.pt")
    torch.save({**state, "head.bias": torch.zeros(200)}, place / "zero_bias.pt")
    adapter = {"lora_A.weight": torch.randn(4, 32) * 0.1, "lora_B.weight": torch.zeros(32, 4)}
    torch.save({**state, **adapter}, place / "fresh_lora.pt")
    save_file({k: v.contiguous() for k, v in state.items()}, place / "model.safetensors")
    np.savez(place / "arrays.npz", **{k: v.numpy() for k, v in state.items()})


def damaged(place: Path) -> None:
    def spoilt(name: str, key: str, value: float, count: int = 1) -> None:
        net, _ = trained()
        net.state_dict()[key].view(-1)[:count] = value
        torch.save(net.state_dict(), place / name)

    spoilt("one_nan.pt", "up.weight", math.nan)
    spoilt("all_nan.pt", "up.weight", math.nan, 64 * 32)
    spoilt("one_inf.pt", "down.weight", math.inf)
    spoilt("nan_statistics.pt", "norm.running_var", math.nan)
    spoilt("huge_weight.pt", "up.weight", 1e9)
    spoilt("dead_layer.pt", "up.weight", 0.0, 64 * 32)
    deep = {f"blocks.{n}.weight": torch.randn(32, 32) * 0.1 for n in range(6)}
    deep["blocks.3.weight"][0, 0] = 1e9
    torch.save(deep, place / "huge_weight_among_six_layers.pt")
    net, optimizer = trained()
    optimizer.state[net.up.weight]["exp_avg_sq"][0, 0] = math.nan
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 20}
    torch.save(state, place / "nan_moment.pt")
    net.up.weight.data[0, 0] = math.nan
    weights = {k: v.contiguous() for k, v in net.state_dict().items()}
    save_file(weights, place / "one_nan.safetensors")
    torch.save(weights, place / "cut_off.pt")
    _cut(place / "cut_off.pt")
    save_file(weights, place / "cut_off.safetensors")
    _cut(place / "cut_off.safetensors")
    (place / "empty.pt").write_bytes(b"")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"
    (place / "lfs_pointer.safetensors").write_bytes(pointer)
    (place / "error_page.pt").write_bytes(b"<!DOCTYPE html><html>404</html>")


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])


RAW = {
    "computed_name": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x93\x8c\x04true\x85R.",
    "through_a_module": b"\x80\x04\x8c\x13torch.serialization\x8c\tos.system\x93\x8c\x01x\x85R.",
    "old_instance": b"(S'true'\nios\nsystem\n.",
    "old_object": b"(cos\nsystem\nS'true'\no.",
    "python_2_eval": b"c__builtin__\neval\n(S'1'\ntR.",
    "partial": b"\x80\x02cfunctools\npartial\ncbuiltins\neval\n\x85RX\x01\x00\x00\x001\x85R.",
    "pip": b"\x80\x02cpip\nmain\n]X\x04\x00\x00\x00listaX\x00\x00\x00\x00\x86R.",
    "runpy": b"\x80\x02crunpy\nrun_path\nX\x01\x00\x00\x00x\x85R.",
    "webbrowser": b"\x80\x02cwebbrowser\nopen\nX\x01\x00\x00\x00x\x85R.",
    "fsspec_open": b"\x80\x02cfsspec\nopen\nX\x01\x00\x00\x00x\x85R.",
    "uuid_command": b"\x80\x02cuuid\n_get_command_stdout\nX\x01\x00\x00\x00x\x85R.",
    "timeit": b"\x80\x02ctimeit\ntimeit\nX\x01\x00\x00\x001\x85R.",
    "ctypes": b"\x80\x02cctypes\nCDLL\nX\x01\x00\x00\x00x\x85R.",
    "shutil_rmtree": b"\x80\x02cshutil\nrmtree\nX\x01\x00\x00\x00x\x85R.",
    "asyncio_process": b"\x80\x02casyncio.unix_events\n_UnixSubprocessTransport._start\n)R.",
    "numpy_runstring": (
        b"\x80\x02cnumpy.testing._private.utils\nrunstring\nX\x01\x00\x00\x001}\x86R."
    ),
    "logging_config": b"\x80\x02clogging.config\n_resolve\n)R.",
    "idlelib": b"\x80\x02cidlelib.run\nExecutive.runcode\n)R.",
}


def hostile(place: Path) -> None:
    evil = Call(os.system, "true")
    weights = {"w": torch.ones(3)}
    torch.save({**weights, "x": evil}, place / "os_system.pt")
    torch.save({**weights, "x": evil}, place / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({**weights, "x": Call(subprocess.check_output, ["true"])}, place / "subprocess.pt")
    torch.save({**weights, "x": Call(eval, "1")}, place / "eval.pt")
    inner = io.BytesIO()
    torch.save({"x": evil}, inner)
    hidden = Call(torch.storage._load_from_bytes, inner.getvalue())
    torch.save({**weights, "x": hidden}, place / "pickle_inside.pt")
    scalar: Any = np.float64(1).__reduce__()[0]
    hidden = Call(scalar, np.dtype("O"), pickle.dumps(evil))
    torch.save({**weights, "x": hidden}, place / "pickle_in_a_scalar.pt")
    torch.save({**weights, "x": Call(torch.load, "x")}, place / "torch_load.pt")
    torch.save({**weights, "x": Call(pickle.loads, pickle.dumps(evil))}, place / "loads.pt")
    np.savez(place / "object_array.npz", w=np.ones(3), o=np.array([evil], dtype=object))
    (place / "plain.pkl").write_bytes(pickle.dumps({"w": [1.0], "x": evil}))
    (place / "stopped_early.pkl").write_bytes(pickle.dumps(evil)[:-1] + b"\xff")
    for name, data in RAW.items():
        (place / f"{name}.pkl").write_bytes(data)
    with zipfile.ZipFile(place / "two_pickles.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"w": 1}))
        archive.writestr("a/.data/other.pkl", pickle.dumps(evil))
        archive.writestr("a/version", "3")
    data = bytearray((place / "os_system.pt").read_bytes())
    data[data.index(b"PK\x03\x04") + 14] ^= 0xFF  # the checksum of the first part no longer fits
    (place / "bad_checksum.pt").write_bytes(data)
