"""More ordinary checkpoints, as their own libraries write them. None may be an error."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from support.blind_streams import joblib, tensors


class Net(nn.Module):
    """A model of the user."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU())
        self.head = nn.Linear(8, 2)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.block(x).mean((2, 3))) * self.scale
        return made


def _trained(name: str) -> dict[str, object]:
    torch.manual_seed(0)
    model = Net()
    groups = [{"params": model.block.parameters(), "lr": 0.01}, {"params": model.head.parameters()}]
    made = getattr(torch.optim, name)(groups, lr=1e-3)
    for _ in range(2):
        model(torch.randn(2, 3, 8, 8)).pow(2).mean().backward()
        made.step()
        made.zero_grad()
    return {"model": model.state_dict(), "optimizer": made.state_dict(), "epoch": 1}


OPTIMIZERS = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adadelta",
    "Rprop",
    "RMSprop",
    "ASGD",
    "Adafactor",
)


def schedulers(folder: Path) -> None:
    from torch.optim import lr_scheduler as of

    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    made = {
        "one": of.OneCycleLR(optimizer, 0.1, total_steps=10),
        "warm": of.CosineAnnealingWarmRestarts(optimizer, 5),
        "plateau": of.ReduceLROnPlateau(optimizer),
        "sequence": of.SequentialLR(
            optimizer, [of.ConstantLR(optimizer), of.ExponentialLR(optimizer, 0.9)], [3]
        ),
        "cyclic": of.CyclicLR(optimizer, 0.1, 0.2),
    }
    torch.save({k: v.state_dict() for k, v in made.items()} | {"w": torch.ones(2)}, folder / "x.pt")


def lightning(folder: Path) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self, lr: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            made: torch.Tensor = self.layer(batch[0]).mean()
            return made

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), 2)
    trainer = pl.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Module(), data)
    trainer.save_checkpoint(folder / "last.ckpt")


def accelerated(folder: Path) -> None:
    from accelerate import Accelerator

    helper = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    model, optimizer = helper.prepare(model, torch.optim.AdamW(model.parameters()))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    helper.save_state(str(folder))


def distributed(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(
        {"app": _trained("AdamW"), "args": {"lr": [0.1], "name": "x"}},
        checkpoint_id=folder,
        no_dist=True,
    )


def transformers_folder(folder: Path, *, safe: bool) -> None:
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = BertForSequenceClassification(config)
    model.save_pretrained(folder, max_shard_size="10KB")
    torch.save(TrainingArguments(output_dir="out", use_cpu=True), folder / "training_args.bin")
    torch.save(torch.optim.AdamW(model.parameters()).state_dict(), folder / "optimizer.pt")
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
    }
    torch.save(state, folder / "rng_state.pth")
    if not safe:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")


def adapter(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(Net(), LoraConfig(target_modules=["head"]))
    model.save_pretrained(str(folder))


def scripted(folder: Path) -> None:
    torch.jit.save(torch.jit.script(Net()), folder / "script.pt")
    torch.jit.save(torch.jit.trace(Net(), torch.ones(1, 3, 8, 8)), folder / "trace.pt")


def exported(folder: Path) -> None:
    torch.export.save(torch.export.export(Net(), (torch.ones(1, 3, 8, 8),)), folder / "x.pt2")


def sharded(folder: Path) -> None:
    parts = {"a": torch.ones(3), "b": torch.zeros(3, dtype=torch.bfloat16) + 1}
    for number, (name, value) in enumerate(parts.items(), 1):
        safetensors.torch.save_file(
            {name: value}, folder / f"model-0000{number}-of-00002.safetensors", {"format": "pt"}
        )
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 18}, "weight_map": weights})
    )


def arrays(folder: Path) -> None:
    np.savez_compressed(
        folder / "a.npz", w=np.ones((2, 3)), names=np.array(["a", "b"]), step=3, half=np.float16(1)
    )
    np.savez(
        folder / "b.npz",
        **{"layer/kernel": np.ones(3), "fields": np.zeros(2, "i4,f4"), "empty": np.ones(0)},
    )
    np.save(folder / "c.npy", np.ones((2, 2), order="F"))


def whole(folder: Path) -> None:
    layers = [
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1),
        nn.GRU(2, 2),
        nn.Embedding(3, 2),
        nn.ConvTranspose2d(1, 1, 3),
        nn.GroupNorm(1, 2),
        nn.ParameterList([nn.Parameter(torch.ones(2))]),
        nn.ModuleDict({"a": nn.PReLU()}),
        nn.Upsample(2),
        nn.AdaptiveAvgPool2d(1),
        nn.CrossEntropyLoss(),
    ]
    torch.save(nn.ModuleList(layers), folder / "layers.pt")
    torch.save(Net(), folder / "own.pt")
    torch.save(nn.DataParallel(nn.Linear(2, 2)), folder / "parallel.pt")


def quantized(folder: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    made = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    torch.save(made.state_dict(), folder / "state.pt")
    torch.save(made, folder / "whole.pt")


def averaged(folder: Path) -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    torch.save(
        {"ema": AveragedModel(Net(), multi_avg_fn=get_ema_multi_avg_fn(0.9)).state_dict()},
        folder / "ema.pt",
    )
    torch.save(AveragedModel(Net()), folder / "swa.pt")


def deepspeed(folder: Path) -> None:
    step = folder / "global_step5"
    step.mkdir()
    (folder / "latest").write_text("global_step5")
    trained = _trained("Adam")
    module = {
        "module": trained["model"],
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": "0.16.0",
    }
    torch.save(module, step / "mp_rank_00_model_states.pt")
    torch.save(
        {"optimizer_state_dict": trained["optimizer"]},
        step / "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    )


def joblib_file(folder: Path) -> None:
    (folder / "x.joblib").write_bytes(joblib(b""))


def plain(folder: Path) -> None:
    weights = {"w": np.ones((2, 3), np.float32), "b": [1.0, 2.0], "step": np.int64(3)}
    for protocol in range(6):
        (folder / f"p{protocol}.pkl").write_bytes(pickle.dumps(weights, protocol))


def empty(folder: Path) -> None:
    safetensors.torch.save_file(
        {"a": torch.ones(0, 3), "b": torch.ones(())}, folder / "a.safetensors"
    )
    (folder / "b.safetensors").write_bytes(
        tensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4), 4)
    )


ORDINARY: dict[str, Callable[[Path], None]] = {
    **{
        f"{name} with two groups": lambda f, name=name: torch.save(_trained(name), f / "x.pt")  # type: ignore[misc]
        for name in OPTIMIZERS
    },
    "schedulers": schedulers,
    "Lightning": lightning,
    "accelerate": accelerated,
    "a distributed checkpoint": distributed,
    "a model of transformers": lambda f: transformers_folder(f, safe=True),
    "a model of transformers in pickles": lambda f: transformers_folder(f, safe=False),
    "an adapter": adapter,
    "TorchScript": scripted,
    "an exported program": exported,
    "shards": sharded,
    "arrays": arrays,
    "whole modules": whole,
    "a quantised model": quantized,
    "averages": averaged,
    "DeepSpeed": deepspeed,
    "pickles of every protocol": plain,
    "arrays of joblib": joblib_file,
    "small tensors": empty,
}


def write(folder: Path, name: str) -> None:
    with warnings.catch_warnings():  # of torch: what it will remove
        warnings.simplefilter("ignore")
        ORDINARY[name](folder)
