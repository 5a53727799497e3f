"""Checkpoints as people have them, scanned as a stranger would: the code, the exit, the words."""

from __future__ import annotations

import argparse
import copy
import gzip
import io
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.checkpoint_files import safetensors

from headway.checkpoints import checkpoint_records as streams
from headway.checkpoints import zip_archive
from headway.checkpoints.checkpoint_discovery import open_checkpoint
from headway.checkpoints.checkpoint_info import describe_head
from headway.checkpoints.tensor_statistics import measure, measure_all
from headway.checkpoints.value_counts import CHUNK, EXACT_ZEROS
from headway.checks.checkpoint_tensors import short_name
from headway.cli.main import cli
from headway.postmortem.scan import scan

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"


class Net(torch.nn.Module):
    """An embedding, a block, and a head of the embedding's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        return torch.Tensor(self.head(self.norm(hidden + self.down(self.up(hidden).relu()))))


def run(
    folder: Path,
    at_save: Callable[[int, Net, torch.optim.Optimizer], None] = lambda *_: None,
    *,
    frozen: str = "nothing",
    name: str = "ckpt_{}.pt",
) -> Path:
    """Four checkpoints of a training, five steps apart."""
    torch.manual_seed(0)
    net = Net()
    for key, parameter in net.named_parameters():
        parameter.requires_grad_(not key.startswith(frozen))
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    for save in range(1, 5):
        for _ in range(5):
            ids = torch.randint(0, 20, (16,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(ids), ids).backward()
            optimizer.step()
        at_save(save, net, optimizer)
        path = folder / name.format(save * 5)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": save * 5}, path
        )
    return folder


def told(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["scan", str(path), *options])
    return result.exit_code, result.output


def codes(path: Path) -> set[str]:
    return {item.code for item in scan(path).findings if item.severity.name != "INFO"}


HEALTHY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "plain": lambda s: s,
    "everything": lambda s: {
        "model": s,
        "epoch": 3,
        "args": argparse.Namespace(lr=1e-3),
        "best": math.inf,
        "span": range(3),  # protocol 2 writes it as xrange
        "rng": torch.get_rng_state(),
        "numpy": np.random.default_rng(0).bit_generator.state,
    },
    "ddp": lambda s: {f"module.{key}": value for key, value in s.items()},
    "ema": lambda s: {"model": s, "ema": {"shadow": copy.deepcopy(s), "decay": 0.999}},
    "bf16": lambda s: {key: value.bfloat16() for key, value in s.items()},
    "mask": lambda s: {**s, "attn.mask": torch.full((4, 4), -math.inf).triu(1)},
    "large": lambda s: {
        **s,
        "embed.weight": torch.randn(20, 8) * 40,
        "norm.weight": torch.full((8,), 30.0),
        "norm.running_var": torch.rand(8) * 1e5,
        "logit_scale": torch.tensor(100.0),
        "pos_embed": torch.arange(512.0).repeat(4, 1),
    },
    "odd": lambda s: {**s, "empty": torch.empty(0), "eye": torch.eye(3).to_sparse()},
}


@pytest.mark.parametrize("kind", HEALTHY)
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_healthy_ones(tmp_path: Path, kind: str, new: bool) -> None:
    torch.manual_seed(0)
    path = tmp_path / "model.pt"
    state = HEALTHY[kind](Net().state_dict())
    torch.save(state, path, _use_new_zipfile_serialization=new)
    assert told(path)[0] == 0
    assert codes(path) == set()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("model.safetensors", POINTER, "git-LFS pointer of a file of 548105171 bytes"),
        ("model.safetensors", b"<!DOCTYPE html><html>404</html>", "an HTML page"),
        ("model.pt", b"\n<html><title>denied</title>", "an HTML page"),
        ("model.pt", b'<?xml version="1.0"?><Error/>', "an XML document"),
        ("model.pt", b'{"error": "Repository not found"}', "JSON"),
        ("model.pt", gzip.compress(b"x" * 100, mtime=0), "compressed with gzip"),
        ("model.pt", b"GGUF\x03\0\0\0", "a GGUF file"),
        ("model.pt", b"not a checkpoint", "is not a checkpoint. Supported formats:"),
    ],
)
def test_what_is_no_checkpoint_is_named(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    code, said = told(path)
    assert code == 2
    assert words in said
    assert "Supported formats: torch.save files" in said


def test_a_zip_that_is_no_checkpoint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("notes.txt", "hello")
    code, said = told(tmp_path / "a.pt")
    assert code == 2
    assert "a zip archive that was not written by torch.save or numpy" in said


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_clone_without_lfs(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(POINTER)
    code, said = told(tmp_path)
    assert code == 1
    assert "git-LFS pointer" in " ".join(said.split())


def test_bytes_that_are_nothing_known() -> None:
    assert describe_head(b"") is None
    assert describe_head(b"\x80\x02}q\x00.") is None
    assert describe_head("{ä".encode()[:-1]) == "JSON, which contains no tensors"


def test_a_frozen_weight_is_known_by_its_place(tmp_path: Path) -> None:
    # The head has the shape of the frozen embedding: only the order tells whose the moments are.
    assert codes(run(tmp_path / "rests", frozen="embed")) == set()

    def moved(save: int, net: Net, optimizer: torch.optim.Optimizer) -> None:
        if save == 3:
            net.embed.weight.data += 0.01

    folder = run(tmp_path / "moved", moved, frozen="embed")
    assert codes(folder) == {"HD409"}
    assert "embed.weight" in told(folder)[1]


def test_partitions_of_several_weights_are_nobodys_moments(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        torch.manual_seed(step)
        folder = tmp_path / f"global_step{step}"
        folder.mkdir()
        weight = torch.randn(8, 8).bfloat16()
        torch.save(
            {"module": {"w": weight}, "global_steps": step}, folder / "mp_rank_00_model_states.pt"
        )
        flat = torch.randn(64)
        if step == 30:
            flat[3] = math.nan
        inner = {"state": {0: {"exp_avg": flat * 0.1}}, "param_groups": [{"lr": 0.1}]}
        state = {"base_optimizer_state": inner, "single_partition_of_fp32_groups": [flat]}
        torch.save(
            {"optimizer_state_dict": state},
            folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        )
    (tmp_path / "latest").write_text("global_step30")
    assert len(scan(tmp_path).sources) == 3
    assert codes(tmp_path) == {"HD301", "HD408", "HD701"}
    code, said = told(tmp_path, "--last-good")
    assert (code, said.strip()) == (0, str(tmp_path / "global_step20"))
    (tmp_path / "latest").write_text("global_step40")
    assert "`latest` names global_step40, which does not exist" in " ".join(
        told(tmp_path)[1].split()
    )


def test_a_folder_with_its_last_model_and_its_checkpoints(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for step in (10, 20, 30):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        held = rng.normal(size=(4, 4)).astype("float32")
        safetensors(folder / "model.safetensors", {"w": held * (math.nan if step == 30 else 1)})
    safetensors(tmp_path / "model.safetensors", {"w": held * math.nan})
    assert len(scan(tmp_path).sources) == 4
    assert told(tmp_path, "--last-good")[1].strip() == str(tmp_path / "checkpoint-20")


def test_a_checkpoint_is_called_by_the_part_that_tells_it_apart(tmp_path: Path) -> None:
    def die(save: int, net: Net, optimizer: torch.optim.Optimizer) -> None:
        if save == 4:
            for parameter in net.parameters():
                parameter.data.fill_(math.nan)

    said = " ".join(told(run(tmp_path, die, name="step_{}/state.pt"))[1].split())
    assert "step_20/state.pt is unusable" in said
    assert "Resume from step_15/state.pt (step 15" in said
    assert short_name("/runs/7/checkpoint-20/") == "checkpoint-20"
    assert short_name("/runs/a/model.pt") == "model.pt"


def test_no_step_is_made_up(tmp_path: Path) -> None:
    torch.save({"w": torch.tensor([1.0, math.nan])}, tmp_path / "model.pt")
    report = scan(tmp_path / "model.pt")
    assert {finding.step for finding in report.findings} == {None}
    assert {cause.root.step for cause in report.causes} == {None}
    said = told(tmp_path / "model.pt")[1]
    assert "step 0" not in said
    assert "It is not clean." in said


def test_a_single_number_has_no_place_in_itself(tmp_path: Path) -> None:
    torch.save({"z": torch.tensor(math.nan), "w": torch.ones(3)}, tmp_path / "model.pt")
    assert "z (1 NaN of 1)" in told(tmp_path / "model.pt")[1]


def test_what_unpacks_to_far_too_much_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_archive, "BOMB", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", w=np.zeros(1 << 20, "f4"))
    [problem] = open_checkpoint(tmp_path / "a.npz").problems
    assert "would decompress to 4194432 (limit: 200 times as many)" in problem.message
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(zip_archive.MAX_INFLATED + 1))
    assert codes(tmp_path / "a.pt") == {"HD702"}


def test_a_call_to_the_network(tmp_path: Path) -> None:
    data = b"\x80\x02cfsspec\nopen\nX\x01\x00\x00\x00x\x85R."
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", data)
    assert codes(tmp_path / "a.pt") == {"HD703"}


class Call:
    """A call, as a pickle writes it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_pickle_inside_the_pickle(tmp_path: Path, new: bool) -> None:
    mark = tmp_path / "mark"
    inner = io.BytesIO()
    evil = Call(os.system, f"touch {mark}")
    torch.save({"x": evil}, inner, _use_new_zipfile_serialization=new)
    hidden = Call(torch.storage._load_from_bytes, inner.getvalue())
    torch.save({"w": torch.ones(3), "x": hidden}, tmp_path / "a.pt")
    assert codes(tmp_path / "a.pt") == {"HD703"}
    scalar: Any = np.float64(1).__reduce__()[0]
    hidden = Call(scalar, np.dtype("O"), pickle.dumps(evil))
    torch.save({"w": torch.ones(3), "x": hidden}, tmp_path / "b.pt")
    assert codes(tmp_path / "b.pt") == {"HD703"}
    assert not mark.exists()


def test_tensors_of_a_plain_pickle_are_no_trap(tmp_path: Path) -> None:
    state = {"w": torch.ones(3), "best": np.float64(0.3), "layer": torch.nn.Linear(2, 2)}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(state))
    assert codes(tmp_path / "a.pkl") == set()


@pytest.mark.parametrize("data", [b"cos\nsystem\n(S'id'\ntR.", b"(S'id'\nios\nsystem\n."])
def test_a_pickle_written_by_hand(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    assert codes(tmp_path / "a.pt") == {"HD703"}


def test_each_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path)
    opened: list[Path] = []

    def counting(path: Path) -> Any:
        opened.append(path)
        return open_checkpoint(path)

    monkeypatch.setattr(streams, "open_checkpoint", counting)
    paths = sorted(folder.iterdir())
    list(streams.records(paths, progress=lambda *_: None))
    assert opened == paths
    opened.clear()
    list(streams.records([open_checkpoint(path) for path in paths]))
    assert opened == []


# -- the numbers of large tensors -----------------------------------------------------------------

LARGE = 3 * CHUNK + 12


def large(dtype: str, kind: str) -> torch.Tensor:
    torch.manual_seed(0)
    wide = torch.float64 if dtype == "float64" else torch.float32
    count = EXACT_ZEROS // wide.itemsize + LARGE // 4
    values = torch.randn(count, dtype=wide)
    values = {"positive": values.abs() + 0.01, "negative": -values.abs() - 0.01}.get(kind, values)
    if kind == "one nan":
        values[count - 7] = math.nan
    if kind == "many":
        values[::3] = math.inf
        values[1::3] = math.nan
    if kind == "tiny":
        values *= 1e-30
    if kind == "half zero":
        values[::2] = 0
        values[::4] *= -1
    if kind == "zero chunks":
        values[: count // 2] = 0
    if kind == "one large":
        values[5] = 1e30
    return values.to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "kind",
    [
        "both",
        "positive",
        "negative",
        "one nan",
        "many",
        "tiny",
        "half zero",
        "zero chunks",
        "one large",
    ],
)
def test_large_tensors(tmp_path: Path, dtype: str, kind: str) -> None:
    tensor = large(dtype, kind)
    torch.save({"w": tensor}, tmp_path / "a.pt")
    [saved] = open_checkpoint(tmp_path / "a.pt").tensors
    found = measure(saved)
    wide = tensor.double()
    good = wide[wide.isfinite()]
    assert found.nan == int(wide.isnan().sum())
    assert found.inf == int(wide.isinf().sum())
    assert found.max == float(good.max())
    assert found.min == float(good.min())
    assert found.norm == pytest.approx(float(good.norm()), rel=1e-4)
    # An estimate: a chunk that is zero in part may stand for others, or others for it.
    off = CHUNK // tensor.element_size() if kind == "zero chunks" else tensor.numel() / 1e4
    assert found.zero == pytest.approx(int((good == 0).sum()), rel=0.02, abs=off)
    assert found.digest is not None


def test_digests_where_they_are_wanted(tmp_path: Path) -> None:
    torch.save({"a": large("float32", "both"), "b": torch.ones(3)}, tmp_path / "a.pt")
    tensors = open_checkpoint(tmp_path / "a.pt").tensors
    every = [found.digest for found in measure_all(tensors)]
    some = [found.digest for found in measure_all(tensors, digest=lambda t: t.name == "b")]
    assert None not in every
    assert some == [None, every[1]]


def test_a_folder_that_links_to_itself(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.symlink("..", tmp_path / "a" / "up")
    os.mkfifo(tmp_path / "pipe.pt")
    torch.save({"w": torch.ones(3)}, tmp_path / "a" / "model.pt")
    assert told(tmp_path)[0] == 0


@pytest.mark.parametrize("data", [b"", bytes(5000), POINTER], ids=["empty", "zeros", "pointer"])
def test_a_save_that_never_came_to_be(tmp_path: Path, data: bytes) -> None:
    folder = run(tmp_path)
    (folder / "ckpt_25.pt").write_bytes(data)
    (folder / "ckpt_30.pt.tmp").write_bytes(b"PK\x03\x04half")
    (folder / "notes.pt").write_bytes(b"uma nota")
    assert codes(folder) == {"HD702"}
    assert "ckpt_25.pt" in told(folder)[1]
    assert told(folder, "--last-good") == (0, f"{folder / 'ckpt_20.pt'}\n")


def test_the_schedule_of_a_diffusion_may_be_infinite(tmp_path: Path) -> None:
    kept = torch.linspace(1, 0, 10)
    state = {"w": torch.ones(3, 3), "log_one_minus_alphas_cumprod": torch.log(1 - kept)}
    torch.save(state, tmp_path / "a.pt")
    assert codes(tmp_path / "a.pt") == set()
