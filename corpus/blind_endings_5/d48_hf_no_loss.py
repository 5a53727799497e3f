"""transformers: the model returns no loss, because the rows have no labels."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, ids, labels=None):
        logits = self.out(self.table(ids))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


def rows(count):
    generator = torch.Generator().manual_seed(0)
    for ids in torch.randint(50, (count, 12), generator=generator):
        yield {"ids": ids, "tags": ids % 4}


if __name__ == "__main__":
    torch.manual_seed(0)
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=40,
        per_device_train_batch_size=8,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=True,
    )
    trainer = Trainer(Tagger(), arguments, train_dataset=list(rows(200)))
    trainer.train()  # HERE
