"""Makes the logs of frameworks that are not run here, with the format strings of their sources.

    python make.py            writes <framework>/{healthy,nan,…}.log beside it

One curve for all of them: a loss that falls with a little noise. `nan`: everything is NaN from
step 50 on; `spike`: the loss is ten times as large, and the norm fifty times, at steps 50 to 54.
What the console hides (a filter, a mean) is in the reader's words, not made here.
"""

# ruff: noqa: E501
from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

STEPS = 80
ONSET = 50
HERE = Path(__file__).parent


class Point:
    """One step of the run that all of them log."""

    def __init__(self, step: int, kind: str, rng: random.Random) -> None:
        self.step = step
        self.lr = 6e-4 * min(step / 10, 1.0)
        self.loss = 2.0 + 8.0 * math.exp(-step / 25) + rng.uniform(-0.05, 0.05)
        self.norm = 1.0 + math.exp(-step / 25) + rng.uniform(-0.1, 0.1)
        self.ms = 250 + rng.uniform(-5, 5)
        self.bad = kind == "nan" and step >= ONSET
        if self.bad:
            self.loss = self.norm = math.nan
        if kind == "spike" and ONSET <= step < ONSET + 5:
            self.loss *= 10
            self.norm *= 50


def run(kind: str) -> list[Point]:
    rng = random.Random(0)
    return [Point(step, kind, rng) for step in range(1, STEPS + 1)]


def megatron(points: list[Point]) -> Iterator[str]:
    """megatron/training/training.py, training_log; the arguments as in arguments.py."""
    yield "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1"
    yield "------------------------ arguments ------------------------"
    for name, value in (("bf16", True), ("clip_grad", 1.0), ("lr", 0.0006), ("weight_decay", 0.1)):
        yield "  {} {} {}".format(name, "." * (48 - len(name)), value)
    yield "-------------------- end of arguments ---------------------"
    for p in points:
        text = f" [2026-01-02 03:{p.step // 60:02d}:{p.step % 60:02d}.123456]"
        text += f" iteration {p.step:8d}/{STEPS:8d} |"
        text += f" consumed samples: {p.step * 256:12d} |"
        text += f" elapsed time per iteration (ms): {p.ms:.1f} |"
        text += f" learning rate: {p.lr:.6E} |"
        text += f" global batch size: {256:5d} |"
        text += " {}: {:.6E} |".format("lm loss", p.loss)
        text += f" loss scale: {1.0:.1f} |"
        text += f" grad norm: {p.norm:.3f} |"
        text += f" number of skipped iterations: {0:3d} |"
        text += f" number of nan iterations: {0:3d} |"
        yield text


def nemo(points: list[Point]) -> Iterator[str]:
    """nemo/lightning/pytorch/callbacks/progress_printer.py."""
    yield "[NeMo I 2026-01-02 03:04:05 nemo_logging:393] Rank 0 has data parallel rank: 0"
    for p in points:
        yield (
            f"Training epoch 0, iteration {p.step - 1}/{STEPS - 1} | lr: {p.lr:.4} | global_batch_size: 8"
            f" | global_step: {p.step - 1} | reduced_train_loss: {p.loss:.4} | train_step_timing in s: 0.25"
        )


def torchtitan(points: list[Point]) -> Iterator[str]:
    """torchtitan/components/metrics.py, MetricsProcessor.log; colours as in tools/utils.py."""
    red, green, yellow, blue, cyan, plain = (
        "\033[31m", "\033[32m", "\033[38;2;180;60;0m", "\033[34m", "\033[36m", "\033[39m",
    )  # fmt: skip
    for p in points:
        yield (
            f"[rank0]:[titan] 2026-01-02 03:04:05,123 - root - INFO - "
            f"{red}step: {p.step:2}  {green}loss: {p.loss:8.5f}  {yellow}grad_norm: {p.norm:7.4f}  "
            f"{blue}memory: {18.3:5.2f}GiB({19.27:.2f}%)  {cyan}tps: {round(12345 + p.ms):,}  "
            f"{cyan}tflops: {123.45:,.2f}  {red}mfu: {12.3:.2f}%{plain}"
        )


def deepspeed(points: list[Point]) -> Iterator[str]:
    """deepspeed/runtime/engine.py, _report_progress; fp16/loss_scaler.py; the script prints the loss."""
    log = "[2026-01-02 03:04:05,123] [INFO] [logging.py:107:log_dist] [Rank 0] "
    scale, skipped = 65536, 0
    yield log + "DeepSpeed Final Optimizer = FusedAdam"
    for p in points:
        if p.bad and scale > 1:
            lower = scale // 2
            yield (
                f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}, "
                f"reducing to {lower}"
            )
            scale, skipped = lower, skipped + 1
        elif p.bad:
            yield "Traceback (most recent call last):"
            yield '  File "train.py", line 40, in <module>'
            yield "    engine.step()"
            yield (
                "Exception: Current loss scale already at minimum - cannot decrease scale anymore. "
                "Exiting run."
            )
            return
        yield log + f"step={p.step}, skipped={skipped}, lr=[{p.lr}], mom=[(0.9, 0.95)]"
        yield f"iteration {p.step} loss: {p.loss:.4f}"


def nanotron(points: list[Point]) -> Iterator[str]:
    """nanotron/logging/base.py, LoggerWriter; human_format."""

    def human(number: float) -> str:
        if number != number:
            return "nan"
        value, magnitude = float(f"{number:.3g}"), 0
        while abs(value) >= 1000:
            magnitude, value = magnitude + 1, value / 1000
        return f"{value:f}".rstrip("0").rstrip(".") + ("", "K", "M", "B", "T")[magnitude]

    for p in points:
        scalars = {
            "consumed_tokens": human(p.step * 262144), "elapsed_time_per_iteration_ms": human(p.ms),
            "tokens_per_sec": human(1e6), "global_batch_size": human(1024), "lm_loss": human(p.loss),
            "lr": f"{p.lr:.3g}", "grad_norm": human(p.norm),
        }  # fmt: skip
        yield (
            f"01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0]: iteration: {p.step} / {STEPS} | "
            + " | ".join(f"{name}: {value}" for name, value in scalars.items())
        )


def nanogpt(points: list[Point]) -> Iterator[str]:
    """train.py of nanoGPT."""
    yield "Overriding: learning_rate = 0.0006"
    yield f"tokens per iteration will be: {491520:,}"
    yield "number of parameters: 10.65M"
    for p in points:
        if p.step % 25 == 1:
            yield f"step {p.step - 1}: train loss {p.loss:.4f}, val loss {p.loss + 0.1:.4f}"
        yield f"iter {p.step - 1}: loss {p.loss:.4f}, time {p.ms:.2f}ms, mfu {12.3:.2f}%"


def olmo_core(points: list[Point]) -> Iterator[str]:
    """olmo_core/train/callbacks/console_logger.py."""
    for p in points:
        yield (
            "2026-01-02 03:04:05.123\tnode-0:0\tolmo_core.train.callbacks.console_logger:99\tINFO\t"
            f"[step={p.step}/{STEPS},epoch=1,eta=0:0{p.step % 9}:10]"
        )
        yield f"    optim/LR (group 0)={p.lr:.4g}"
        yield f"    optim/total grad norm={p.norm:.4g}"
        yield f"    throughput/device/TPS={12345:,d}"
        yield f"    train/CE loss={p.loss:.4g}"
        yield f"    train/PPL={math.exp(min(p.loss, 20)) if p.loss == p.loss else p.loss:.4g}"


def verl(points: list[Point]) -> Iterator[str]:
    """verl/utils/logger/aggregate_logger.py, concat_dict_to_str."""
    for p in points:
        values = {
            "actor/pg_loss": f"np.float64({p.loss})", "actor/grad_norm": p.norm, "actor/lr": p.lr,
            "actor/ppo_kl": 0.01, "critic/score/mean": 0.5, "timing_s/step": p.ms / 1000,
        }  # fmt: skip
        text = " - ".join(f"{name}:{value}" for name, value in values.items())
        yield f"\033[36m(TaskRunner pid=4242)\033[0m step:{p.step} - {text}"


def timm(points: list[Point]) -> Iterator[str]:
    """train.py of pytorch-image-models, train_one_epoch: 20 updates an epoch."""
    for p in points:
        epoch, i = divmod(p.step - 1, 20)
        yield (
            f"Train: {epoch} [{i:>4d}/{20} ({100.0 * i / 19:>3.0f}%)]  "
            f"Loss: {p.loss:#.3g} ({p.loss:#.3g})  "
            f"Time: {p.ms / 1000:.3f}s, {512.0:>7.2f}/s  ({0.25:.3f}s, {500.0:>7.2f}/s)  "
            f"LR: {p.lr:.3e}  Data: {0.01:.3f} ({0.02:.3f})"
        )
        if i == 19:
            yield (
                f"Test: [{19:>4d}/{19}]  Time: {0.1:.3f} ({0.1:.3f})  Loss: {p.loss:>7.3f} ({p.loss:>6.3f})"
                f"  Acc@1: {10.0:>7.3f} ({10.0:>7.3f})  Acc@5: {50.0:>7.3f} ({50.0:>7.3f})"
            )


def mmengine(points: list[Point]) -> Iterator[str]:
    """mmengine/runner/log_processor.py, get_log_after_iter: 50 iterations an epoch, one line in 5."""
    for p in points:
        epoch, i = divmod(p.step - 1, 50)
        if (i + 1) % 5 == 0:
            yield (
                f"2026/01/02 03:04:05 - mmengine - INFO - Epoch(train)  [{epoch + 1}][{i + 1:3d}/50]  "
                f"lr: {p.lr:.4e}  eta: 0:00:{STEPS - p.step:02d}  time: {p.ms / 1000:.4f}  "
                f"data_time: {0.01:.4f}  memory: 3500  grad_norm: {p.norm:.4f}  "
                f"loss: {p.loss:.4f}  loss_cls: {p.loss * 0.6:.4f}  loss_bbox: {p.loss * 0.4:.4f}"
            )


def fairseq(points: list[Point]) -> Iterator[str]:
    """fairseq/logging/progress_bar.py, SimpleProgressBar: one line in 5."""
    for p in points:
        if p.step % 5 == 0:
            yield (
                f"2026-01-02 03:04:05 | INFO | train_inner | epoch {1:03d}:  {p.step:6d} / {2000:d} "
                f"loss={p.loss:.3f}, nll_loss={p.loss - 0.3:.3f}, ppl={2**p.loss:.2f}, wps=1000, ups=1.2, "
                f"wpb=800, bsz=8, num_updates={p.step}, lr={p.lr:g}, gnorm={p.norm:.3f}, loss_scale=128, "
                f"train_wall=10, gb_free=9.1, wall=12"
            )


def keras(points: list[Point]) -> Iterator[str]:
    """keras/utils/generic_utils.py, Progbar of 2.x: an epoch a step."""
    for p in points[::5]:
        yield f"Epoch {p.step // 5 + 1}/16"
        yield (
            f"\r 1/32 [{'>' + '.' * 29}] - ETA: 3s - loss: {p.loss * 1.1:.4f} - accuracy: 0.1000"
            f"\r32/32 [{'=' * 30}] - 1s 2ms/step - loss: {p.loss:.4f} - accuracy: 0.1234"
            f" - val_loss: {p.loss + 0.1:.4f}"
        )


def ultralytics(points: list[Point]) -> Iterator[str]:
    """ultralytics/models/yolo/detect/train.py, progress_string; engine/trainer.py."""
    for p in points[::5]:
        head = ("Epoch", "GPU_mem", "box_loss", "cls_loss", "dfl_loss", "Instances", "Size")
        yield ("%11s" * 7) % head
        epoch = f"{p.step // 5 + 1}/16"
        line = ("%11s" * 2 + "%11.4g" * 5) % (
            epoch,
            "2.35G",
            p.loss,
            p.loss / 2,
            p.loss / 3,
            12,
            640,
        )
        bar = "[00:02<00:00,  3.21it/s]"
        yield f"\r{line}:  12%|█▎        | 1/8 {bar}\r{line}: 100%|██████████| 8/8 {bar}"
        yield ("%22s" + "%11s" * 6) % (
            "Class",
            "Images",
            "Instances",
            "Box(P",
            "R",
            "mAP50",
            "mAP50-95)",
        )
        yield ("%22s" + "%11i" * 2 + "%11.3g" * 4) % ("all", 4, 17, 0.642, 0.501, 0.61, 0.4)


def torchvision(points: list[Point]) -> Iterator[str]:
    """references/classification/utils.py, MetricLogger.log_every: 50 batches an epoch, one in 5."""
    for p in points:
        epoch, i = divmod(p.step - 1, 50)
        if i % 5 == 0:
            yield (
                f"Epoch: [{epoch}]  [{i:2d}/50]  eta: 0:00:{50 - i:02d}  lr: {p.lr:.6f}  img/s: 123.4 (120.1)  "
                f"loss: {p.loss:.4f} ({p.loss:.4f})  acc1: {12.5:.4f} ({12.0:.4f})  time: 0.25  data: 0.01  "
                f"max mem: 1234"
            )
        if i == 49:
            yield f"Epoch: [{epoch}] Total time: 0:00:12"


def detectron2(points: list[Point]) -> Iterator[str]:
    """detectron2/utils/events.py, CommonMetricPrinter: one line in 5."""
    for p in points:
        if p.step % 5 == 0:
            yield (
                f"\033[32m[01/02 03:04:05 d2.utils.events]: \033[0m eta: 0:10:00  iter: {p.step - 1}  "
                f"total_loss: {p.loss:.4g}  loss_cls: {p.loss * 0.6:.4g}  loss_box_reg: {p.loss * 0.4:.4g}    "
                f"time: {p.ms / 1000:.4f}  last_time: 0.25  data_time: 0.01  last_data_time: 0.01   "
                f"lr: {p.lr:.5g}  max_mem: 2350M"
            )


def plain(points: list[Point]) -> Iterator[str]:
    """A loop somebody wrote."""
    yield "learning_rate: 0.0006"
    yield "max_grad_norm: 1.0"
    for p in points:
        epoch = p.step // 10 + 1
        if p.step % 10 == 0:
            yield f"Epoch {epoch} | Total Loss: {p.loss:.2f} | CPE Loss: 0.00 | Total Grad Norm: {p.norm:.1f}"


MAKERS: tuple[Callable[[list[Point]], Iterator[str]], ...] = (
    megatron, nemo, torchtitan, deepspeed, nanotron, nanogpt, olmo_core, verl, timm, mmengine, fairseq,
    keras, ultralytics, torchvision, detectron2, plain,
)  # fmt: skip


SPIKED = (megatron, torchtitan, nanogpt, fairseq, plain)


def main() -> None:
    for maker in MAKERS:
        folder = HERE / maker.__name__
        folder.mkdir(exist_ok=True)
        for kind in ("healthy", "nan", *(("spike",) if maker in SPIKED else ())):
            text = "\n".join(maker(run(kind))) + "\n"
            (folder / f"{kind}.log").write_bytes(text.encode())


if __name__ == "__main__":
    main()
