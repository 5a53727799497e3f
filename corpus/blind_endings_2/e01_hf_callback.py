"""transformers: a callback of the user divides by a count that is 0."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        out = self.linear(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum().reshape(1)}


class Rate(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 18:
            done = len([])
            print(state.global_step / done)  # HERE


if __name__ == "__main__":
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        learning_rate=1e-2,
    )
    Trainer(model=Model(), args=arguments, train_dataset=Rows(), callbacks=[Rate()]).train()
