"""What is mutated: the kept logs of real frameworks, and small checkpoints of every format.

A seed is a folder `READER@NUMBER` with the files of one input. Only this part needs torch; the
worker that reads the mutants does not import it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "data"
LARGEST = 64 << 10
TEXT = 6 << 10
"""Bytes that are kept of a text: its beginning says it all, and mutants are read faster."""


class Touch:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def make(root: Path, mark: Path) -> None:
    """All of them."""
    for number, path in enumerate(sorted(p for p in DATA.rglob("*") if p.is_file())):
        _log(root, number, path)
    for number, (name, text) in enumerate(_texts().items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        _log(root, 10_000 + number, path)
        path.unlink()
    for number, (reader, write) in enumerate(_checkpoints(str(mark))):
        folder = root / f"{reader}@{number}"
        folder.mkdir(parents=True)
        write(folder)


def _log(root: Path, number: int, path: Path) -> None:
    from headway.errors import UnreadableInput
    from headway.logs.readers import reader_for

    if path.suffix in (".py", ".md") or path.stat().st_size > LARGEST:
        return
    try:
        reader = reader_for(path)
    except UnreadableInput:
        return
    if reader is None:
        return
    folder = root / f"{reader.format}@{number}"
    folder.mkdir(parents=True)
    data = path.read_bytes()
    (folder / path.name).write_bytes(
        data if b"\0" in data or path.suffix == ".json" else data[:TEXT]
    )


def _texts() -> dict[str, str]:
    """Logs of the formats that no framework has to write."""
    rows = [{"step": n, "loss": 2.5 - n / 9, "grad_norm": 1.0, "lr": 1e-4} for n in range(30)]
    keys = list(rows[0])
    table = [",".join(keys), *(",".join(str(row[key]) for key in keys) for row in rows)]
    factory = [
        {"current_steps": n, "total_steps": 30, "loss": 2.0, "lr": 1e-4, "epoch": n / 9}
        for n in range(30)
    ]
    boxes = ["epoch,time,train/box_loss,train/cls_loss,metrics/mAP50(B),lr/pg0"]
    boxes += [f"{n},{n}.5,1.2,0.7,0.5,0.01" for n in range(1, 20)]
    batches = [
        f"[n12] 2026-01-05 10:{n:02d}:00,120 (trainer:762) INFO: 1epoch:train:{n * 50 + 1}-"
        f"{n * 50 + 50}batch: loss_ctc=2.1, loss={2.0 - n / 50:.3f}, grad_norm=1.2, train_time=1.2"
        for n in range(30)
    ]
    lines = [f"step {n:6d}  loss {2.0 - n / 50:.4f}  0.001" for n in range(30)]
    series = {
        key: {"steps": [row["step"] for row in rows], "values": [row[key] for row in rows]}
        for key in keys[1:]
    }
    unnamed = {
        "tacotron": "Train loss {n} {v:.6f} Grad Norm 1.234567 2.10s/it",
        "tinygrad": "{n:3d}  120.10 ms run, 100.10 ms python, {v:7.2f} loss, 0.001000 LR",
        "catboost": "{n}:\tlearn: {v:.7f}\ttest: 0.7\tbest: 0.7 (0)\ttotal: 1ms",
        "darknet": " {n}: {v:.6f}, 3.1 avg loss, 0.001 rate, 3.2 seconds, 64 images",
    }
    return {
        **{
            f"{name}.log": "\n".join(line.format(n=n, v=2 - n / 50) for n in range(30))
            for name, line in unnamed.items()
        },
        "metrics.json": json.dumps(series),
        "0.monitor.csv": '#{"t_start": 1.5}\nr,l,t\n' + "1.5,20,0.1\n" * 30,
        "train_loss.txt": "\n".join(f"{n} {2 - n / 50}" for n in range(30)),
        "rows.jsonl": "\n".join(json.dumps(row) for row in rows),
        "nan.jsonl": "\n".join(json.dumps({**row, "loss": float("nan")}) for row in rows),
        "rows.json": json.dumps(rows),
        "history.json": json.dumps({key: [row[key] for row in rows] for key in keys}),
        "rows.csv": "\n".join(table),
        "rows.tsv": "\n".join(table).replace(",", "\t"),
        "trainer_log.jsonl": "\n".join(json.dumps(row) for row in factory),
        "results.csv": "\n".join(boxes),
        "columns.txt": "\n".join(["epoch loss lr", *(f"{n} {2 - n / 50} 0.1" for n in range(30))]),
        "train.log": "\n".join(lines),
        "espnet.log": "\n".join(batches),
        "equal.log": "\n".join(f"Epoch {n} | loss={2 / (n + 1):.3f} | lr=0.1" for n in range(30)),
    }


def _state(torch: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    half = {f"half.{key}": value.bfloat16() for key, value in model.state_dict().items()}
    return {
        "model": {**model.state_dict(), **half, "t": torch.randn(3, 5).half().t()},
        "optimizer": optimizer.state_dict(),
        "args": SimpleNamespace(lr=0.1),
        "step": 3,
    }


def _checkpoints(mark: str) -> list[tuple[str, Callable[[Path], None]]]:
    import torch
    import torch.distributed.checkpoint as dcp

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from support import blind_streams, third_blind_files

    state = _state(torch)
    arrays = {key.replace(".", "_"): np.ones((3, 4), "f4") for key in state["model"]}

    def torch_zip(folder: Path) -> None:
        torch.save(state, folder / "a.pt")

    def hostile(folder: Path) -> None:
        torch.save({**state, "hook": Touch(mark)}, folder / "a.pt")

    def legacy(folder: Path) -> None:
        torch.save(
            {**state, "hook": Touch(mark)},
            folder / "a.pt",
            _use_new_zipfile_serialization=False,
        )

    def script(folder: Path) -> None:
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(folder / "a.pt"))

    def exported(folder: Path) -> None:
        program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        torch.export.save(program, folder / "a.pt2")

    def old_tar(folder: Path) -> None:
        (folder / "a.pt").write_bytes(third_blind_files._old_tar())

    def joblib(folder: Path) -> None:
        (folder / "a.joblib").write_bytes(blind_streams.joblib(b""))

    def pickled(folder: Path) -> None:
        data = {"w": np.ones(3), "hook": Touch(mark), "x": [1, 2.5, "text", None, (1, 2)]}
        (folder / "a.pkl").write_bytes(pickle.dumps(data, 4))

    def plain(folder: Path) -> None:
        np.savez(folder / "a.npz", **arrays)

    def packed(folder: Path) -> None:
        np.savez_compressed(folder / "a.npz", **arrays)

    def objects(folder: Path) -> None:
        np.savez(folder / "a.npz", w=np.ones(3), o=np.array([Touch(mark)], dtype=object))

    def tensors(folder: Path) -> None:
        _safetensors(folder / "a.safetensors", arrays)

    def settings(folder: Path) -> None:
        torch.save(
            SimpleNamespace(learning_rate=0.1, hook=Touch(mark)), folder / "training_args.bin"
        )

    def hugging(folder: Path) -> None:
        names = sorted(arrays)
        parts = {"model-00001-of-00002.safetensors": names[::2]}
        parts["model-00002-of-00002.safetensors"] = names[1::2]
        for file, held in parts.items():
            _safetensors(folder / file, {name: arrays[name] for name in held})
        index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "config.json").write_text('{"tie_word_embeddings": true}')
        torch.save(state["optimizer"], folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text('{"global_step": 3, "log_history": []}')

    def distributed(folder: Path) -> None:
        made = folder / "made"
        dcp.save({"model": state["model"], "step": 3}, checkpoint_id=made, no_dist=True)
        for path in made.iterdir():
            shutil.move(path, folder / path.name)
        made.rmdir()

    def deepspeed(folder: Path) -> None:
        inside = folder / "global_step3"
        inside.mkdir()
        (folder / "latest").write_text("global_step3")
        torch.save(
            {"module": state["model"], "global_steps": 3, "dp_world_size": 1, "hook": Touch(mark)},
            inside / "mp_rank_00_model_states.pt",
        )
        flat = torch.randn(20)
        inner = {"state": {0: {"step": 3, "exp_avg": flat, "exp_avg_sq": flat}}, "param_groups": []}
        shard = {"base_optimizer_state": inner, "single_partition_of_fp32_groups": [flat]}
        torch.save(
            {"optimizer_state_dict": shard},
            inside / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        )

    def bomb(folder: Path) -> None:
        with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("w.npy", _array(1 << 20))

    return [
        ("torch-zip", torch_zip),
        ("torch-zip", hostile),
        ("torch-legacy", legacy),
        ("torchscript", script),
        ("exported-program", exported),
        ("torch-tar", old_tar),
        ("pickle", joblib),
        ("pickle", pickled),
        ("npz", plain),
        ("npz", packed),
        ("npz", objects),
        ("npz", bomb),
        ("safetensors", tensors),
        ("training-args", settings),
        ("hf-folder", hugging),
        ("dcp", distributed),
        ("deepspeed-folder", deepspeed),
    ]


def _array(count: int) -> bytes:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + bytes(4 * count)


def _safetensors(path: Path, tensors: dict[str, Any]) -> None:
    header: dict[str, Any] = {}
    body = b""
    for name, values in tensors.items():
        raw = values.tobytes()
        ends = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": ends}
        body += raw
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)
