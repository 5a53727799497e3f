"""Loop: Hugging Face Trainer.

Fault: an attention row that is masked completely, in the forward pass; ops: softmax.
"""

import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Documents(Dataset):
    def __init__(self):
        torch.manual_seed(307)
        self.words = torch.randint(1, 30, (40, 9))
        self.words[:, 6:] = 0
        self.words[22] = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"words": self.words[index], "labels": torch.tensor(index % 3)}


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.ask = nn.Linear(16, 1)
        self.head = nn.Linear(16, 3)

    def forward(self, words, labels):
        x = self.embed(words)
        scores = self.ask(x.tanh()).squeeze(-1)
        scores = scores.masked_fill(words == 0, float("-inf"))
        weights = scores.softmax(dim=-1)  # <- origin
        logits = self.head((weights[..., None] * x).sum(dim=1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


args = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_train_epochs=2,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
    logging_steps=2,
    seed=4,
)
Trainer(model=Reader(), args=args, train_dataset=Documents()).train()
