"""Loop: functional_call on a dict of parameters.

Fault: a softmax row that is masked throughout, in the forward pass; ops: softmax.
"""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(113)
tokens = torch.randn(36, 5, 8)
sizes = torch.randint(1, 6, (36,))
sizes[20] = 0


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
        self.out = nn.Linear(8, 2)

    def forward(self, seq, size):
        mask = torch.arange(seq.shape[1]) < size[:, None]
        score = self.score(seq)[..., 0].masked_fill(~mask, float("-inf"))
        weight = torch.softmax(score, dim=1)  # <- origin
        return self.out((weight[..., None] * seq).sum(dim=1))


pool = Pool()
params = {name: p.detach().clone().requires_grad_() for name, p in pool.named_parameters()}
optimizer = torch.optim.SGD(params.values(), lr=0.1)
for seq, size in zip(tokens.split(6), sizes.split(6)):
    out = functional_call(pool, params, (seq, size))
    loss = nn.functional.mse_loss(out, seq[:, 0, :2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
