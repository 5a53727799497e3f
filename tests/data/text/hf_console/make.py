"""Makes the logs beside it, by the real thing: transformers 5.22.2, torch 2.13.0 (CPU).

python make.py healthy        2>&1 | tee healthy.log
python make.py nan            2>&1 | tee nan.log             a NaN in the weights from step 31 on
python make.py nan-unfiltered 2>&1 | tee nan-unfiltered.log  the same, logging_nan_inf_filter=False
python make.py quiet          2>&1 | tee quiet.log           disable_tqdm, with the banner
"""

from __future__ import annotations

import logging
import sys
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x, labels):
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Poison(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **_):
        if state.global_step == 30:
            with torch.no_grad():
                model.body[0].weight[0, 0] = float("nan")


def main(kind: str) -> None:
    set_seed(0)
    x = torch.randn(256, 8)
    data = [{"x": row, "labels": int(row[:4].argmax())} for row in x]
    if kind == "quiet":
        hf_logging.set_verbosity_info()
        logging.getLogger("transformers").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=4,
            per_device_train_batch_size=16,
            learning_rate=1e-2,
            logging_steps=5,
            eval_strategy="no" if "nan" in kind else "epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=kind == "quiet",
            logging_nan_inf_filter=kind != "nan-unfiltered",
        )
        trainer = Trainer(Net(), arguments, train_dataset=data, eval_dataset=data[:64])
        if "nan" in kind:
            trainer.add_callback(Poison())
        trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
