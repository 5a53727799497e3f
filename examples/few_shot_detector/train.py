"""Trains the few-shot detector on episodes: IoU, distribution focal and contrastive loss."""

from __future__ import annotations

import argparse
import resource

import torch
import torch.nn.functional as F
from detector import FewShotDetector, Output, boxes_of, cell_of, cells_in, distances, iou
from episodes import SIZE, Episode, Episodes
from torch import Tensor
from torch.utils.data import DataLoader


def distribution_focal_loss(sides: Tensor, target: Tensor) -> Tensor:
    """Cross entropy with the two bins around each distance."""
    left = target.long()
    weight = target - left
    logits, left = sides.flatten(0, 1), left.flatten()
    lower = F.cross_entropy(logits, left, reduction="none") * (1 - weight).flatten()
    upper = F.cross_entropy(logits, left + 1, reduction="none") * weight.flatten()
    return (lower + upper).sum()


def contrastive_proposal_loss(features: Tensor, classes: Tensor, temperature: float) -> Tensor:
    """Proposals of one class lie close together, those of different classes apart."""
    same = classes[:, None] == classes[None, :]
    same.fill_diagonal_(False)
    if not same.any():
        return torch.zeros((), device=features.device)
    features = F.normalize(features, dim=1)
    logits = features @ features.T / temperature
    logits = logits.masked_fill(torch.eye(len(logits), dtype=torch.bool), -1e4)
    likely = logits.log_softmax(1)
    positives = same.sum(1)
    per_proposal = -(likely * same).sum(1) / positives.clamp(min=1)
    return per_proposal[positives > 0].mean()


def spatial_iou(output: Output, boxes: Tensor) -> Tensor:
    """Overlap of the heat map, at full size, with the box."""
    heat = F.interpolate(output.heat[:, None].float(), (SIZE, SIZE), mode="bilinear")[:, 0]
    heat = heat.clamp(0, 1)
    along = torch.arange(SIZE) + 0.5
    columns = (along > boxes[:, 0:1]) & (along < boxes[:, 2:3])
    rows = (along > boxes[:, 1:2]) & (along < boxes[:, 3:4])
    mask = (rows[:, :, None] & columns[:, None, :]).float()
    return (heat * mask).sum() / (heat + mask - heat * mask).sum()


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model = FewShotDetector()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.scaler = torch.amp.GradScaler("cpu")
        self.history: dict[str, list] = {"loss": [], "spatial_iou": [], "grad_norm": []}
        episodes = Episodes(args.episodes, args.n_way, args.n_query, args.seed)
        self.loader = DataLoader(episodes, batch_size=None, shuffle=True)

    def losses(self, output: Output, episode: Episode) -> tuple[Tensor, Tensor, Tensor]:
        scene, row, column, middles = cells_in(episode.boxes, output.sides.shape[-1])
        sides = output.sides[scene, :, :, row, column].float()
        boxes = episode.boxes[scene]
        box_loss = (1 - iou(boxes_of(sides, middles), boxes)).mean()
        dfl_loss = distribution_focal_loss(sides, distances(boxes, middles))
        row, column = cell_of(episode.boxes)
        proposals = output.features[torch.arange(len(row)), :, row, column].float()
        cpe_loss = contrastive_proposal_loss(proposals, episode.classes, 0.2)
        return box_loss, dfl_loss, cpe_loss

    def step(self, episode: Episode) -> dict[str, float]:
        args = self.args
        with torch.autocast("cpu", torch.float16, enabled=args.amp):
            output = self.model(episode.support, episode.queries, episode.classes)
        box_loss, dfl_loss, cpe_loss = self.losses(output, episode)
        loss = args.box_weight * box_loss + args.dfl_weight * dfl_loss + args.cpe_weight * cpe_loss
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        norm = sum(p.grad.norm().item() for p in self.model.parameters())
        self.scaler.unscale_(self.optimizer)
        clipped = torch.nn.utils.clip_grad_norm_(self.model.parameters(), args.gradient_clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

        self.history["loss"].append(loss.item())
        self.history["spatial_iou"].append(spatial_iou(output, episode.boxes))
        self.history["grad_norm"].append(norm)
        return {
            "Total Loss": loss.item(),
            "Box Loss": box_loss.item(),
            "DFL Loss": dfl_loss.item(),
            "CPE Loss": cpe_loss.item(),
            "Total Grad Norm": norm,
            "Clipped To": clipped.item(),
        }

    def fit(self) -> None:
        for epoch in range(1, self.args.epochs + 1):
            rows = [self.step(episode) for episode in self.loader]
            means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
            recent = self.history["spatial_iou"][-len(rows) :]
            means["Spatial IoU"] = torch.stack(recent).mean().item()
            means["Peak RSS MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            columns = " | ".join(f"{name}: {value:.2f}" for name, value in means.items())
            print(f"Epoch {epoch} | {columns}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=20, help="an epoch")
    parser.add_argument("--n_way", type=int, default=8)
    parser.add_argument("--n_query", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--box_weight", type=float, default=1.0)
    parser.add_argument("--dfl_weight", type=float, default=1.5)
    parser.add_argument("--cpe_weight", type=float, default=0.5)
    parser.add_argument("--gradient_clip_norm", type=float, default=1.0)
    parser.add_argument("--no-amp", dest="amp", action="store_false")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    Trainer(args).fit()


if __name__ == "__main__":
    main()
