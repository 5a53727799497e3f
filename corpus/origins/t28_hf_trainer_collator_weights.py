"""Loop: Hugging Face Trainer with a data collator of the user's own.

Fault: 0 / 0 in the collator, before the step; ops: div.
"""

import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self):
        torch.manual_seed(428)
        self.words = torch.randint(1, 30, (40, 7))
        self.words[:, 5:] = 0
        self.words[19] = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"words": self.words[index], "stars": torch.tensor(float(index % 5))}


class Collator:
    def __init__(self, padding):
        self.padding = padding

    def __call__(self, items):
        words = torch.stack([item["words"] for item in items])
        known = (words != self.padding).float()
        weight = known / known.sum(dim=1, keepdim=True)  # <- origin
        return {
            "words": words,
            "weight": weight,
            "labels": torch.stack([item["stars"] for item in items]),
        }


class Stars(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, words, weight, labels):
        x = (self.embed(words) * weight[..., None]).sum(dim=1)
        guess = self.head(x)[:, 0]
        return {"loss": nn.functional.l1_loss(guess, labels), "logits": guess}


if __name__ == "__main__":
    args = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        max_steps=5,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(
        model=Stars(), args=args, train_dataset=Reviews(), data_collator=Collator(padding=0)
    ).train()
