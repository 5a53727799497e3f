"""transformers: compute_metrics takes the logits for a tuple."""

import tempfile

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Points(torch.utils.data.Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = (self.x[:, 0] * self.x[:, 1] > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"features": self.x[i], "labels": self.y[i]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, features, labels=None):
        logits = self.body(features)
        loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def compute_metrics(prediction):
    logits, labels = prediction
    predicted = np.argmax(logits, axis=2)  # HERE
    return {"accuracy": float((predicted == labels).mean())}


if __name__ == "__main__":
    torch.manual_seed(0)
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        num_train_epochs=2,
        learning_rate=5e-3,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=20,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=Net(),
        args=training_args,
        train_dataset=Points(640, 0),
        eval_dataset=Points(128, 1),
        compute_metrics=compute_metrics,
    )
    trainer.train()
