"""transformers with early stopping by a callback: the run ends before its last epoch."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, x, labels=None):
        prediction = self.linear(x)
        return {"loss": nn.functional.mse_loss(prediction, labels), "prediction": prediction}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=g)
        return {"x": x, "labels": x.sum().reshape(1)}


class StopAt(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 60
        return control


if __name__ == "__main__":
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_train_epochs=5,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        learning_rate=1e-2,
    )
    Trainer(model=Regression(), args=arguments, train_dataset=Rows(), callbacks=[StopAt()]).train()
