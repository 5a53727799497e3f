"""Trains the comparer: the fixed trainer, with a guard.

python train.py --epochs 3 --amp_dtype bf16 --clip_grad_norm 1.0
"""

from __future__ import annotations

import argparse

import torch
from comparer import Comparer, Pairs
from torch import nn
from torch.utils.data import DataLoader

from headway import Guard

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "none": None}


def groups_of(model: Comparer, lr: float, weight_decay: float) -> list[dict]:
    """A low rate for the encoder, a higher one for the head, and no weight decay for biases."""
    encoder = [p for p in model.encoder.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1 and p.requires_grad]
    return [
        {"params": encoder, "lr": lr / 4, "weight_decay": weight_decay},
        {"params": [model.head.weight], "lr": lr, "weight_decay": weight_decay},
        {"params": biases, "lr": lr, "weight_decay": 0.0},
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--amp_dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--clip_grad_norm", type=float, default=1.0)
    parser.add_argument("--run_dir", default=None)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Comparer().to(device)
    model.patches.requires_grad_(False)
    optimizer = torch.optim.AdamW(groups_of(model, args.lr, weight_decay=0.01))
    dtype = DTYPES[args.amp_dtype]
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    guard = Guard(
        model, optimizer, scaler=scaler, max_norm=args.clip_grad_norm, run_dir=args.run_dir
    )
    loader = DataLoader(
        Pairs(320), args.batch_size, shuffle=True, pin_memory=torch.cuda.is_available()
    )
    criterion = nn.CrossEntropyLoss()
    with guard:
        for epoch in range(args.epochs):
            model.train()
            seen, right, total = 0, 0, 0.0
            for images, labels in guard(loader):
                images = images.to(device, non_blocking=True)
                labels = labels.to(device, non_blocking=True)
                with torch.autocast(device, dtype, enabled=dtype is not None):
                    logits = model(images)
                    loss = criterion(logits, labels)
                optimizer.zero_grad(set_to_none=True)
                guard.backward(loss)
                scaler.step(optimizer)
                scaler.update()
                seen, right = seen + len(labels), right + int((logits.argmax(1) == labels).sum())
                total += loss.item() * len(labels)
            print(f"epoch {epoch}: loss {total / seen:.4f} accuracy {right / seen:.2f}", flush=True)


if __name__ == "__main__":
    main()
