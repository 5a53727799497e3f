"""transformers with evaluation, a checkpoint per epoch and a callback that stops the training
early."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Enough(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 45


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, x, labels=None):
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


if __name__ == "__main__":
    torch.manual_seed(0)
    rows = [{"x": x, "labels": x.mean().reshape(1)} for x in torch.randn(200, 6)]
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        num_train_epochs=4,
        per_device_train_batch_size=10,
        logging_steps=5,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(
        Regressor(),
        arguments,
        train_dataset=rows[:160],
        eval_dataset=rows[160:],
        callbacks=[Enough()],
    ).train()
