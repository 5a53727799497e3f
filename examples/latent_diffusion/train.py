"""The original training: it detects NaN gradients, sets them to zero, and steps anyway.

python train.py --config fixed.json --out RUN [--faults] [--skip] [--resume CHECKPOINT]
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import faults
import torch
from parts import Batch, MMDiT, make_data, two_losses
from torch import nn


def settings() -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse the command line and read the config; a copy of it goes to the run's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--faults", action="store_true", help="inject the faults of faults.py")
    parser.add_argument("--skip", action="store_true", help="skip bad batches (the first fix)")
    parser.add_argument("--resume", type=Path, help="a checkpoint to continue from")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(args.config, args.out / "config.json")
    return args, json.loads(args.config.read_text())


def build(config: dict[str, Any]) -> tuple[nn.Module, torch.optim.AdamW, Any]:
    """Model, optimizer, and a schedule: warm-up, then a cosine."""
    torch.set_num_threads(1)  # for a model this small, a second thread makes it slower
    torch.manual_seed(config["training"]["seed"])
    model = MMDiT()
    if config["training"]["dtype"] == "bf16":
        model = model.to(torch.bfloat16)
    o, steps = config["optimizer"], config["training"]["steps"]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=o["lr"], eps=o["eps"], weight_decay=o["weight_decay"]
    )
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=o["warmup_steps"] or 1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - o["warmup_steps"])
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [o["warmup_steps"]])
    return model, optimizer, schedule


def batches(config: dict[str, Any], poisoned: bool) -> Iterator[Batch]:
    """One batch for each step, in an order that the seed determines."""
    words, latents = make_data(4096, seed=2)
    latents = latents / config["training"]["latent_scale"]
    order = torch.Generator().manual_seed(config["training"]["seed"])
    for step in range(config["training"]["steps"]):
        chosen = torch.randint(len(words), (config["training"]["batch_size"],), generator=order)
        batch = words[chosen], latents[chosen]
        yield faults.poison(batch, step) if poisoned else batch


def precision(config: dict[str, Any]) -> Any:
    """Autocast, where the config asks for it."""
    mixed = config["training"]["dtype"] == "bf16-mixed"
    return torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext()


def save(folder: Path, step: int, **parts: Any) -> None:
    """Save an ordinary checkpoint."""
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"step": step, **state}, folder / f"step_{step:04d}.pt")


def load(path: Path, **parts: Any) -> int:
    """Load a checkpoint; returns the step to continue with."""
    state = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["step"]) + 1


def held_out(config: dict[str, Any], model: nn.Module) -> float:
    """The loss on 512 samples that were not trained on, always with the same masks and noise."""
    words, latents = make_data(512, seed=3)
    with torch.random.fork_rng(), torch.no_grad(), precision(config):
        torch.manual_seed(0)
        text, latent = two_losses(model, (words, latents / config["training"]["latent_scale"]))
    weights = config["loss"]
    return float(weights["text_loss_weight"] * text + weights["latent_loss_weight"] * latent)


def main() -> None:
    args, config = settings()
    model, optimizer, schedule = build(config)
    weights, clip = config["loss"], config["optimizer"]["grad_clip_norm"]
    first = 0
    if args.resume:
        first = load(args.resume, model=model, optimizer=optimizer, schedule=schedule)
    with open(args.out / "training_log.jsonl", "w") as log:
        for step, batch in enumerate(batches(config, args.faults)):
            if step < first:
                continue
            if args.faults:
                faults.flip_a_bit(model, step)
            with precision(config):
                text_loss, latent_loss = two_losses(model, batch)
            loss = (
                weights["text_loss_weight"] * text_loss
                + weights["latent_loss_weight"] * latent_loss
            )
            loss.backward()

            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            bad = bool(torch.isnan(norm))
            if bad:
                print(f"Warning: NaN gradient detected at step {step}")
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.data.zero_()
            if not (bad and args.skip):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()

            row = {"step": step, "loss": loss.item(), "text_loss": text_loss.item(),
                   "latent_loss": latent_loss.item(), "grad_norm": norm.item(),
                   "lr": schedule.get_last_lr()[0]}  # fmt: skip
            log.write(json.dumps(row) + "\n")
            if step and step % config["training"]["save_every"] == 0:
                save(args.out, step, model=model, optimizer=optimizer, schedule=schedule)
    print(f"held-out loss {held_out(config, model):.3f}")


if __name__ == "__main__":
    main()
