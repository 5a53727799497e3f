"""Fine-tune a small causal language model on short completions (Hugging Face Trainer)."""

import argparse
import random
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

PAD, BOS = 0, 1
MAX_LENGTH = 64
ALPHABET = "abcdefghijklmnopqrstuvwxyz ="
STOI = {c: i + 2 for i, c in enumerate(ALPHABET)}


def encode(text):
    return [BOS] + [STOI[c] for c in text]


class Completions(Dataset):
    """A word, an equals sign, and the word spelt backwards."""

    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            word = "".join(random.choice("abcdeilnorst") for _ in range(random.randint(2, 5)))
            self.rows.append(encode(f"{word}={word[::-1]}"))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = torch.full((len(rows), MAX_LENGTH), PAD)
    mask = torch.zeros(len(rows), MAX_LENGTH, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    set_seed(args.seed)

    config = GPT2Config(
        vocab_size=len(ALPHABET) + 2,
        n_positions=MAX_LENGTH,
        n_embd=48,
        n_layer=2,
        n_head=4,
        bos_token_id=BOS,
        eos_token_id=PAD,
        pad_token_id=PAD,
    )
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                output_dir=out,
                per_device_train_batch_size=16,
                max_steps=60,
                learning_rate=1e-3,
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                seed=args.seed,
            ),
            train_dataset=Completions(800),
            data_collator=collate,
        )
        trainer.train()


if __name__ == "__main__":
    main()
