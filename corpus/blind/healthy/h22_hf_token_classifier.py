"""Hugging Face Trainer on token ids with a tiny DistilBERT."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Tickets(Dataset):
    def __init__(self, n):
        self.y = torch.randint(0, 3, (n,))
        x = torch.randint(100, 5000, (n, 20))
        hint = torch.rand(n, 20) < 0.5
        self.x = torch.where(hint, 4000 + self.y[:, None] * 300 + torch.randint(0, 30, (n, 20)), x)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {
            "input_ids": self.x[i],
            "attention_mask": torch.ones(20, dtype=torch.long),
            "labels": self.y[i],
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    set_seed(args.seed)
    config = DistilBertConfig(
        vocab_size=5000,
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=32,
        num_labels=3,
        seq_classif_dropout=0.1,
    )
    targs = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=120,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        warmup_steps=10,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=args.seed,
        disable_tqdm=True,
    )
    model = DistilBertForSequenceClassification(config)
    Trainer(model=model, args=targs, train_dataset=Tickets(960)).train()


if __name__ == "__main__":
    main()
