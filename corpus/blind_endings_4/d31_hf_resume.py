"""transformers: resume from a checkpoint in a folder that has none."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2)

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    torch.manual_seed(0)
    rows = [{"x": row, "labels": int(row.sum() > 0)} for row in torch.randn(128, 6)]
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=Classifier(), args=args, train_dataset=rows)
    trainer.train()
    trainer.train(resume_from_checkpoint=tempfile.mkdtemp())  # HERE


if __name__ == "__main__":
    main()
