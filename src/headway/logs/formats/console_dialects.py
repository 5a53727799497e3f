"""Console logs, one row of `DIALECTS` per framework: how its lines look and what its numbers mean.

To read the console of another framework, add a row. `Dialect` in `console_rows.py` says what each
field is for; most frameworks need `row`, `evaluation` and `columns` alone. Code that one framework
needs goes into a hook (`finish`, `read_with`, `recognise_with`).
"""

from __future__ import annotations

import re
from array import array
from functools import partial

import numpy as np

from headway.logs.console_bars import (
    KERAS_BAR,
    LIGHTNING_BAR,
    read_keras,
    read_lightning_bar,
    read_text_table,
    read_ultralytics,
    recognise_text_table,
    recognise_ultralytics,
)
from headway.logs.console_rows import Columns, Dialect, describe_columns
from headway.logs.formats.hf_trainer import CONSOLE_ROW, read_hf_console, recognise_hf_console
from headway.logs.free_text import read_free_text, recognise_free_text
from headway.logs.log_table import Log


def _skipped_since_last_row(log: Log) -> None:
    """DeepSpeed counts skipped steps from the start of the run; a row has those since the last."""
    skipped = log.table.series.get("skipped")
    if skipped is not None:
        total = skipped.numbers()
        since = np.diff(total, prepend=0.0)
        # A count that falls was reset by a restart.
        skipped.values = array("d", np.where(since < 0, total, since).tolist())


_MEGATRON_LOSS = r"\bloss$"


def _losses_without_skipped_steps(log: Log) -> None:
    """With a loss scale, Megatron leaves skipped iterations out of the mean: no NaN can show."""
    scale = log.table.series.get("loss scale")
    if scale is not None and bool((scale.numbers() > 1).any()):
        filtered = Columns(_MEGATRON_LOSS, fold="mean", nonfinite="filtered", scope="global")
        describe_columns(log, filtered)


_VALUE = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
"""A number that a line gives without a name."""

DIALECTS = (
    # 0:	learn: 0.6931	test: 0.6932	best: 0.6932 (0)	total: 12ms	remaining: 2.1s
    Dialect(
        "catboost",
        "CatBoost console log",
        row=re.compile(
            rf"^(?P<step>\d{{1,15}}):\s{{1,4}}learn: (?P<loss>{_VALUE})"
            rf"(?:\s{{1,4}}test: (?P<val_loss>{_VALUE}))?(?=\s).{{0,200}}$"
        ),
    ),
    #  100: 12.345678, 13.456789 avg loss, 0.001000 rate, 3.211312 seconds, 6400 images, …
    # The first number is the loss of the batch.
    Dialect(
        "darknet",
        "Darknet console log",
        row=re.compile(
            rf"^\s{{0,4}}(?P<step>\d{{1,15}}): (?P<loss>{_VALUE}), (?P<loss_ema>{_VALUE}) avg"
            rf"(?: loss)?, (?P<lr>{_VALUE}) rate, (?P<step_time>{_VALUE}) seconds,.{{0,200}}$"
        ),
    ),
    # step=10, skipped=2, lr=[0.001], mom=[(0.9, 0.999)]
    # These lines have no loss, so all other lines are read as free text.
    Dialect(
        "deepspeed",
        "DeepSpeed console log",
        row=re.compile(r"\bstep=\d{1,15}, skipped=\d{1,15}, lr=\["),
        columns=(Columns(r"^skipped$", fold="sum"),),
        weight=0.6,  # the dialect of a trainer that runs on DeepSpeed is more specific
        read_with=read_free_text,
        finish=_skipped_since_last_row,
    ),
    # iter: 19  total_loss: 9.2  loss_cls: 4.5  …  lr: 1.9e-05  max_mem: 2350M
    # A loss is the median of the last 20 iterations.
    Dialect(
        "detectron2",
        "detectron2 console log",
        row=re.compile(r"(?:^|\s)iter: (?P<step>\d{1,15})\s\s(?=total_loss: )"),
        columns=(Columns(r"loss", fold="mean", span=20),),
    ),
    # 2epoch:train:1-500batch: iter_time=1.2e-04, loss_ctc=98.1, loss=81.2, grad_norm=31.2, …
    # Every number is the mean over the batches of the line.
    Dialect(
        "espnet",
        "ESPnet console log",
        row=re.compile(
            r"(?:^|\s)(?P<epoch>\d{1,9})epoch:train:\d{1,15}-(?P<step>\d{1,15})batch:(?=\s)"
        ),
        first_epoch=1,
        columns=(Columns(r"loss|grad_norm", fold="mean"),),
    ),
    # | epoch 001:    100 / 2000 loss=10.2, num_updates=100, lr=1e-05, gnorm=2.1, …
    # {"epoch": 1, "update": 0.05, "loss": "10.2", …, "num_updates": "100", …}   (--log-format json)
    Dialect(
        "fairseq",
        "fairseq console log",
        row=re.compile(
            r"^\W{0,4}epoch \d{1,9}:\s{1,9}\d{1,15} / \d{1,15} "
            r"(?=.{0,4000}?\bnum_updates=(?P<known>\d{1,15}))"
            r"|^\W{0,4}epoch (?P<epoch>\d{1,9}):\s{1,9}(?P<count>\d{1,15}) / (?P<of>\d{1,15}) "
            r"(?=\w{1,40}=)"
            r"|^\W{0,4}\{\"epoch\": \d{1,9}, \"update\": "
            r"(?=.{0,4000}?\"num_updates\": \"(?P<json>\d{1,15})\")"
        ),
        evaluation=re.compile(
            r"valid on '[^']{0,80}' subset \| (?=(?:.{0,4000}?\bnum_updates (?P<step>\d{1,15}))?)"
        ),
        drop=frozenset({"num_updates", "train_wall", "wall", "epoch", "update"}),
        columns=(
            Columns(r"^(?!eval/)(?:.*loss|gnorm|ppl)$", fold="mean", scope="global"),
            Columns(r"^loss_scale$"),
        ),
    ),
    # {'loss': 2.27, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.1}
    Dialect(
        "hf-console",
        "Hugging Face Trainer console log",
        row=CONSOLE_ROW,
        marker=re.compile(r"\*{5} Running training \*{5}|Total optimization steps ?="),
        recognise_with=recognise_hf_console,
        read_with=read_hf_console,
    ),
    # 32/32 [====] - 1s 2ms/step - loss: 0.5 - accuracy: 0.8   (under `Epoch 3/10`)
    # Every number is the mean over the epoch so far.
    Dialect(
        "keras",
        "Keras progress bars",
        row=KERAS_BAR,
        columns=(Columns(r"^(?!val_)", fold="mean", span=1),),
        read_with=read_keras,
    ),
    # Epoch 0:  50%|███  | 5/10 [00:01<00:01, 4.50it/s, loss=2.3]
    Dialect(
        "lightning-bar",
        "Lightning progress bars",
        row=LIGHTNING_BAR,
        read_with=read_lightning_bar,
    ),
    #  iteration       10/     100 | consumed samples: … | lm loss: 1.07E+01 | …
    # A loss is the mean over the iterations since the last line.
    Dialect(
        "megatron",
        "Megatron-LM console log",
        row=re.compile(
            r"\biteration\s{1,10}(?P<step>\d{1,15})/\s{0,10}(?P<of>\d{1,15})\s\|"
            r"(?=\s(?:consumed|elapsed))"
        ),
        evaluation=re.compile(
            r"\b(?:validation|test) loss at iteration (?P<step>\d{1,15})(?=[^|]{0,40}\|)"
        ),
        marker=re.compile(
            r"-{5,} (?:end of )?arguments -{5,}|setting number of micro-batches to constant"
        ),
        columns=(
            Columns(_MEGATRON_LOSS, fold="mean", scope="global"),
            Columns(r"^(?:number of|skipped)", fold="sum"),
            Columns(r"^(?:grad norm|params norm|loss scale)$", scope="global"),
        ),
        finish=_losses_without_skipped_steps,
    ),
    # Epoch(train)  [1][200/735]  lr: …  loss: …  grad_norm: nan
    # Iter(train) [   50/40000]  lr: …        Epoch [1][200/735]  lr: …   (mmcv)
    # A loss and a norm are means over the last 10 iterations.
    Dialect(
        "mmengine",
        "mmengine console log",
        row=re.compile(
            r"\b(?:Epoch\(train\)|Epoch)\s{1,4}\[\s{0,6}(?P<epoch>\d{1,9})\]"
            r"\[\s{0,9}(?P<step>\d{1,15})/(?P<of>\d{1,15})\](?=\s{1,4}(?:base_)?lr:)"
            r"|\bIter(?:\(train\))? \[\s{0,9}(?P<iter>\d{1,15})/\d{1,15}\]"
            r"(?=\s{1,4}(?:base_)?lr:)"
        ),
        evaluation=re.compile(
            r"\b(?:Epoch|Iter)\(val\)\s{1,4}(?:\[\s{0,6}\d{1,9}\])?\[\s{0,9}\d{1,15}/\d{1,15}\](?=\s)"
        ),
        first_epoch=1,
        drop=frozenset({"eta"}),
        columns=(Columns(r"^(?!eval/).*(?:loss|grad_norm)", fold="mean", span=10),),
    ),
    # iter 100: loss 3.2100, time 250.20ms, mfu 12.30%
    # step 250: train loss 2.1000, val loss 2.2000
    Dialect(
        "nanogpt",
        "nanoGPT console log",
        row=re.compile(r"^iter (?P<step>\d{1,15}): (?=loss )"),
        evaluation=re.compile(r"^step (?P<step>\d{1,15}): (?=train loss )"),
    ),
    # iteration: 10 / 100 | consumed_tokens: 1.2M | … | lm_loss: 10.2 | lr: 1e-05
    Dialect(
        "nanotron",
        "nanotron console log",
        row=re.compile(r"\biteration: (?P<step>\d{1,15}) / (?P<of>\d{1,15}) (?=\| )"),
        abbreviated=True,
        columns=(Columns(r"^(?:lm_loss|grad_norm)$", scope="global"),),
    ),
    # Training epoch 0, iteration 9/99 | lr: 4.5e-06 | reduced_train_loss: 11.03
    Dialect(
        "nemo",
        "NeMo console log",
        row=re.compile(
            r"^Training epoch (?P<epoch>\d{1,9}), iteration (?P<step>\d{1,15})/(?P<of>\d{1,15})\s"
            r"(?=\|(?:.{0,2000}?\bglobal_step: (?P<known>\d{1,15})\b)?)"
        ),
        evaluation=re.compile(r"\bValidation: iteration \d{1,15}/\d{1,15}\s(?=\|)"),
        drop=frozenset({"global_step"}),
        columns=(Columns(r"^(?:reduced_train_loss|grad_norm)$", scope="global"),),
    ),
    # [step=10/100,epoch=1,eta=0:01:00]
    #     train/CE loss=10.93
    #     optim/LR (group 0)=0.0001
    Dialect(
        "olmo-core",
        "OLMo-core console log",
        row=re.compile(
            r"\[step=[\d,]{1,15}(?:/[\d,]{1,15})?(?:,epoch=\d{1,9})?(?:,eta=[^\]]{0,60})?\]\s*$"
        ),
        columns=(Columns(r"^(?:train|optim)/", scope="global"),),
        read_with=partial(read_free_text, started=True),
    ),
    # epoch  train_loss  valid_loss  time
    # 0      2.31        2.27        00:12
    Dialect(
        "columns",
        "text table with a head (fastai, notebooks)",
        recognise_with=recognise_text_table,
        read_with=read_text_table,
    ),
    # Any other log of `key: value`, `key=value` or `key value`.
    Dialect(
        "text",
        "text log of `key: value` or `key=value`",
        recognise_with=recognise_free_text,
        read_with=read_free_text,
    ),
    # Train: 0 [  50/1251 (  4%)]  Loss: 6.93 (6.94)  Time: …  LR: 1.000e-05  Data: …
    # The number in brackets is the mean over the epoch so far; it is not read.
    Dialect(
        "timm",
        "timm console log",
        row=re.compile(
            r"\bTrain: (?P<epoch>\d{1,9}) \[\s{0,8}(?P<step>\d{1,15})/(?P<of>\d{1,15})\s{1,4}"
            r"\(\s{0,3}\d{1,3}%\)\](?=\s)"
        ),
        evaluation=re.compile(r"^Test(?: \(EMA\))?: \[\s{0,8}\d{1,15}/\d{1,15}\](?=\s)"),
        first_epoch=0,
    ),
    # Train loss 100 0.345678 Grad Norm 1.234567 2.10s/it
    Dialect(
        "tacotron",
        "Tacotron 2 console log",
        row=re.compile(rf"^Train loss (?P<step>\d{{1,15}}) (?P<loss>{_VALUE})(?=\s)"),
        evaluation=re.compile(
            rf"^Validation loss\s{{1,4}}(?P<step>\d{{1,15}}):?\s{{1,4}}(?P<loss>{_VALUE})(?=\s|$)"
        ),
    ),
    #   3  120.10 ms run,  100.10 ms python,   20.00 ms CL,    2.30 loss, 0.001000 LR, 1.20 GB used
    Dialect(
        "tinygrad",
        "tinygrad console log",
        row=re.compile(
            rf"^\s{{0,9}}(?P<step>\d{{1,15}})\s{{1,9}}(?P<step_time_ms>{_VALUE}) ms run,.{{0,99}}?"
            rf"\s(?P<loss>{_VALUE}) loss, (?P<lr>{_VALUE}) LR.{{0,200}}$"
        ),
    ),
    # step:  1  loss: 12.2721  grad_norm: 1.2345  memory: 18.30GiB(19.27%)  …
    Dialect(
        "torchtitan",
        "torchtitan console log",
        row=re.compile(r"^(?:Training\s\|\s)?step:\s{1,4}(?P<step>[\d,]{1,15})\s\s(?=loss:)"),
        evaluation=re.compile(r"^validate step:\s{1,4}(?P<step>[\d,]{1,15})\s\s(?=loss:)"),
        columns=(Columns(r"^(?:loss|grad_norm)$", scope="global"),),
    ),
    # Epoch: [0]  [ 10/235]  eta: …  lr: 0.01  loss: 2.3 (2.4)  time: …  max mem: 1234
    # MetricLogger of torchvision's references, DETR, DeiT, MAE and DINO. The first number is the
    # median of the last 20 steps, the one in brackets the mean of the epoch.
    Dialect(
        "torchvision",
        "torchvision references console log",
        row=re.compile(
            r"\bEpoch: \[(?P<epoch>\d{1,9})(?:/\d{1,9})?\]\s{1,4}"
            r"\[\s{0,9}(?P<step>\d{1,15})/(?P<of>\d{1,15})\]"
            r"(?=\s{1,4}eta:)"
        ),
        evaluation=re.compile(
            r"^(?:Test|Val|Eval)\w{0,10}:\s{1,4}\[\s{0,9}\d{1,15}/\d{1,15}\](?=\s{1,4}eta:)"
        ),
        first_epoch=0,
        columns=(Columns(r"^(?!eval/).*(?:loss|norm)", fold="mean", span=20),),
    ),
    #       Epoch    GPU_mem   box_loss   cls_loss  …
    #       1/100      2.3G      1.234      2.345   …: 100%|███| 16/16
    # Every loss is the mean over the epoch so far.
    Dialect(
        "ultralytics-console",
        "Ultralytics console log",
        columns=(Columns(r"loss", fold="mean", span=1),),
        recognise_with=recognise_ultralytics,
        read_with=read_ultralytics,
    ),
    # step:10 - actor/pg_loss:np.float64(0.1) - actor/grad_norm:0.2 - …
    # Metrics of the actor and the critic are means over the mini-batches of the step.
    Dialect(
        "verl",
        "verl console log",
        row=re.compile(r"(?:^|\s)step:(?P<step>\d{1,15}) - (?=[\w/@.-]{1,200}:)"),
        columns=(Columns(r"loss|grad_norm|kl|entropy", fold="mean", span=1, scope="global"),),
    ),
)
READERS = DIALECTS
