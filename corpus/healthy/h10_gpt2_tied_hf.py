"""A two-layer GPT-2 from a config, trained by the Hugging Face Trainer on toy arithmetic."""

import argparse
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    logging,
    set_seed,
)

logging.set_verbosity_error()
CHARS = "0123456789+=."


class Sums(Dataset):
    """Lines such as 12+07=19. with the result always two or three digits long."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for a, b in rng.integers(0, 50, (n, 2)):
            line = f"{a:02d}+{b:02d}={a + b:02d}."
            self.rows.append(torch.tensor([CHARS.index(c) for c in line]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i].clone()}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    seed = ap.parse_known_args()[0].seed
    set_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(CHARS),
            n_positions=16,
            n_embd=32,
            n_layer=2,
            n_head=4,
            bos_token_id=None,
            eos_token_id=None,
            tie_word_embeddings=True,
        )
    )
    tied = model.transformer.wte.weight is model.lm_head.weight
    print(f"{model.num_parameters()} parameters, tied: {tied}")
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=150,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=20,
            weight_decay=0.01,
            logging_steps=20,
            save_strategy="steps",
            save_steps=75,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=seed,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=Sums(2000, seed), callbacks=[PrintLoss()]
        )
        result = trainer.train()
    print(f"mean training loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
