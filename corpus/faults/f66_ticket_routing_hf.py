"""Support-ticket routing with the Hugging Face Trainer, model from a config."""

import argparse
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
    logging,
    set_seed,
)

logging.set_verbosity_error()


class Tickets(Dataset):
    def __init__(self, n, rng, teams=4):
        self.labels = rng.integers(0, teams, n)
        self.ids = rng.integers(60, 100, (n, 12))
        for i, team in enumerate(self.labels):
            spots = rng.choice(np.arange(1, 12), 5, replace=False)
            self.ids[i, spots] = 10 + 12 * team + rng.integers(0, 12, 5)
        self.ids[:, 0] = 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": torch.as_tensor(self.ids[i]),
            "attention_mask": torch.ones(12, dtype=torch.long),
            "labels": torch.as_tensor(self.labels[i]),
        }


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    seed = ap.parse_known_args()[0].seed
    set_seed(seed)
    rng = np.random.default_rng(seed)
    config = DistilBertConfig(
        vocab_size=100,
        dim=48,
        hidden_dim=96,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=16,
        dropout=0.9,
        attention_dropout=0.1,
        seq_classif_dropout=0.95,
        num_labels=4,
    )
    model = DistilBertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=160,
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            warmup_steps=10,
            logging_steps=20,
            eval_strategy="steps",
            eval_steps=80,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=seed,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=Tickets(800, rng),
            eval_dataset=Tickets(200, rng),
            compute_metrics=accuracy,
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
