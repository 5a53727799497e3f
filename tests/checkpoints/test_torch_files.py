"""Files of torch itself, read without it and compared with what torch reads."""

from __future__ import annotations

import pickle
import random
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support import blind_streams, third_blind_files, third_blind_ordinary

from headway.checkpoints.checkpoint_discovery import open_checkpoint, recognise
from headway.checkpoints.formats import torch_tar
from headway.checkpoints.tensor_statistics import TensorStatistics, measure, measure_all
from headway.errors import UnreadableInput
from headway.postmortem.run_settings import settings_of

FLOATS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def agrees(found: TensorStatistics, tensor: torch.Tensor) -> None:
    """Every number is torch's."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = values.double()
    good = wide[wide.isfinite()]
    assert found.numel == tensor.numel()
    assert found.nan == int(wide.isnan().sum())
    assert found.inf == int(wide.isinf().sum())
    assert found.negative_inf == int((wide == -torch.inf).sum())
    assert found.zero == int((good == 0).sum())
    if good.numel():
        assert (found.min, found.max) == (float(good.min()), float(good.max()))
        assert found.norm == pytest.approx(float(good.norm()), rel=1e-5)
    bad = (~wide.isfinite()).nonzero()
    if len(bad):
        assert found.first_bad == tuple(bad[0].tolist())[: tensor.dim()]
        assert found.bad_rows == sorted({int(row) for row in bad[:, 0]})[:8]
    else:
        assert found.first_bad is None
        assert found.bad_rows == []


def zoo() -> dict[str, torch.Tensor]:
    """Tensors of every kind, shape and layout."""
    torch.manual_seed(1)
    made: dict[str, torch.Tensor] = {}
    for dtype in FLOATS:
        for count in (1, 7, 300_001):
            values = torch.randn(count) * 3
            if count > 1:
                values[::5] = 0
                values[3] = -0.0
            made[f"{dtype}.{count}"] = values.to(dtype)
        made[f"{dtype}.negative"] = (-values.abs() - 0.1).to(dtype)
        made[f"{dtype}.positive"] = (values.abs() + 0.1).to(dtype)
        values[777], values[300_000], values[888] = torch.nan, torch.inf, -torch.inf
        made[f"{dtype}.bad"] = values[:300_000].reshape(3000, 100).to(dtype)
        made[f"{dtype}.dead"] = torch.full((3, 4), torch.nan).to(dtype)
    block = torch.randn(40, 50, 6)
    block[3, 4, 5] = torch.nan
    made["permuted"] = block.permute(2, 0, 1)
    made["gaps"] = block[:, ::2, 1:3]
    made["expanded"] = block[0, 0].expand(100, 6)
    made["channels_last"] = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    made["complex"] = torch.randn(5, 3, dtype=torch.complex64)
    made["whole"] = torch.arange(-5, 400)
    made["truth"] = torch.tensor([True, False])
    made["empty"] = torch.zeros(0, 4)
    made["tiny"] = torch.full((10,), 1e-30)
    made["huge"] = torch.full((10,), 3e38)
    return made


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_every_kind_of_tensor_measures_as_in_torch(tmp_path: Path, new: bool) -> None:
    tensors = zoo()
    path = tmp_path / "x.pt"
    torch.save(tensors, path, _use_new_zipfile_serialization=new)
    found = open_checkpoint(path)
    assert found.format == ("torch-zip" if new else "torch-legacy")
    assert found.problems == []
    assert [t.name for t in found.tensors] == list(tensors)
    for saved, numbers in zip(found.tensors, measure_all(found.tensors), strict=True):
        assert saved.shape == tuple(tensors[saved.name].shape)
        assert f"torch.{saved.dtype}" == str(tensors[saved.name].dtype)
        agrees(numbers, tensors[saved.name])


def test_a_snapshot_of_a_guarded_run_is_of_the_step_its_folder_says(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for folder, step in (("4-step360", 360), ("elsewhere", 3)):
        (tmp_path / folder).mkdir()
        torch.save(state, tmp_path / folder / "state.pt")
        assert open_checkpoint(tmp_path / folder / "state.pt").step == step


def test_names_roles_and_step_of_a_training_state(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = tmp_path / "state.pt"
    state = {
        "epoch": 2,
        "model_state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, path)
    found = open_checkpoint(path)
    roles = {tensor.name: tensor.role for tensor in found.tensors}
    assert roles["0.weight"] == "weight"
    assert roles["1.running_var"] == "buffer"
    assert roles["2.bias.exp_avg_sq"] == "moment"
    assert roles["2.bias.step"] == "other"
    assert (found.step, found.facts["epoch"], found.facts["lr"]) == (3, 2, 1e-3)


def test_a_module_saved_whole(tmp_path: Path) -> None:
    model, _ = trained()
    path = tmp_path / "model.pt"
    torch.save(model, path)
    found = open_checkpoint(path)
    assert found.problems == []
    assert [t.name for t in found.tensors] == list(model.state_dict())
    assert {t.name for t in found.tensors if t.role == "buffer"} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def test_torchscript(tmp_path: Path) -> None:
    model, _ = trained()
    path = tmp_path / "model.ts"
    torch.jit.save(torch.jit.script(model), str(path))
    found = open_checkpoint(path)
    assert found.format == "torchscript"
    assert found.problems == []
    assert [t.name for t in found.tensors] == list(model.state_dict())
    for saved, numbers in zip(found.tensors, measure_all(found.tensors), strict=True):
        if saved.dtype == "float32":
            agrees(numbers, model.state_dict()[saved.name].detach())


class Program(torch.nn.Module):
    """With a parameter, a buffer and a constant, as an export keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)
        self.layer.weight = torch.nn.Parameter(torch.randn(2, 3).t())
        self.register_buffer("shift", torch.randn(2))
        self.factor = torch.randn(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x + self.shift) * self.factor
        return made


def exported(path: Path) -> dict[str, torch.Tensor]:
    """Writes an exported program, and returns what is in it."""
    with warnings.catch_warnings():  # of torch: a module that it no longer needs
        warnings.simplefilter("ignore")
        program = torch.export.export(Program(), (torch.ones(1, 2),))
        torch.export.save(program, path)
    return {**program.state_dict, **program.constants}


def test_an_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "x.pt2"
    held = exported(path)
    found = open_checkpoint(path)
    assert found.format == "exported-program"
    assert found.problems == []
    assert {t.name for t in found.tensors} == set(held)
    for saved, numbers in zip(found.tensors, measure_all(found.tensors), strict=True):
        agrees(numbers, held[saved.name].detach())


def test_the_weights_of_an_exported_program_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "x.pt2"
    exported(path)
    with zipfile.ZipFile(path) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    evil = b"cos\nsystem\n(S'touch mark'\ntR."
    for changed, kind in (
        ({"weight_0": b""}, "unreadable"),
        ({"weight_0": evil}, "unsafe"),
        ({"weights_config.json": b'{"config": {"a": {"path_name": "weight_0"}}}'}, "unreadable"),
        ({"weights_config.json": b"["}, "unreadable"),
        ({"sample_inputs": b"\x80\x02" + evil}, "unsafe"),
    ):
        with zipfile.ZipFile(path, "w") as file:
            for name, data in members:
                file.writestr(name, next((d for p, d in changed.items() if p in name), data))
        assert kind in {problem.kind for problem in open_checkpoint(path).problems}, changed


def test_an_exported_program_of_an_older_torch(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3), "b": torch.randn(2, 2)}
    torch.save(weights, tmp_path / "state.pt")
    with zipfile.ZipFile(tmp_path / "x.pt2", "w") as file:
        file.writestr("serialized_exported_program.json", "{}")
        file.write(tmp_path / "state.pt", "serialized_state_dict.pt")
        file.writestr("version", "5.1")
    found = open_checkpoint(tmp_path / "x.pt2")
    assert found.problems == []
    for saved, numbers in zip(found.tensors, measure_all(found.tensors), strict=True):
        agrees(numbers, weights[saved.name])


def test_a_tar_of_2016(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(third_blind_files._old_tar())
    assert torch.load(path, weights_only=False)["w"].tolist() == [1.0, 2.0]
    found = open_checkpoint(path)
    assert found.problems == []
    assert [t.name for t in found.tensors] == ["w"]
    agrees(next(iter(measure_all(found.tensors))), torch.tensor([1.0, 2.0]))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"FloatStorage", b"DoubleStorag"))
    assert "unreadable" in {problem.kind for problem in open_checkpoint(path).problems}
    path.write_bytes(third_blind_files._old_tar(b"cos\nsystem\n(S'touch mark'\ntR."))
    assert "unsafe" in {problem.kind for problem in open_checkpoint(path).problems}


def test_the_tables_of_a_tar_are_read_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(third_blind_files._old_tar())
    monkeypatch.setattr(torch_tar, "MAX_SECONDS", -1)
    (problem,) = open_checkpoint(path).problems
    assert "too many tensors to be judged" in problem.message


def test_arrays_of_joblib(tmp_path: Path) -> None:
    path = tmp_path / "x.joblib"
    path.write_bytes(blind_streams.joblib(b""))
    found = open_checkpoint(path)
    assert found.problems == []
    assert [t.name for t in found.tensors] == ["a"]
    agrees(next(iter(measure_all(found.tensors))), torch.ones(2))
    path.write_bytes(path.read_bytes()[:-6])
    assert recognise(path) is not None
    assert [problem.kind for problem in open_checkpoint(path).problems] == ["unreadable"]


@pytest.mark.parametrize(
    "name", ["a storage below zero", "a shape of a float", "more strides than sizes"]
)
def test_a_tensor_with_an_invalid_description_is_lost(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(third_blind_files.FILES[name][2]())
    found = open_checkpoint(path)
    assert found.tensors == []
    assert [problem.facts["lost"] for problem in found.problems] == [["w"]]


def test_a_plain_pickle_of_tensors_and_of_arrays(tmp_path: Path) -> None:
    weights = {"w": torch.randn(4, 5), "a": torch.randn(3).numpy()}
    path = tmp_path / "w.pkl"
    for protocol in (2, 4, 5):
        path.write_bytes(pickle.dumps(weights, protocol=protocol))
        found = open_checkpoint(path)
        assert found.problems == []
        if protocol == 2:  # bytes are written as text there
            assert found.facts["skipped"]
            continue
        assert measure(found.tensors[0]).norm == pytest.approx(float(weights["w"].norm()), rel=1e-6)


def test_tied_weights_are_told(tmp_path: Path) -> None:
    shared = torch.randn(5, 3)
    path = tmp_path / "tied.pt"
    torch.save({"embed.weight": shared, "head.weight": shared}, path)
    assert open_checkpoint(path).facts["ties"] == {"head.weight": "embed.weight"}


def test_a_big_endian_file(tmp_path: Path) -> None:
    import zipfile

    path, other = tmp_path / "little.pt", tmp_path / "big.pt"
    values = torch.randn(50)
    torch.save({"w": values}, path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("byteorder"):
                data = b"big"
            elif name.endswith("data/0"):
                data = values.numpy().byteswap().tobytes()
            new.writestr(name, data)
    agrees(measure(open_checkpoint(other).tensors[0]), values)


def test_a_deflated_file_is_unpacked_piece_by_piece(tmp_path: Path) -> None:
    import zipfile

    path, other = tmp_path / "plain.pt", tmp_path / "packed.pt"
    values = torch.randn(200_000)
    torch.save({"w": values}, path)
    with (
        zipfile.ZipFile(path) as old,
        zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    agrees(measure(open_checkpoint(other).tensors[0]), values)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_cut_off_anywhere(tmp_path: Path, new: bool) -> None:
    model, optimizer = trained()
    whole = tmp_path / "whole.pt"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, whole, _use_new_zipfile_serialization=new)
    data = whole.read_bytes()
    path = tmp_path / "cut.pt"
    last = 0
    for size in [*range(0, len(data) - 1, 211), len(data) - 1]:
        path.write_bytes(data[:size])
        try:
            found = open_checkpoint(path)
        except UnreadableInput:
            assert size < 64
            continue
        assert [p.kind for p in found.problems] == ["unreadable"], size
        assert str(path) in found.problems[0].message
        assert len(found.tensors) >= last - 1
        last = len(found.tensors)
        for saved, numbers in zip(found.tensors, measure_all(found.tensors), strict=True):
            assert (numbers.nan, numbers.inf) == (0, 0), saved
    assert last > 20  # only the directory was missing


def test_mutated_files_give_a_checkpoint_or_one_clear_error(tmp_path: Path) -> None:
    model, _ = trained()
    path = tmp_path / "m.pt"
    chance = random.Random(0)
    originals = []
    for new in (True, False):
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=new)
        originals.append(path.read_bytes())
    for turn in range(300):
        data = bytearray(originals[turn % 2])
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(min(len(data), 2500) if turn % 3 else len(data))] = (
                chance.randrange(256)
            )
        path.write_bytes(data)
        try:
            found = open_checkpoint(path)
            for _ in measure_all(found.tensors):
                pass
        except UnreadableInput:
            pass


def test_sharded_weights_of_fsdp_are_known(tmp_path: Path) -> None:
    third_blind_ordinary.write(tmp_path, "FSDP")
    assert open_checkpoint(tmp_path / "local.pt").problems == []


def test_arguments_are_read_as_plain_values(tmp_path: Path) -> None:
    import argparse

    path = tmp_path / "training_args.bin"
    torch.save(argparse.Namespace(learning_rate=3e-4, fp16=True, names=["a"]), path)
    assert settings_of(path) == {"learning_rate": 3e-4, "fp16": True, "names": ["a"]}


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    for name, data in (("empty", b""), ("text", b"hello"), ("json", b'{"a": 1}')):
        path = tmp_path / name
        path.write_bytes(data)
        assert recognise(path) is None
        with pytest.raises(UnreadableInput, match="supported"):
            open_checkpoint(path)
    plain: Any = {"vocabulary": [1, 2, 3]}
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(plain))
    assert recognise(tmp_path / "p.pkl") is None
    with pytest.raises(UnreadableInput):
        open_checkpoint(tmp_path / "absent")
