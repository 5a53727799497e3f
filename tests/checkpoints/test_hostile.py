"""Files made to run code: found out, and not obeyed."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.checkpoints import inert_pickle, nested_pickles
from headway.checkpoints.checkpoint_discovery import open_checkpoint
from headway.checkpoints.inert_pickle import load, load_inert
from headway.checkpoints.pickle_values import Damaged, Global
from headway.checkpoints.pickle_verdict import judge_pickle, verdict
from headway.postmortem.run_settings import settings_of


class Touch:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def unsafe(path: Path) -> list[str]:
    found = [p for p in open_checkpoint(path).problems if p.kind == "unsafe"]
    return [name for problem in found for name in problem.facts["globals"]]


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_call_in_a_checkpoint(tmp_path: Path, new: bool) -> None:
    mark, path = tmp_path / "mark", tmp_path / "x.pt"
    state = {"w": torch.ones(2), "hook": Touch(mark)}
    torch.save(state, path, _use_new_zipfile_serialization=new)
    assert unsafe(path) == ["posix.system"]
    assert [t.name for t in open_checkpoint(path).tensors] == ["w"]
    assert not mark.exists()


def test_a_call_in_arguments_in_metadata_and_in_an_array(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    torch.save(Touch(mark), tmp_path / "training_args.bin")
    with pytest.raises(Exception, match="no named arguments"):
        settings_of(tmp_path / "training_args.bin")
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Touch(mark)))
    assert unsafe(folder) == ["posix.system"]
    np.savez(tmp_path / "a.npz", w=np.ones(3), o=np.array([Touch(mark)], dtype=object))
    assert unsafe(tmp_path / "a.npz") == ["posix.system"]
    hf = tmp_path / "hf"
    hf.mkdir()
    torch.save({"w": torch.ones(2)}, hf / "pytorch_model.bin")
    torch.save(Touch(mark), hf / "training_args.bin")
    assert unsafe(hf) == ["posix.system"]
    assert not mark.exists()


TRICKS = {
    "a computed name": b"\x80\x04\x8c\x02os\x94)\x93.",
    "a module through a module": (
        b"\x80\x04\x8c\x13torch.serialization\x8c\tos.system\x93\x8c\x01x\x85R."
    ),
    "an old instance": b"(S'true'\nios\nsystem\n.",
    "an object": b"(cos\nsystem\nS'true'\no.",
    "getattr and a call": (
        b"\x80\x02cbuiltins\ngetattr\n(cbuiltins\n__import__\nX\x04\x00\x00\x00namet"
        b"RX\x02\x00\x00\x00os\x85R."
    ),
    "an extension": b"\x80\x02\x82\x07.",
    "a python 2 name": b"c__builtin__\neval\n(S'1'\ntR.",
    "partial called": (
        b"\x80\x02cfunctools\npartial\ncbuiltins\nprint\n\x85RX\x02\x00\x00\x00hi\x85R."
    ),
    "a function of the standard library": b"\x80\x02cuuid\n_get_command_stdout\n)R.",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_are_seen(trick: str) -> None:
    assert judge_pickle(load(TRICKS[trick]))[0], trick


def test_a_pickle_inside_a_pickle(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    inner = tmp_path / "inner.pt"
    torch.save(Touch(mark), inner, _use_new_zipfile_serialization=False)

    class Outer:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (inner.read_bytes(),)

    path = tmp_path / "outer.pkl"
    path.write_bytes(pickle.dumps({"w": np.ones(3), "o": Outer()}))
    assert unsafe(path) == ["posix.system"]
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "torch._utils._rebuild_tensor_v2",
        "collections.OrderedDict",
        "numpy._core.multiarray._reconstruct",
        "numpy.random._pickle.__randomstate_ctor",
        "argparse.Namespace",
        "transformers.training_args.TrainingArguments",
        "transformers.trainer_utils.IntervalStrategy",
        "accelerate.state.PartialState",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.utils.tensor_fragment.fragment_address",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "omegaconf.dictconfig.DictConfig",
        "torch.distributed.checkpoint.metadata.Metadata",
        "torch.nn.modules.linear.Linear",
        "torch.float16",
        "functools.partial",
        "pathlib.PosixPath",
        "datetime.datetime",
        "builtins.set",
        "_codecs.encode",
    ],
)
def test_ordinary_names_are_quiet(name: str) -> None:
    module, _, last = name.rpartition(".")
    assert verdict(Global(module, last)) == "known"


def test_a_class_of_the_users_own_is_only_listed() -> None:
    assert verdict(Global("__main__", "Args")) == "unknown"
    assert verdict(Global("my.models", "Encoder.Block")) == "unknown"


BOMBS = {
    "marks": b"\x80\x02" + b"(" * 300_000,
    "lists": b"\x80\x02" + b"]" * 300_000,
    "a deep tuple as a key": b"\x80\x02})" + b"\x85" * 500_000 + b"Ns.",
    "a huge number": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"1" * 10_000 + b".",
    "a long decimal": b"L" + b"9" * 50_000 + b"L\n.",
    "a huge text": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "huge bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x3f.",
    "a huge memo": b"\x80\x02]r\xff\xff\xff\xff.",
    "nothing on the stack": b"\x80\x02R.",
    "append to nothing": b"\x80\x02a.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_end_quickly(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inert_pickle, "MAX_CONTAINERS", 100_000)
    loaded = load(BOMBS[bomb])
    assert loaded.damage is not None or bomb in ("a huge memo", "a deep tuple as a key")


def test_a_damaged_pickle_is_an_error_of_its_own() -> None:
    with pytest.raises(Damaged):
        load_inert(b"\x80\x02X", persistent=None)
    assert load_inert(pickle.dumps({"a": (1, 2.5, None, {3})}), persistent=None) == {
        "a": (1, 2.5, None, {3})
    }


def test_shapes_and_ranges_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "x.pt", tmp_path / "y.pt"
    torch.save({"w": torch.ones(12, 4)}, path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("data.pkl"):
                assert b"K\x0cK\x04\x86" in data
                data = data.replace(b"K\x0cK\x04\x86", b"K\xffK\x04\x86")
            new.writestr(name, data)
    found = open_checkpoint(other)
    assert found.tensors == []
    assert [p.facts["lost"] for p in found.problems] == [["w"]]


def test_an_archive_that_unpacks_to_too_much(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.npy", b"\x00" * 50_000_000)
    problems = open_checkpoint(path).problems
    assert [p.kind for p in problems] == ["unreadable"]


def archive(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> Path:
    """What torch.save writes, with further members."""
    torch.save({"w": torch.ones(3)}, path)
    with zipfile.ZipFile(path, "a", packing) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def evil() -> bytes:
    return pickle.dumps(Touch(Path("mark")))


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    "name", ["x/.data/other.pkl", "x/extra/a.PICKLE", "notes.txt", "x/data/9", "x/constants/0"]
)
def test_a_pickle_beside_the_one_that_is_read(tmp_path: Path, name: str, packing: int) -> None:
    path = archive(tmp_path / "x.pt", {"x/extra/plain.pkl": pickle.dumps(1), name: evil()}, packing)
    found = open_checkpoint(path)
    (problem,) = found.problems
    assert problem.kind == "unsafe"
    assert problem.facts["members"] == [name]
    assert f"its member {name!r} would run code" in problem.message
    assert problem.facts["globals"] == ["posix.system"]
    assert [t.name for t in found.tensors] == ["w"]


def test_several_of_them_are_one_problem(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.pt", {f"x/{n}.pkl": evil() for n in range(30)})
    (problem,) = open_checkpoint(path).problems
    assert "and 29 more of its members" in problem.message


def test_a_pickle_beside_the_main_one_in_a_file_that_lost_its_end(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.pt", {"x/other": evil()})
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"PK\x01\x02")])
    assert unsafe(path) == ["posix.system"]


def test_two_members_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", pickle.dumps({"w": 1}))
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("x/data.pkl", evil())
    kinds = {problem.kind for problem in open_checkpoint(path).problems}
    assert kinds == {"unreadable", "unsafe"}


def test_a_pickle_that_cannot_be_looked_into_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "x.pt", {"x/other.pkl": evil()}, zipfile.ZIP_LZMA)
    (problem,) = open_checkpoint(path).problems
    assert problem.kind == "unreadable"
    assert "'x/other.pkl' could not be examined: entry" in problem.message
    monkeypatch.setattr(nested_pickles, "MAX_BYTES", 100)
    path = archive(tmp_path / "y.pt", {"y/big.pkl": pickle.dumps("x" * 100)})
    (problem,) = open_checkpoint(path).problems
    assert "more than 100 bytes" in problem.message


def test_numbers_and_words_that_begin_like_a_pickle(tmp_path: Path) -> None:
    bytes_of_one = torch.frombuffer(bytearray(evil()), dtype=torch.uint8)
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(3), "raw": bytes_of_one.clone()}, path)
    members_of = {"x/labels.txt": b"cos\nsin\ntan\n", "x/numbers": b"\x80\x02\x00\x3f" * 64}
    with zipfile.ZipFile(path, "a") as file:
        for name, data in members_of.items():
            file.writestr(name, data)
    found = open_checkpoint(path)
    assert found.problems == []
    assert "stubbed" not in found.facts


def test_lists_of_torchscript_are_no_trap(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    path = tmp_path / "traced.pt"
    torch.jit.trace(model.eval(), torch.zeros(1, 1, 4, 4)).save(str(path))
    with zipfile.ZipFile(path) as file:
        assert any(b"restore_type_tag" in file.read(n) for n in file.namelist())
    assert open_checkpoint(path).problems == []
    assert verdict(Global("torch.jit._pickle", "restore_type_tag")) == "known"
    assert verdict(Global("torch.jit", "load")) == "dangerous"
