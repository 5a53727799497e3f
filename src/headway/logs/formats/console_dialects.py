"""Console logs of training frameworks: the line pattern of each, and what its numbers mean."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import numpy as np

from headway.logs.console_rows import Dialect, collect, recognised, signal
from headway.logs.formats.text_log import read_free_text
from headway.logs.log_file import Sample
from headway.logs.log_table import Log
from headway.logs.readers import LogReader

# DeepSpeed: `step=10, skipped=2, lr=[0.001], mom=[(0.9, 0.999)]`, and whatever the script prints.

# DeepSpeed's own lines hold no loss, so the lines around them are read too, as those of any log.
# `skipped` counts from the beginning, and is turned into what was skipped since the line before.
# Overflows are told in lines of their own.

DEEPSPEED = "deepspeed"
DEEPSPEED_LABEL = "DeepSpeed console log"
_DEEPSPEED_DIALECT = Dialect(DEEPSPEED, row=re.compile(r"\bstep=\d{1,15}, skipped=\d{1,15}, lr=\["))


def recognise_deepspeed(sample: Sample) -> float:
    return (
        recognised(_DEEPSPEED_DIALECT, sample) * 0.6
    )  # a trainer that runs on top of it knows more


def read_deepspeed(path: Path) -> Log:
    log = read_free_text(path, DEEPSPEED)
    skipped = log.table.series.get("skipped")
    if skipped is not None and len(skipped):
        since = np.diff(skipped.numbers(), prepend=0.0)
        # Where it falls, the run began anew.
        skipped.values = array("d", np.where(since < 0, skipped.numbers(), since).tolist())
        signal(log, r"^skipped$", fold="sum")
    return log


# detectron2: `iter: 19 total_loss: 9.2 loss_cls: 4.5 … lr: 1.9e-05 max_mem: 2350M`.

# A loss is the median of the last twenty iterations.

DETECTRON2 = "detectron2"
DETECTRON2_LABEL = "detectron2 console log"
_DETECTRON2_DIALECT = Dialect(
    DETECTRON2,
    row=re.compile(r"(?:^|\s)iter: (?P<step>\d{1,15})\s\s(?=total_loss: )"),
)


def recognise_detectron2(sample: Sample) -> float:
    return recognised(_DETECTRON2_DIALECT, sample)


def read_detectron2(path: Path) -> Log:
    log = collect(_DETECTRON2_DIALECT, path)
    signal(log, r"loss", fold="mean", span=20)
    return log


# fairseq: `| epoch 001: 100 / 2000 loss=10.2, num_updates=100, lr=1e-05, gnorm=2.1, …`, and with
# `--log-format json` `{"epoch": 1, "update": 0.05, "loss": "10.2", …, "num_updates": "100", …}`.

# Loss and norm are means over the updates since the last line; the step is `num_updates`.

FAIRSEQ = "fairseq"
FAIRSEQ_LABEL = "fairseq console log"
_FAIRSEQ_PLACE = r"^\W{0,4}epoch \d{1,9}:\s{1,9}\d{1,15} / \d{1,15} "
_FAIRSEQ_DIALECT = Dialect(
    FAIRSEQ,
    row=re.compile(
        rf"{_FAIRSEQ_PLACE}(?=.{{0,4000}}?\bnum_updates=(?P<known>\d{{1,15}}))"
        r"|^\W{0,4}epoch (?P<epoch>\d{1,9}):\s{1,9}(?P<count>\d{1,15}) / (?P<of>\d{1,15}) "
        r"(?=\w{1,40}=)"
        r"|^\W{0,4}\{\"epoch\": \d{1,9}, \"update\": "
        r"(?=.{0,4000}?\"num_updates\": \"(?P<json>\d{1,15})\")"
    ),
    evaluation=re.compile(
        r"valid on '[^']{0,80}' subset \| (?=(?:.{0,4000}?\bnum_updates (?P<step>\d{1,15}))?)"
    ),
    drop=frozenset({"num_updates", "train_wall", "wall", "epoch", "update"}),
)


def recognise_fairseq(sample: Sample) -> float:
    return recognised(_FAIRSEQ_DIALECT, sample)


def read_fairseq(path: Path) -> Log:
    log = collect(_FAIRSEQ_DIALECT, path)
    signal(log, r"^(?!eval/)(?:.*loss|gnorm|ppl)$", fold="mean", scope="global")
    signal(log, r"^loss_scale$")
    return log


# Megatron-LM (and its forks): ` iteration 10/ 100 | consumed samples: … | lm loss: 1.07E+01 | …`.

# A loss is the mean over the iterations since the last line. With a loss scale, iterations that
# were skipped are left out of it, so a NaN does not show: the line counts them instead.

MEGATRON = "megatron"
MEGATRON_LABEL = "Megatron-LM console log"
_MEGATRON_DIALECT = Dialect(
    MEGATRON,
    row=re.compile(
        r"\biteration\s{1,10}(?P<step>\d{1,15})/\s{0,10}(?P<of>\d{1,15})\s\|(?=\s(?:consumed|elapsed))"
    ),
    evaluation=re.compile(
        r"\b(?:validation|test) loss at iteration (?P<step>\d{1,15})(?=[^|]{0,40}\|)"
    ),
    marker=re.compile(
        r"-{5,} (?:end of )?arguments -{5,}|setting number of micro-batches to constant"
    ),
)


def recognise_megatron(sample: Sample) -> float:
    return recognised(_MEGATRON_DIALECT, sample)


def read_megatron(path: Path) -> Log:
    log = collect(_MEGATRON_DIALECT, path)
    scale = log.table.series.get("loss scale")
    scaled = scale is not None and bool((scale.numbers() > 1).any())
    signal(log, r"\bloss$", fold="mean", nonfinite="filtered" if scaled else "kept", scope="global")
    signal(log, r"^(?:number of|skipped)", fold="sum")
    signal(log, r"^(?:grad norm|params norm|loss scale)$", scope="global")
    return log


# mmengine (mmdet, mmseg, …): `Epoch(train) [1][200/735] lr: … loss: … grad_norm: nan`, or
# `Iter(train) [ 50/40000] …`, and the older mmcv, `Epoch [1][200/735] lr: …`.

# A loss and a norm are means over the last ten iterations.

MMENGINE = "mmengine"
MMENGINE_LABEL = "mmengine console log"
_MMENGINE_OF = r"\[\s{0,9}(?P<{0}>\d{{1,15}})/(?P<{1}>\d{{1,15}})\]"
_MMENGINE_DIALECT = Dialect(
    MMENGINE,
    row=re.compile(
        r"\b(?:Epoch\(train\)|Epoch)\s{1,4}\[\s{0,6}(?P<epoch>\d{1,9})\]\[\s{0,9}(?P<step>\d{1,15})"
        r"/(?P<of>\d{1,15})\](?=\s{1,4}(?:base_)?lr:)"
        r"|\bIter(?:\(train\))? \[\s{0,9}(?P<iter>\d{1,15})/\d{1,15}\](?=\s{1,4}(?:base_)?lr:)"
    ),
    first_epoch=1,
    evaluation=re.compile(
        r"\b(?:Epoch|Iter)\(val\)\s{1,4}(?:\[\s{0,6}\d{1,9}\])?\[\s{0,9}\d{1,15}/\d{1,15}\](?=\s)"
    ),
    drop=frozenset({"eta"}),
)


def recognise_mmengine(sample: Sample) -> float:
    return recognised(_MMENGINE_DIALECT, sample)


def read_mmengine(path: Path) -> Log:
    log = collect(_MMENGINE_DIALECT, path)
    signal(log, r"^(?!eval/).*(?:loss|grad_norm)", fold="mean", span=10)
    return log


# nanoGPT: `iter 100: loss 3.2100, time 250.20ms, mfu 12.30%`, and every so often an evaluation,
# `step 250: train loss 2.1000, val loss 2.2000`.

NANOGPT = "nanogpt"
NANOGPT_LABEL = "nanoGPT console log"
_NANOGPT_DIALECT = Dialect(
    NANOGPT,
    row=re.compile(r"^iter (?P<step>\d{1,15}): (?=loss )"),
    evaluation=re.compile(r"^step (?P<step>\d{1,15}): (?=train loss )"),
)


def recognise_nanogpt(sample: Sample) -> float:
    return recognised(_NANOGPT_DIALECT, sample)


def read_nanogpt(path: Path) -> Log:
    return collect(_NANOGPT_DIALECT, path)


# nanotron: `iteration: 10 / 100 | consumed_tokens: 1.2M | … | lm_loss: 10.2 | lr: 1e-05`.

# Numbers are printed for people (`3.4K`), with three digits.

NANOTRON = "nanotron"
NANOTRON_LABEL = "nanotron console log"
_NANOTRON_DIALECT = Dialect(
    NANOTRON,
    row=re.compile(r"\biteration: (?P<step>\d{1,15}) / (?P<of>\d{1,15}) (?=\| )"),
    human=True,
)


def recognise_nanotron(sample: Sample) -> float:
    return recognised(_NANOTRON_DIALECT, sample)


def read_nanotron(path: Path) -> Log:
    log = collect(_NANOTRON_DIALECT, path)
    signal(log, r"^(?:lm_loss|grad_norm)$", scope="global")
    return log


# NeMo 2: `Training epoch 0, iteration 9/99 | lr: 4.5e-06 | reduced_train_loss: 11.03`.

# The loss is of the very step, reduced over all ranks. Where a line has `global_step` it is the
# step.

NEMO = "nemo"
NEMO_LABEL = "NeMo console log"
_NEMO_DIALECT = Dialect(
    NEMO,
    row=re.compile(
        r"^Training epoch (?P<epoch>\d{1,9}), iteration (?P<step>\d{1,15})/(?P<of>\d{1,15})\s"
        r"(?=\|(?:.{0,2000}?\bglobal_step: (?P<known>\d{1,15})\b)?)"
    ),
    evaluation=re.compile(r"\bValidation: iteration \d{1,15}/\d{1,15}\s(?=\|)"),
    drop=frozenset({"global_step"}),
)


def recognise_nemo(sample: Sample) -> float:
    return recognised(_NEMO_DIALECT, sample)


def read_nemo(path: Path) -> Log:
    log = collect(_NEMO_DIALECT, path)
    signal(log, r"^(?:reduced_train_loss|grad_norm)$", scope="global")
    return log


# OLMo-core (and OLMo): `[step=10/100,epoch=1,eta=0:01:00]`, and under it a line for each number:
# ` train/CE loss=10.93`, ` optim/LR (group 0)=0.0001`.

OLMO_CORE = "olmo-core"
OLMO_CORE_LABEL = "OLMo-core console log"
_OLMO_CORE_DIALECT = Dialect(
    OLMO_CORE,
    row=re.compile(
        r"\[step=[\d,]{1,15}(?:/[\d,]{1,15})?(?:,epoch=\d{1,9})?(?:,eta=[^\]]{0,60})?\]\s*$"
    ),
)


def recognise_olmo_core(sample: Sample) -> float:
    return recognised(_OLMO_CORE_DIALECT, sample)


def read_olmo_core(path: Path) -> Log:
    log = read_free_text(path, OLMO_CORE, started=True)
    signal(log, r"^(?:train|optim)/", scope="global")
    return log


# timm: `Train: 0 [ 50/1251 ( 4%)] Loss: 6.93 (6.94) Time: … LR: 1.000e-05 Data: …`.

# The first number is this step's, the one in brackets the mean over the epoch so far.

TIMM = "timm"
TIMM_LABEL = "timm console log"
_TIMM_DIALECT = Dialect(
    TIMM,
    row=re.compile(
        r"\bTrain: (?P<epoch>\d{1,9}) \[\s{0,8}(?P<step>\d{1,15})/(?P<of>\d{1,15})\s{1,4}"
        r"\(\s{0,3}\d{1,3}%\)\](?=\s)"
    ),
    first_epoch=0,
    evaluation=re.compile(r"^Test(?: \(EMA\))?: \[\s{0,8}\d{1,15}/\d{1,15}\](?=\s)"),
)


def recognise_timm(sample: Sample) -> float:
    return recognised(_TIMM_DIALECT, sample)


def read_timm(path: Path) -> Log:
    return collect(_TIMM_DIALECT, path)


# torchtitan: `step: 1 loss: 12.2721 grad_norm: 1.2345 memory: 18.30GiB(19.27%) …`.

# Loss and norm are of the very step, reduced over all ranks.

TORCHTITAN = "torchtitan"
TORCHTITAN_LABEL = "torchtitan console log"
_TORCHTITAN_DIALECT = Dialect(
    TORCHTITAN,
    row=re.compile(r"^(?:Training\s\|\s)?step:\s{1,4}(?P<step>[\d,]{1,15})\s\s(?=loss:)"),
    evaluation=re.compile(r"^validate step:\s{1,4}(?P<step>[\d,]{1,15})\s\s(?=loss:)"),
)


def recognise_torchtitan(sample: Sample) -> float:
    return recognised(_TORCHTITAN_DIALECT, sample)


def read_torchtitan(path: Path) -> Log:
    log = collect(_TORCHTITAN_DIALECT, path)
    signal(log, r"^(?:loss|grad_norm)$", scope="global")
    return log


# torchvision's references (and DETR, DeiT, MAE, DINO …, which took its MetricLogger): `Epoch: [0]
# [ 10/235] eta: … lr: 0.01 loss: 2.3 (2.4) time: … max mem: 1234`.

# The first number is the median of the last twenty steps, the one in brackets the epoch's mean.

TORCHVISION = "torchvision"
TORCHVISION_LABEL = "torchvision references console log"
_TORCHVISION_DIALECT = Dialect(
    TORCHVISION,
    row=re.compile(
        r"\bEpoch: \[(?P<epoch>\d{1,9})(?:/\d{1,9})?\]\s{1,4}"
        r"\[\s{0,9}(?P<step>\d{1,15})/(?P<of>\d{1,15})\]"
        r"(?=\s{1,4}eta:)"
    ),
    first_epoch=0,
    evaluation=re.compile(
        r"^(?:Test|Val|Eval)\w{0,10}:\s{1,4}\[\s{0,9}\d{1,15}/\d{1,15}\](?=\s{1,4}eta:)"
    ),
)


def recognise_torchvision(sample: Sample) -> float:
    return recognised(_TORCHVISION_DIALECT, sample)


def read_torchvision(path: Path) -> Log:
    log = collect(_TORCHVISION_DIALECT, path)
    signal(log, r"^(?!eval/).*(?:loss|norm)", fold="mean", span=20)
    return log


# verl: `step:10 - actor/pg_loss:np.float64(0.1) - actor/grad_norm:0.2 - …`, one line for a step.

# Metrics of the actor and the critic are means over the step's mini-batches.

VERL = "verl"
VERL_LABEL = "verl console log"
_VERL_DIALECT = Dialect(
    VERL,
    row=re.compile(r"(?:^|\s)step:(?P<step>\d{1,15}) - (?=[\w/@.-]{1,200}:)"),
)


def recognise_verl(sample: Sample) -> float:
    return recognised(_VERL_DIALECT, sample)


def read_verl(path: Path) -> Log:
    log = collect(_VERL_DIALECT, path)
    signal(log, r"loss|grad_norm|kl|entropy", fold="mean", span=1, scope="global")
    return log


READERS = (
    LogReader(DEEPSPEED, DEEPSPEED_LABEL, recognise_deepspeed, read_deepspeed),
    LogReader(DETECTRON2, DETECTRON2_LABEL, recognise_detectron2, read_detectron2),
    LogReader(FAIRSEQ, FAIRSEQ_LABEL, recognise_fairseq, read_fairseq),
    LogReader(MEGATRON, MEGATRON_LABEL, recognise_megatron, read_megatron),
    LogReader(MMENGINE, MMENGINE_LABEL, recognise_mmengine, read_mmengine),
    LogReader(NANOGPT, NANOGPT_LABEL, recognise_nanogpt, read_nanogpt),
    LogReader(NANOTRON, NANOTRON_LABEL, recognise_nanotron, read_nanotron),
    LogReader(NEMO, NEMO_LABEL, recognise_nemo, read_nemo),
    LogReader(OLMO_CORE, OLMO_CORE_LABEL, recognise_olmo_core, read_olmo_core),
    LogReader(TIMM, TIMM_LABEL, recognise_timm, read_timm),
    LogReader(TORCHTITAN, TORCHTITAN_LABEL, recognise_torchtitan, read_torchtitan),
    LogReader(TORCHVISION, TORCHVISION_LABEL, recognise_torchvision, read_torchvision),
    LogReader(VERL, VERL_LABEL, recognise_verl, read_verl),
)
