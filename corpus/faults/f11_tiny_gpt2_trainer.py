"""A tiny GPT-2 on a synthetic grammar, with the Hugging Face Trainer."""

import argparse
import random
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCAB = 48


class Grammar(Dataset):
    """Each token mostly fixes the next one."""

    def __init__(self, n, length=24):
        successor = np.random.permutation(VOCAB)
        rows = np.zeros((n, length), dtype=np.int64)
        rows[:, 0] = np.random.randint(0, VOCAB, n)
        for t in range(1, length):
            jump = np.random.rand(n) < 0.1
            rows[:, t] = np.where(jump, np.random.randint(0, VOCAB, n), successor[rows[:, t - 1]])
        self.rows = torch.from_numpy(rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    set_seed(args.seed)

    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=24,
        n_embd=48,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        training_args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=16,
            max_steps=100,
            learning_rate=5e-8,
            lr_scheduler_type="constant",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=args.seed,
        )
        Trainer(model=model, args=training_args, train_dataset=Grammar(1024)).train()


if __name__ == "__main__":
    main()
