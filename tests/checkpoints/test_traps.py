"""Every trap is reported, none is executed, and ordinary checkpoints are quiet."""

from __future__ import annotations

import functools
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import torch
from click.testing import CliRunner
from support import pickle_traps as traps
from support.blind_streams import joblib

from headway.checkpoints.inert_pickle import load
from headway.checkpoints.pickle_verdict import judge_pickle
from headway.cli.main import cli
from headway.core.findings import Severity
from headway.postmortem.scan import scan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))
import pickle_differential as differential  # type: ignore[import-not-found]

PICKLES = dict(traps.pickles())
MIN_TRAPS, MIN_MECHANISMS = 300, 40


def test_there_are_enough() -> None:
    assert len(PICKLES) >= MIN_TRAPS
    assert len(traps.WAYS) + len(traps.SPECIAL) >= MIN_MECHANISMS


def test_no_trap_is_called_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    missed = []
    for name, data in PICKLES.items():
        loaded = load(data)
        if not any(judge_pickle(loaded)) and loaded.damage is None:
            missed.append(name)
    assert missed == []
    assert os.listdir(tmp_path) == []


def test_no_file_with_a_trap_is_called_clean(tmp_path: Path) -> None:
    for name, path in traps.files(tmp_path):
        report = scan(path)
        assert [f for f in report.findings if f.code == "HD703"], name
        evil = [item for item in report.sources if item["verdict"] in ("unsafe", "unreadable")]
        assert evil, name


@pytest.mark.nightly
def test_most_of_them_do_run_code(tmp_path: Path) -> None:
    """The set is worth something only if loading its files does something."""
    program = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    ran = 0
    for number, data in enumerate(PICKLES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", program],
            input=data,
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=60,
        )
        ran += any(folder.iterdir())
    assert ran > 100


# What is not a trap.


class Own:
    """A class of the user."""

    def __init__(self) -> None:
        self.lr = 0.1


def scanned(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["scan", str(path), *options])
    return result.exit_code, result.output


def test_a_class_of_the_user_is_a_warning_until_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(2), "config": Own()}, path)
    name = f"{Own.__module__}.Own"
    monkeypatch.chdir(tmp_path)
    code, text = scanned(path)
    assert code == 0
    assert "unknown code" in text
    assert f"refers to code that is not on the allowlist: {name}" in " ".join(text.split())
    assert scanned(path, "--last-good")[0] == 1
    assert scanned(path, "--fail-on", "warning")[0] == 1
    for allowed in (name, f"{Own.__module__}.*"):
        assert scanned(path, "--fail-on", "warning", "--allow", allowed)[0] == 0
        assert scanned(path, "--last-good", "--allow", allowed)[0] == 0
    (tmp_path / "pyproject.toml").write_text(f'[tool.headway]\nallow = ["{name}"]\n')
    assert scanned(path, "--fail-on", "warning")[0] == 0


def test_settings_that_come_with_the_files_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.pt").write_bytes(traps.EVIL)
    (tmp_path / "pyproject.toml").write_text('[tool.headway]\nignore = ["HD7"]\n')
    monkeypatch.chdir(tmp_path)
    code, text = scanned(Path())
    assert code == 1
    assert "HD703" in text
    assert "pyproject.toml is inside a scanned folder and is ignored" in " ".join(text.split())


def test_whole_models_and_partials_are_ordinary(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU(), torch.nn.BatchNorm1d(2))
    model.hook = functools.partial(torch.clamp, min=0.0)
    model.activation = torch.nn.functional.gelu
    torch.save(model, tmp_path / "whole.pt")
    (source,) = scan(tmp_path / "whole.pt").sources
    assert source["verdict"] == "clean"


def test_a_partial_of_a_command_is_not_ordinary(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    model.hook = functools.partial(os.system, "true")
    torch.save(model, tmp_path / "whole.pt")
    (finding,) = scan(tmp_path / "whole.pt").findings
    assert (finding.code, finding.severity) == ("HD703", Severity.ERROR)
    assert "would run code when it is loaded: posix.system; it was not loaded" in finding.message


@pytest.mark.slow
def test_a_whole_model_of_transformers_is_ordinary(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    torch.save(transformers.BertModel(config), tmp_path / "bert.pt")
    report = scan(tmp_path / "bert.pt")
    assert report.sources[0]["verdict"] == "clean"
    assert not report.findings


def test_arrays_of_joblib_are_skipped_and_read(tmp_path: Path) -> None:
    """`joblib.load` skips the bytes of an array, `pickle.load` reads them as opcodes."""
    whole, trap = joblib(b""), joblib(b"X\x01\x00\x00\x00b" + traps.EVIL[2:-1] + b"s")
    loaded = load(whole)
    assert (loaded.damage, loaded.end, any(judge_pickle(loaded))) == (None, len(whole), False)
    dangerous, _ = judge_pickle(load(trap))
    assert list(dangerous) == ["os.system"]
    padding = b"N" + b"cos\nsystem\n".ljust(ord("N"), b"N")  # 78 bytes, and valid opcodes
    assert "os.system" in judge_pickle(load(whole.replace(b"\x01\xff", padding)))[0]
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    (tmp_path / "scaler.joblib").write_bytes(whole)
    assert scanned(tmp_path)[0] == 0
    (tmp_path / "scaler.joblib").write_bytes(trap)
    assert scanned(tmp_path)[0] == 1


# Folders.


def test_links_out_of_a_folder_are_named_and_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.pt", tmp_path / "run"
    torch.save({"secret": torch.ones(2)}, outside)
    folder.mkdir()
    (folder / "model.pt").symlink_to(outside)
    code, text = scanned(folder)
    assert code == 2
    assert "outside the scanned folders and was not followed" in " ".join(text.split())
    torch.save({"w": torch.ones(2)}, folder / "own.pt")
    report = scan(folder)
    assert [Path(item["path"]).name for item in report.sources] == ["own.pt"]
    assert any("was not followed" in note for note in report.notes)
    (folder / "again.pt").symlink_to(folder / "own.pt")
    assert len(scan(folder).sources) == 1  # a second name of the same file


def test_the_links_of_the_hub_stay_in_its_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b/snapshots/1f"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    torch.save({"w": torch.ones(2)}, blobs / "abc")
    (snapshot / "pytorch_model.bin").symlink_to(Path("../../blobs/abc"))
    (source,) = scan(snapshot).sources
    assert (source["tensors"], source["verdict"]) == (1, "clean")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("name", ["training_args.bin", "rng_state.pth", "model.pt"])
def test_a_fifo_is_never_opened(tmp_path: Path, name: str) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    os.mkfifo(tmp_path / name)
    (source,) = scan(tmp_path).sources
    assert source["verdict"] == "clean"


# Small files that would take for ever.


def nested(depth: int, wrap: bytes) -> bytes:
    """A container that contains the one before it twice, and so on."""
    out = b"\x80\x02]q\x00"
    for level in range(1, depth):
        inner = b"h" + bytes([level - 1])
        out += b"0(" + inner + inner + wrap + b"q" + bytes([level])
    return out


def test_shared_containers_are_not_written_out() -> None:
    lists = nested(60, b"l")
    for data in (
        lists + b"ccollections\nOrderedDict\n)R.",
        lists.replace(b"\x80\x02", b"\x80\x02cpathlib\nPosixPath\n", 1) + b"\x85R.",
        lists.replace(b"\x80\x02", b"\x80\x02cbuiltins\ngetattr\nN", 1) + b"\x86R.",
    ):
        load(data)


def test_a_key_that_cannot_be_hashed_in_time_is_not_judged() -> None:
    tuples = nested(60, b"t").replace(b"]q\x00", b")q\x00")
    damage = load(tuples.replace(b"\x80\x02", b"\x80\x02}", 1) + b"K\x01s.").damage
    assert "parts" in str(damage)


def test_a_view_that_repeats_its_storage_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.tensor([1.0, float("nan")]).expand(1 << 40, 2)}, path)
    (finding,) = [item for item in scan(path).findings if item.code == "HD701"]
    assert finding.evidence["nan"] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('"b"', '"a"'), "two entries called 'a'"),
        (lambda text: text.replace("[8, 16]", "[9, 17]"), "belong to no tensor"),
        (lambda text: text.replace("[8, 16]", "[8, 12]").replace("[2]", "[1]"), "bytes"),
        (lambda text: text.replace('"F32"', '"F31"'), "unknown dtype"),
        (lambda text: text.replace('"pt"', "3"), "is not a table of texts"),
    ],
)
def test_safetensors_that_its_library_refuses(
    tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    entry = '{"dtype": "F32", "shape": [2], "data_offsets": %s}'
    text = '{"__metadata__": {"format": "pt"}, "a": %s, "b": %s}'
    text = change(text % (entry % "[0, 8]", entry % "[8, 16]"))
    head = text.encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(17 if "17" in text else 16))
    with pytest.raises(safetensors.SafetensorError), safetensors.safe_open(path, "numpy"):
        pass
    messages = [item.message for item in scan(path).findings if item.code == "HD702"]
    assert any(said in message for message in messages)


def test_ours_is_read_as_cpython_reads_it() -> None:
    assert differential.fuzz(3_000, seed=1) == {}
