"""Supervised fine-tuning on answers only, with the Trainer of transformers."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

MAX_LENGTH = 12
torch.manual_seed(0)


class Conversations(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        prompt = torch.randint(4, 20, (14 if index % 4 else 6,), generator=generator)
        answer = (prompt[:4] + 1) % 20
        ids = torch.cat([prompt, answer])
        labels = torch.cat([torch.full_like(prompt, -100), answer])
        ids, labels = ids[:MAX_LENGTH], labels[:MAX_LENGTH]
        return {"input_ids": ids, "labels": labels}


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for at, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[at, :n], labels[at, :n], mask[at, :n] = row["input_ids"], row["labels"], 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


config = GPT2Config(vocab_size=20, n_positions=24, n_embd=32, n_layer=1, n_head=2)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=30,
        learning_rate=2e-3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Conversations(),
        data_collator=collate,
    ).train()
