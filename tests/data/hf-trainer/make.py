"""Makes the files of this folder with the real Trainer (transformers 5.22, torch 2.13, CPU).

    python tests/data/hf-trainer/make.py

A NaN is planted in the loss of one step. `filtered` is the default, which hides it in the loss;
`kept` has `logging_nan_inf_filter=False`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

HERE = Path(__file__).parent
WORDS = 24


class Counting(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        begin = torch.randint(0, WORDS, (count, 1), generator=torch.Generator().manual_seed(0))
        self.ids = (begin + torch.arange(9)) % WORDS

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"input_ids": self.ids[at], "labels": self.ids[at]}


class Planted(Trainer):
    """The loss of one step is NaN."""

    bad: int | None = None

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        plant = self.model.training and self.state.global_step == self.bad
        return loss * float("nan") if plant else loss


def run(name: str, bad: int | None, *, kept: bool = False) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
    )
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=40,
            per_device_train_batch_size=4,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=20,
            save_steps=40,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_nan_inf_filter=not kept,
        )
        trainer = Planted(model, arguments, train_dataset=Counting(256), eval_dataset=Counting(16))
        trainer.bad = bad
        trainer.train()
        trainer.save_state()
        shutil.copy(Path(out) / "trainer_state.json", HERE / f"{name}.json")


if __name__ == "__main__":
    run("healthy", None)
    run("filtered", 23)
    run("kept", 23, kept=True)
