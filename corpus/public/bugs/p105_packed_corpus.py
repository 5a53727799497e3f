"""Pretraining on documents that are padded to one length, with a loss mask per token."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)


class Tokenizer:
    eos_token_id = 0
    pad_token_id = None

    def __init__(self):
        if self.pad_token_id is None:
            self.pad_token_id = self.eos_token_id


class Documents(Dataset):
    def __init__(self, tokenizer, count=200, length=16):
        self.pad_token_id = tokenizer.pad_token_id
        self.length = length
        self.documents = []
        for _ in range(count):
            start = int(torch.randint(0, 18, (1,)))
            words = [1 + (start + 3 * k) % 18 for k in range(int(torch.randint(5, 14, (1,))))]
            self.documents.append([*words, tokenizer.eos_token_id])

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, index):
        document = self.documents[index]
        real = len(document)
        tokens = torch.full((self.length + 1,), self.pad_token_id)
        tokens[:real] = torch.tensor(document)
        labels = tokens[1:].clone()
        loss_mask = torch.ones(self.length)
        loss_mask[labels == self.pad_token_id] = 0.0
        return {"tokens": tokens[:-1], "labels": labels, "loss_mask": loss_mask}


class Decoder(nn.Module):
    def __init__(self, vocab=20, dim=40):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(Documents(Tokenizer()), batch_size=20, shuffle=True)
for epoch in range(4):
    for batch in loader:
        logits = model(batch["tokens"])
        losses = nn.functional.cross_entropy(
            logits.transpose(1, 2), batch["labels"], reduction="none"
        )
        loss = (losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
