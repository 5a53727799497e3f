"""transformers: a callback gives up with sys.exit(4) when the loss is above a limit at step 30."""

import sys
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Limit(TrainerCallback):
    def __init__(self, at, limit):
        self.at, self.limit = at, limit

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.global_step >= self.at and logs["loss"] > self.limit:
            sys.exit(4)  # HERE


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


if __name__ == "__main__":
    torch.manual_seed(0)
    rows = [{"x": x, "labels": x.sum().reshape(1)} for x in torch.randn(400, 4)]
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=60,
        per_device_train_batch_size=8,
        logging_steps=10,
        learning_rate=1e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(Regressor(), arguments, train_dataset=rows, callbacks=[Limit(30, 0.01)]).train()
