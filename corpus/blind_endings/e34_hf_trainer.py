"""transformers: the user's compute_loss indexes an output that does not exist."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, x, labels=None):
        return {"prediction": self.linear(x)}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=g)
        return {"x": x, "labels": x.sum().reshape(1)}


class MyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(inputs["x"])
        name = "logits" if self.state.global_step >= 25 else "prediction"
        loss = nn.functional.mse_loss(outputs[name], inputs["labels"])  # HERE
        return (loss, outputs) if return_outputs else loss


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
    MyTrainer(model=Regression(), args=arguments, train_dataset=Rows()).train()
