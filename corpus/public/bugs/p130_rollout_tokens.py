"""Policy gradients on completions of different lengths, split into micro-batches."""

import torch
from torch import nn

torch.manual_seed(0)
VOCAB, LENGTH, MICRO = 12, 14, 4


class Policy(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)


@torch.no_grad()
def rollout(count=32):
    tokens = torch.randint(VOCAB, (count, LENGTH + 1))
    lengths = torch.randint(2, LENGTH + 1, (count,))
    lengths = lengths.sort().values
    mask = (torch.arange(LENGTH) < lengths[:, None]).float()
    good = ((tokens[:, 1:] - tokens[:, :-1]) % VOCAB == 1).float()
    return tokens, mask, good - 1 / VOCAB


for step in range(15):
    tokens, mask, advantage = rollout()
    optimizer.zero_grad()
    for k in range(0, len(tokens), len(tokens) // MICRO):
        part = slice(k, k + len(tokens) // MICRO)
        logits = policy(tokens[part, :-1])
        logp = torch.log_softmax(logits, -1).gather(2, tokens[part, 1:, None]).squeeze(2)
        per_token = -logp * advantage[part]
        loss = (per_token * mask[part]).sum() / mask[part].sum() / MICRO
        loss.backward()
    optimizer.step()
