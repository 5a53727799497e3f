"""transformers with auto_find_batch_size: two sizes do not fit, the third does."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2)

    def forward(self, x, labels=None):
        if len(x) > 16:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                "allocate memory: you tried to allocate 1099511627776 bytes."
            )
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    torch.manual_seed(0)
    rows = [{"x": row, "labels": int(row.sum() > 0)} for row in torch.randn(320, 6)]
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=64,
        auto_find_batch_size=True,
        num_train_epochs=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    Trainer(model=Classifier(), args=args, train_dataset=rows).train()


if __name__ == "__main__":
    main()
