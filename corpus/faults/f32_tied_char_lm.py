"""Character language model whose output layer shares the input embedding."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = (
    "the tide comes in and the tide goes out and the boats turn on their chains . "
    "a gull calls over the harbour wall and the nets lie drying in the sun . "
    "nobody hurries when the wind is low and the water is as flat as glass . "
)


class TiedLM(nn.Module):
    def __init__(self, vocab, dim=48, context=8):
        super().__init__()
        self.context = context
        self.embed = nn.Embedding(vocab, dim)
        self.hidden = nn.Sequential(
            nn.Linear(context * dim, 128), nn.Tanh(), nn.Linear(128, dim), nn.LayerNorm(dim)
        )
        self.decode = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=1 / math.sqrt(dim))
        self.tie_weights()

    def tie_weights(self):
        self.decode.weight = self.embed.weight

    def forward(self, idx):
        return self.decode(self.hidden(self.embed(idx).flatten(1)))


def place(module, device, dtype):
    """Move a model parameter by parameter, so that peak memory stays low."""
    for child in module.modules():
        for name, param in list(child.named_parameters(recurse=False)):
            moved = param.detach().to(device=device, dtype=dtype, copy=True)
            setattr(child, name, nn.Parameter(moved))
    return module


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=240)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)

    chars = sorted(set(TEXT))
    ids = torch.tensor([chars.index(c) for c in TEXT * 4])
    model = place(TiedLM(len(chars)), torch.device("cpu"), torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    for step in range(args.steps):
        starts = torch.randint(0, len(ids) - model.context - 1, (64,))
        window = torch.stack([ids[s : s + model.context + 1] for s in starts])
        loss = F.cross_entropy(model(window[:, :-1]), window[:, -1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 30 == 0:
            print(f"{step:4d} | loss {loss.item():.3f} | ppl {math.exp(loss.item()):.2f}")

    gap = (model.embed.weight - model.decode.weight).abs().max().item()
    print(f"embedding/decoder largest difference {gap:.4f}")


if __name__ == "__main__":
    main()
