"""Bag-of-words topic classifier."""

import argparse

import torch
import torch.nn as nn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)

VOCAB_SIZE, NUM_LABELS = 120, 5


class BoWClassifier(nn.Module):
    def __init__(self, num_labels, vocab_size):
        super().__init__()
        self.hidden = nn.Linear(vocab_size, 32)
        self.linear = nn.Linear(32, num_labels)

    def forward(self, bow_vec):
        return self.linear(torch.tanh(self.hidden(bow_vec)))


topics = torch.rand(NUM_LABELS, VOCAB_SIZE) ** 4
topic = torch.randint(0, NUM_LABELS, (600,))
docs = torch.stack(
    [torch.bincount(torch.multinomial(topics[t], 25, True), minlength=VOCAB_SIZE) for t in topic]
).float()

model = BoWClassifier(NUM_LABELS, VOCAB_SIZE)
loss_function = nn.NLLLoss()
optimizer = optim.SGD(model.parameters(), lr=0.05)

for epoch in range(4):
    perm = torch.randperm(600)
    for i in range(0, 600, 20):
        idx = perm[i : i + 20]
        model.zero_grad()
        scores = model(docs[idx])
        loss = loss_function(scores, topic[idx])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
