"""transformers: the data collator meets a record without a label."""

import tempfile
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

VOCABULARY = 60


class Reviews(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.records = []
        for _ in range(400):
            length = int(torch.randint(5, 12, (1,), generator=generator))
            ids = torch.randint(1, VOCABULARY, (length,), generator=generator)
            label = int((ids < VOCABULARY // 2).float().mean() > 0.5)
            self.records.append({"input_ids": ids, "label": label})
        del self.records[250]["label"]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


@dataclass
class PadCollator:
    pad_id: int = 0

    def __call__(self, features):
        ids = nn.utils.rnn.pad_sequence(
            [feature["input_ids"] for feature in features], True, self.pad_id
        )
        labels = torch.tensor([feature["label"] for feature in features])  # HERE
        return {"input_ids": ids, "labels": labels}


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.head = nn.Linear(16, 2)

    def forward(self, input_ids, labels=None):
        mask = (input_ids != 0).unsqueeze(-1)
        pooled = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.head(pooled)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_train_epochs=3,
        learning_rate=1e-2,
        logging_steps=10,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=BagOfWords(), args=args, train_dataset=Reviews(), data_collator=PadCollator()
    )
    trainer.train()


if __name__ == "__main__":
    main()
