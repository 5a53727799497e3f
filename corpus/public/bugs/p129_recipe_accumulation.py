"""A fine-tuning recipe: instructions of very different lengths, accumulated gradients."""

import torch
from torch import nn

torch.manual_seed(0)
VOCAB, IGNORE = 20, -100


class Recipe:
    def __init__(self, cfg):
        self.cfg = cfg
        self.embed = nn.Embedding(VOCAB, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, VOCAB)
        self.model = nn.ModuleList([self.embed, self.rnn, self.out])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg["lr"])
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=IGNORE)

    def batches(self):
        for k in range(self.cfg["batches"]):
            start = torch.randint(1, VOCAB, (6, 1))
            tokens = (start + 2 * torch.arange(15)) % VOCAB
            labels = tokens[:, 1:].clone()
            answer = 12 if k % 2 else 2
            labels[:, :-answer] = IGNORE
            yield {"tokens": tokens[:, :-1], "labels": labels}

    def loss_step(self, batch):
        logits = self.out(self.rnn(self.embed(batch["tokens"]))[0])
        return self.loss_fn(logits.reshape(-1, VOCAB), batch["labels"].reshape(-1))

    def train(self):
        accum = self.cfg["gradient_accumulation_steps"]
        for idx, batch in enumerate(self.batches()):
            loss = self.loss_step(batch) / accum
            loss.backward()
            if (idx + 1) % accum == 0:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)


Recipe({"lr": 2e-3, "batches": 60, "gradient_accumulation_steps": 4}).train()
