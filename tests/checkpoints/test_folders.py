"""Folders and archives of the frameworks, healthy and with planted faults."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from headway.checkpoints.checkpoint_discovery import find_checkpoints, open_checkpoint, recognise
from headway.checkpoints.checkpoint_records import records
from headway.checkpoints.tensor_statistics import measure, measure_all
from headway.core.records import EventRecord, Header, TensorRecord
from headway.errors import UnreadableInput
from headway.postmortem.run_settings import settings_of
from headway.postmortem.scan import scan


def bad(path: Path) -> dict[str, int]:
    """The tensors of a checkpoint that are not finite, and how many elements."""
    tensors = open_checkpoint(path).tensors
    found = zip(tensors, measure_all(tensors), strict=True)
    return {t.name: m.nan + m.inf for t, m in found if m.nan + m.inf}


# -- Hugging Face ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    folder = tmp_path_factory.mktemp("hf")
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    rows = [{"input_ids": [1, 2, 3], "labels": n % 2} for n in range(16)]
    arguments = TrainingArguments(
        str(folder),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=4,
        learning_rate=3e-4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows).train()
    return folder


def test_a_folder_of_the_trainer(hf_run: Path) -> None:
    path = hf_run / "checkpoint-4"
    found = open_checkpoint(path)
    assert (found.format, found.step, found.problems) == ("hf-folder", 4, [])
    assert {t.role for t in found.tensors} >= {"weight", "moment"}
    assert "state.0.exp_avg" in {t.name for t in found.tensors}
    assert bad(path) == {}
    settings = settings_of(path / "training_args.bin")
    assert settings["learning_rate"] == 3e-4
    assert settings["max_steps"] == 4


def test_the_checkpoints_of_a_run_in_order(hf_run: Path) -> None:
    assert [p.name for p in find_checkpoints(hf_run)] == ["checkpoint-2", "checkpoint-4"]


def test_dead_weights_and_a_dead_moment_in_the_folder(hf_run: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = tmp_path / "checkpoint-4"
    shutil.copytree(hf_run / "checkpoint-4", path)
    weights = load_file(path / "model.safetensors")
    weights["classifier.weight"][1, 2] = torch.nan
    save_file(weights, path / "model.safetensors")
    optimizer = torch.load(path / "optimizer.pt")
    optimizer["state"][0]["exp_avg"].fill_(torch.inf)
    torch.save(optimizer, path / "optimizer.pt")
    found = bad(path)
    assert found["classifier.weight"] == 1
    assert found["state.0.exp_avg"] == optimizer["state"][0]["exp_avg"].numel()
    assert len(found) == 2


def test_a_missing_shard_and_a_torn_one(tmp_path: Path) -> None:
    shards = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    names = {}
    for number, name in enumerate(shards):
        save_file({f"layer.{number}.weight": torch.randn(40, 10)}, tmp_path / name)
        names[f"layer.{number}.weight"] = name
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert open_checkpoint(tmp_path).problems == []
    assert open_checkpoint(index).format == "safetensors-sharded"
    assert len(open_checkpoint(index).tensors) == 3
    torn = tmp_path / shards[2]
    torn.write_bytes(torn.read_bytes()[:500])
    (tmp_path / shards[1]).unlink()
    found = open_checkpoint(tmp_path)
    said = {key: value for problem in found.problems for key, value in problem.facts.items()}
    assert said["missing"] == [shards[1]]
    assert {p.kind for p in found.problems} == {"unreadable"}
    assert [t.name for t in found.tensors] == ["layer.0.weight"]


# -- Lightning, DCP, DeepSpeed, npz ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    import lightning

    class Small(lightning.LightningModule):
        def __init__(self, rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=self.hparams["rate"])

    trainer = lightning.Trainer(
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Small(), torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4))
    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path)
    assert recognise(path) == "lightning"
    found = open_checkpoint(path)
    assert (found.format, found.step, found.problems) == ("lightning", 3, [])
    names = {t.name: t.role for t in found.tensors}
    assert names["layer.weight"] == "weight"
    assert names["layer.weight.exp_avg_sq"] == "moment"
    assert settings_of(path) == {"rate": 0.1}


def dcp_folder(path: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 5)).square().mean().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 70}
    dcp.save(state, checkpoint_id=str(path), no_dist=True)
    return state


def test_a_distributed_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "save"
    state = dcp_folder(path)
    found = open_checkpoint(path)
    assert (found.format, found.step, found.problems) == ("dcp", 70, [])
    held = {t.name: t for t in found.tensors}
    assert held["0.weight"].role == "weight"
    assert held["1.running_mean"].role == "buffer"
    assert held["state.0.exp_avg"].role == "moment"
    expected = float(state["model"]["0.weight"].norm())
    assert measure(held["0.weight"]).norm == pytest.approx(expected, rel=1e-6)
    next(path.glob("*.distcp")).unlink()
    problem = open_checkpoint(path).problems[0]
    assert problem.facts["missing"] == ["__0_0.distcp"]
    (path / ".metadata").unlink()
    assert recognise(path) is None


def deepspeed_folder(root: Path, *, poison: bool = False) -> Path:
    """The layout of DeepSpeed 0.19 at ZeRO stage 1, two ranks; written with torch.save."""
    torch.manual_seed(0)
    folder = root / "global_step30"
    folder.mkdir(parents=True)
    (root / "latest").write_text("global_step30")
    module = {"a.weight": torch.randn(4, 3).bfloat16(), "a.bias": torch.randn(4).bfloat16()}
    state = {"module": module, "global_steps": 30, "dp_world_size": 2, "ds_version": "0.19.8"}
    torch.save(state, folder / "mp_rank_00_model_states.pt")
    for rank in range(2):
        moment = torch.randn(8)
        if poison and rank:
            moment[5] = torch.nan
        inner = {
            "base_optimizer_state": {
                "state": {0: {"step": torch.tensor(30.0), "exp_avg": moment}},
                "param_groups": [{"lr": 1e-4, "params": [0]}],
            },
            "single_partition_of_fp32_groups": [torch.randn(8)],
            "zero_stage": 1,
        }
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": inner, "ds_version": "0.19.8"}, folder / name)
    return folder


DEEPSPEED = Path(__file__).parents[1] / "data" / "deepspeed"
"""Written by DeepSpeed itself: see make.py there."""


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_what_deepspeed_wrote(stage: int) -> None:
    found = open_checkpoint(DEEPSPEED / f"healthy-zero{stage}" / "global_step3")
    assert (found.format, found.step, found.problems) == ("deepspeed", 3, [])
    masters = [t for t in found.tensors if t.role == "weight" and t.dtype == "float32"]
    assert sum(tensor.numel for tensor in masters) == 8 * 16 + 16 + 16 * 4 + 4
    moments = [tensor for tensor in found.tensors if tensor.role == "moment"]
    assert sum(tensor.numel for tensor in moments) == 2 * sum(tensor.numel for tensor in masters)
    assert not any(number.nan or number.inf for number in map(measure, found.tensors))


@pytest.mark.parametrize(("stage", "where"), [(1, "0.weight.fp32"), (3, "rank1.group0.fp32")])
def test_a_bad_weight_in_what_deepspeed_wrote(stage: int, where: str) -> None:
    report = scan(DEEPSPEED / f"sick-zero{stage}")
    assert [cause.code for cause in report.causes] == ["HD701"]
    assert report.findings[0].step == 3
    assert where in report.findings[0].message


def test_deepspeed(tmp_path: Path) -> None:
    folder = deepspeed_folder(tmp_path / "healthy")
    for path in (folder, folder.parent):
        found = open_checkpoint(path)
        assert (found.format, found.step, found.problems) == ("deepspeed", 30, [])
        names = {t.name: t.role for t in found.tensors}
        assert names["a.weight"] == "weight"
        assert names["rank1.group0.fp32"] == "weight"
        assert names["rank1.group0.exp_avg"] == "moment"
    assert find_checkpoints(folder.parent) == [folder]
    sick = deepspeed_folder(tmp_path / "sick", poison=True)
    assert bad(sick) == {"rank1.group0.exp_avg": 1}
    (sick / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert open_checkpoint(sick).problems[0].facts["missing"] == ["rank 1"]


@pytest.mark.parametrize("packed", [False, True])
def test_npz(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "step_40.npz"
    weights = np.arange(60_000, dtype=np.float32).reshape(200, 300) / 7
    weights[7, 9] = np.nan
    save = np.savez_compressed if packed else np.savez
    save(path, w=weights, f=np.asfortranarray(weights), b=weights.astype(">f8"), n=np.array("x"))
    found = open_checkpoint(path)
    assert (found.format, found.step, found.problems) == ("npz", 40, [])
    for tensor, numbers in zip(found.tensors, measure_all(found.tensors), strict=True):
        assert (numbers.nan, numbers.first_bad, numbers.bad_rows) == (1, (7, 9), [7]), tensor.name
        assert numbers.norm == pytest.approx(float(np.sqrt(np.nansum(weights.astype(float) ** 2))))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert [p.kind for p in open_checkpoint(path).problems] == ["unreadable"]


# -- the stream and the search --------------------------------------------------------------------


def test_the_stream(tmp_path: Path) -> None:
    weights = torch.randn(6, 2)
    weights[4, 1] = torch.inf
    for step, tensor in ((1, torch.randn(6, 2)), (2, weights)):
        torch.save({"step": step, "model": {"w": tensor}}, tmp_path / f"s{step}.pt")
    told: list[tuple[int, int]] = []
    stream = list(
        records(find_checkpoints(tmp_path), progress=lambda done, of: told.append((done, of)))
    )
    assert isinstance(stream[0], Header)
    assert stream[0].source == "checkpoint"
    tensors = [r for r in stream if isinstance(r, TensorRecord)]
    assert [(r.step, r.name, r.nonfinite) for r in tensors] == [(1, "w", 0), (2, "w", 1)]
    assert tensors[1].facts["first_bad"] == [4, 1]
    assert tensors[0].facts["digest"] != tensors[1].facts["digest"]
    events = [r.kind for r in stream if isinstance(r, EventRecord)]
    assert events == ["checkpoint", "scan", "checkpoint", "scan"]
    assert [r.seq for r in stream[1:]] == list(range(1, len(stream)))
    assert told[-1] == (96, 96)


def test_the_search_ends_in_loops_and_takes_no_parts(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    torch.save({"w": torch.ones(2)}, tmp_path / "step=20.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "step=3.pt")
    (tmp_path / "last.pt").symlink_to(tmp_path / "step=20.pt")
    dcp_folder(tmp_path / "dcp")
    (tmp_path / "notes.txt").write_text("hello")
    names = [p.name for p in find_checkpoints(tmp_path)]
    assert len(names) == 3
    assert names[0] == "step=3.pt"
    assert names[2] == "dcp"


def test_mutated_safetensors_npz_and_metadata(tmp_path: Path) -> None:
    chance = random.Random(1)
    files = {"s.safetensors": tmp_path / "s.safetensors", "n.npz": tmp_path / "n.npz"}
    save_file({"w": torch.randn(4, 4), "v": torch.randn(3)}, files["s.safetensors"])
    np.savez(files["n.npz"], w=np.ones((3, 3)), o=np.array([{"a": 1}], dtype=object))
    dcp_folder(tmp_path / "dcp")
    files[".metadata"] = tmp_path / "dcp" / ".metadata"
    original = {name: path.read_bytes() for name, path in files.items()}
    for _turn in range(100):
        for name, path in files.items():
            data = bytearray(original[name])
            for _ in range(chance.choice((1, 3))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            path.write_bytes(data)
            try:
                found = open_checkpoint(tmp_path / "dcp" if name == ".metadata" else path)
                for _ in measure_all(found.tensors):
                    pass
            except UnreadableInput:
                pass


@pytest.mark.parametrize("kind", ["a FIFO", "an empty file", "a folder", "a text"])
def test_what_only_has_the_name_of_an_incident_hides_nothing(kind: str, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    path = tmp_path / "incident.json"
    {
        "a FIFO": lambda: os.mkfifo(path),
        "an empty file": path.touch,
        "a folder": path.mkdir,
        "a text": lambda: path.write_text("[1"),
    }[kind]()
    assert find_checkpoints(tmp_path) == [tmp_path / "good.pt"]
