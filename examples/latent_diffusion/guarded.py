"""The same training with a guard: the NaN handling of train.py is removed, two lines are added.

python guarded.py --config fixed.json --out RUN [--faults]
"""

from __future__ import annotations

import faults
from parts import two_losses
from train import batches, build, held_out, precision, save, settings

import headway


def main() -> None:
    args, config = settings()
    model, optimizer, schedule = build(config)
    weights, clip = config["loss"], config["optimizer"]["grad_clip_norm"]
    guard = headway.Guard(
        model, optimizer, run_dir=args.out / "headway", max_norm=clip,
        snapshots=headway.Snapshots(every=20),
    )  # fmt: skip
    for step, batch in enumerate(guard(batches(config, args.faults))):
        if args.faults:
            faults.flip_a_bit(model, step)
        with precision(config):
            text_loss, latent_loss = two_losses(model, batch)
        loss = weights["text_loss_weight"] * text_loss + weights["latent_loss_weight"] * latent_loss
        guard.backward(loss, text=text_loss, latent=latent_loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step and step % config["training"]["save_every"] == 0:
            save(args.out, step, model=model, optimizer=optimizer, schedule=schedule)
    guard.close()
    for action in guard.actions:
        print(action)
    print(f"held-out loss {held_out(config, model):.3f}")


if __name__ == "__main__":
    main()
