"""Loop: SGD by hand, without an optimizer.

Fault: a recurrence that overflows, in the forward pass; ops: mul.
Fix: none that keeps the model.
"""

import torch

torch.manual_seed(319)
gain = torch.tensor([0.9, 1.1, 0.5], requires_grad=True)
mix = torch.randn(3, 3).mul_(0.1).requires_grad_()
sequences = torch.randn(6, 8, 3)
sequences[4] *= 1e30


def last_state(x):
    state = x
    for _ in range(40):
        state = state * (gain + state.abs().mean() * 1e-2)  # <- origin
    return state @ mix


for x in sequences:
    loss = last_state(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in (gain, mix):
            p -= 1e-4 * p.grad.clamp(-1, 1)
            p.grad = None
