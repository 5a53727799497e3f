"""Fine-tune a tiny GPT-2 with the Trainer of transformers."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
start = torch.randint(0, 20, (320, 1))
texts = (start + 3 * torch.arange(12)) % 20


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(texts)

    def __getitem__(self, index):
        return texts[index]


def collate(rows):
    ids = torch.stack(rows)
    labels = torch.cat([ids[:, 1:], torch.full((len(rows), 1), -100)], dim=1)
    return {"input_ids": ids, "labels": labels}


config = GPT2Config(vocab_size=20, n_positions=12, n_embd=32, n_layer=1, n_head=2)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        max_steps=40,
        learning_rate=3e-3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Texts(),
        data_collator=collate,
    ).train()
