"""Runs of the real Hugging Face Trainer on a tiny Llama that counts, for the tests of the adapter.

Each sample carries a weight of its loss, as people write it for curricula; a NaN among them is what
a division by an empty count leaves behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from support.trainings import state_of

STEPS = 30
BATCH = 4
WORDS = 24


class WeightedLlama(LlamaForCausalLM):
    def forward(self, input_ids: Tensor, labels: Tensor, weight: Tensor, **kwargs: Any) -> Any:
        out = super().forward(input_ids=input_ids, labels=labels, **kwargs)
        out.loss = out.loss * weight.mean()
        return out


class Counting(torch.utils.data.Dataset):
    """Sequences that count on from anywhere; the samples in `bad` have a NaN for a weight."""

    def __init__(self, count: int, bad: Sequence[int] = ()) -> None:
        generator = torch.Generator().manual_seed(0)
        begin = torch.randint(0, WORDS, (count, 1), generator=generator)
        self.ids = (begin + torch.arange(9)) % WORDS
        self.weight = torch.ones(count)
        self.weight[list(bad)] = float("nan")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[at], "labels": self.ids[at], "weight": self.weight[at]}


class InOrder(Trainer):
    """Batches come as they lie in the data, so that a test knows which step meets which."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return None


class Witness(TrainerCallback):
    """Copies weights and moments before and after every step."""

    def __init__(self) -> None:
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before.append(state_of(kwargs["model"], kwargs["optimizer"].optimizer))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.after.append(state_of(kwargs["model"], kwargs["optimizer"].optimizer))

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logs.append(dict(kwargs["logs"]))


def make_trainer(
    folder: Path,
    *callbacks: TrainerCallback,
    bad: Sequence[int] = (),
    data: Any = None,
    **arguments: Any,
) -> Trainer:
    torch.manual_seed(0)
    model = WeightedLlama(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    given = {
        "use_cpu": True,
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        **arguments,
    }
    per_step = BATCH * given.get("gradient_accumulation_steps", 1)
    return InOrder(
        model=model,
        args=TrainingArguments(output_dir=str(folder / "out"), **given),
        train_dataset=data or Counting(STEPS * per_step, bad),
        callbacks=list(callbacks),
    )


def loss_on_clean_data(trainer: Trainer) -> float:
    data = Counting(64)
    with torch.no_grad():
        out = trainer.model(data.ids, labels=data.ids, weight=data.weight)
    return float(out.loss)


def logged(trainer: Trainer) -> list[dict[str, Any]]:
    """The log without what is about time."""
    return [
        {
            name: value
            for name, value in entry.items()
            if not name.endswith(("_runtime", "_per_second"))
        }
        for entry in trainer.state.log_history
    ]
