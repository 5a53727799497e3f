"""Maps the metric names of other tools to headway's signal names.

`train/loss`, `lm loss`, `reduced_train_loss` and `Total Loss` are all `loss`; `CPE Loss` beside a
total is its component `loss/cpe`. A metric of validation data becomes `eval/…`, so that the checks
of the training do not use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headway.core.signals import PERCENT_BYTES


@dataclass(frozen=True, slots=True)
class Named:
    """Our name for a column, and the factor to our unit."""

    name: str
    factor: float = 1.0
    rank: int = 0
    """If several columns map to one name, the lowest rank gets it."""
    percent: bool = False
    """Whether a memory column counts percent."""


_LOSS = (
    "loss",
    "train_loss",
    "total_loss",
    "loss_total",
    "lm_loss",
    "reduced_train_loss",
    "training_loss",
    "loss_step",
    "train_loss_step",
    "batch_loss",
    "loss_train",
    "ce_loss",
    "cross_entropy_loss",
    "global_avg_loss",
    "avg_loss",
    "mean_loss",
    "running_loss",
    "loss_metrics/global_avg_loss",
    "loss/total",
    "total",
    "loss_avg",
    "avg._loss",
    "loss_mean",
    "cur_loss",
    "current_loss",
    "inner/loss",
    "train_nll",
    "nll",
    "ce",
    "xent",
    "cross_entropy",
    "objective",
    "cost",
    "mse",
)
_OBJECTIVES = (
    "rmse", "logloss", "mlogloss", "binary_logloss", "multi_logloss", "l2", "l1", "mae", "rmsle",
    "mape", "merror", "error",
)  # fmt: skip
"""What boosting libraries and regressions minimise: the loss of a log without any."""
_GRAD_NORM = (
    "grad_norm",
    "gradient_norm",
    "global_grad_norm",
    "total_grad_norm",
    "grad_norm_total",
    "grad_total_norm",
    "gradnorm",
    "gnorm",
    "norm",
    "grad/global_norm",
    "grad/norm",
    "grad/total_norm",
    "global_norm",
    "total_norm",
    "grad_2.0_norm_total",
    "grad_2_norm_total",
    "optim/total_grad_norm",
    "actor/grad_norm",
    "grads/total_norm",
    "gradient/norm",
    "gradients/norm",
    "gradients/global_norm",
    "grad_norm_before_clip",
    "pre_clip_grad_norm",
    "grad_norm_preclip",
    "unclipped_grad_norm",
    "grad_norm/pre_clip",
    "grad_norm/before_clip",
    "grads_norm",
    "norm/grad",
    "grad_norm/all",
    "grad_norm/global",
    "grad_norm/total",
    "optim/grad_norm",
    "l2_norm/grad/global",
    "grad_l2_norm",
    "gradients_norm",
    "total_gradient_norm",
    "global_gradient_norm",
)
_LR = (
    "lr",
    "learning_rate",
    "lr/pg0",
    "optim/lr",
    "lr_0",
    "lr0",
    "base_lr",
    "optim/learning_rate",
    "optim/learning_rate_group0",
    "optim/lr_(group_0)",
    "actor/lr",
    "learning_rate/group_0",
    "opt/lr",
    "optimizer/lr",
    "param_groups/0/lr",
    "current_lr",
    "step_lr",
)
_LOSS_SCALE = (
    "loss_scale", "grad_scale", "scale", "amp_scale", "scaler_scale", "amp/scale", "scaler/scale",
)  # fmt: skip
_STEP_TIME = (
    "step_time_s", "step_time", "iter_time", "time_per_step", "train_step_timing_in_s",
    "iteration_time", "sec/iter", "s/it", "time/step", "batch_time",
)  # fmt: skip
_STEP_TIME_MS = (
    "elapsed_time_per_iteration", "elapsed_time_per_iteration_(ms)", "step_time_ms", "dt",
    "iter_time_ms",
)  # fmt: skip
_HOST = (
    "host_rss_bytes", "rss", "ram", "host_memory", "cpu_memory", "cpu_mem", "ram_usage", "cpu_ram",
)  # fmt: skip
_DEVICE = (
    "device_allocated_bytes",
    "memory",
    "gpu_mem",
    "gpu_memory",
    "max_mem",
    "cuda_memory",
    "vram",
    "mem",
    "memory_allocated",
    "max_memory",
    "gpu_memory_allocated",
    "cuda_mem",
    "max_memory_allocated",
    "peak_memory",
    "memory/peak",
    "max_memory_reserved",
    "gpu0_mem",
    "cuda_max_mem",
)
_SKIPPED = ("number_of_skipped_iterations", "skipped_iterations", "skipped_steps", "skipped")
_REWARD = (
    "reward",
    "rewards",
    "mean_reward",
    "reward_mean",
    "rewards/mean",
    "critic/rewards/mean",
    "critic/score/mean",
    "episode_reward",
    "episode_reward_mean",
    "ep_rew_mean",
    "rollout/ep_rew_mean",
    "episodic_return",
    "charts/episodic_return",
    "episode_return",
    "return",
)
_NAN_STEPS = ("number_of_nan_iterations", "nan_iterations")
_CLIPPED = (
    "grad_norm_after_clip",
    "clipped_grad_norm",
    "post_clip_grad_norm",
    "grad_norm_clipped",
    "grad_norm/post_clip",
    "grad_norm/after_clip",
)

_EXACT: dict[str, Named] = {
    raw: Named(name, factor, rank)
    for name, factor, raws in (
        ("loss", 1.0, _LOSS),
        ("grad_norm", 1.0, _GRAD_NORM),
        ("lr", 1.0, _LR),
        ("loss_scale", 1.0, _LOSS_SCALE),
        ("step_time_s", 1.0, _STEP_TIME),
        ("step_time_s", 1e-3, _STEP_TIME_MS),
        ("host_rss_bytes", 1.0, _HOST),
        ("device_allocated_bytes", 1.0, _DEVICE),
        ("scaler_skipped", 1.0, _SKIPPED),
        ("reward", 1.0, _REWARD),
        ("nan_steps", 1.0, _NAN_STEPS),
        ("clipped_grad_norm", 1.0, _CLIPPED),
    )
    for rank, raw in enumerate(raws)
}
_UNITS = {
    "b": 1.0,
    "k": 1e3,
    "kb": 1e3,
    "kib": 2.0**10,
    "m": 2.0**20,
    "mb": 2.0**20,
    "mib": 2.0**20,
    "g": 2.0**30,
    "gb": 2.0**30,
    "gib": 2.0**30,
    "tb": 2.0**40,
    "tib": 2.0**40,
}
"""MB is taken as 2^20 bytes, as torch counts."""
_TIMES = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "min": 60.0}
_MEMORY_IS_MB = ("memory", "max_mem", "mem", "max_memory")
"""Megabytes if there is no unit: the frameworks that use these names (mmengine, torchvision) do."""

_MEMORY_WORD = re.compile(
    r"(^|_)(v?ram|v?mem|memory|rss|uss|vms|hbm)(_|$)|memory|cuda_(?:mem|alloc|res)"
)
_ALLOCATED = re.compile(r"(^|_)(alloc|allocated|reserved|cached?|used|peak|active|resident)(_|$)")
"""Words that say memory if the value has a unit of bytes: `alloc 4312MiB`."""
_NO_MEMORY = re.compile(
    r"(^|_)(replay|buffer|bank|size|len|length|count|num|free|avail|available|total|capacity|limit|"
    r"bandwidth|bw|clock|temp|util|utilization|ratio|rate|loss|attention|attn|tokens?|slots?|keys?|"
    r"format|access|copy|efficient|time|frag|fragmentation|norm)(_|$)"
)
"""Words that say that a column with a word for memory is something else."""
_ON_DEVICE = re.compile(
    r"(^|_)(gpu|gpus|cuda|vram|device|torch|hbm|nvml|alloc|allocated|reserved|vmem|mps|xpu)\d*(_|$)"
)
_ON_HOST = re.compile(r"(^|_)(rss|uss|vms|ram|host|cpu|process|proc|system|sys|resident)(_|$)")
_UNIT_WORD = re.compile(
    r"(^|_)([kmgt]i?b|bytes?|kilobytes|megabytes|gigabytes|mebibytes|gibibytes|percent|pct|%)(_|$)"
)
_LONG_UNITS = {
    "kilobytes": "kb",
    "megabytes": "mb",
    "gigabytes": "gb",
    "mebibytes": "mib",
    "gibibytes": "gib",
}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_EVAL = re.compile(
    r"^(eval|val|valid|validation|test|dev|holdout)(?:_\d{1,2}'s_)?([/_ .\-]|$|(?<='s_))"
)
_TRAIN = re.compile(r"^(train|training|trainer|metrics|log|loss_metrics|losses|perf|system)[/.]")
_TRAIN_LAST = re.compile(r"[/.](train|training)$|(?<=rmse|.mae|.mse)_(train|training|trn)$")
_OF_BOOSTER = re.compile(rf"^(?:train|training|learn)(?:'s)?_(?=(?:{'|'.join(_OBJECTIVES)})$)")
"""`train-rmse` (XGBoost), `training's l2` (LightGBM)."""
_EVAL_LAST = re.compile(r"[/._](eval|val|valid|validation|test|dev|holdout)$")
_IN_UNIT = re.compile(r"^(?P<plain>.+?)[_ ]?[(\[_](?P<unit>[kmgt]i?b|ms|s|us|min)[)\]]?$")
"""`RAM (GB)`, `gpu_mem_mb`, `step_time[ms]`"""
_PER_SECOND = re.compile(
    r"^(?:throughput/)?(?:device/)?(?:(?P<tokens>tok(?:en)?s?)|(?P<samples>samples?|images?|imgs?)"
    r"|(?P<steps>steps?|it|iters?))(?:_per_|/)s(?:ec(?:ond)?)?(?:_per_gpu)?$"
)
_RATE_LETTERS = {"tps": "tokens_per_s", "wps": "tokens_per_s", "ups": "steps_per_s"}
_EPOCH_MEAN = re.compile(r"[_/]epoch$")
_PART = re.compile(r"^(?:train_)?(?:loss[_/.](?P<after>.+)|(?P<before>.+?)[_/ ]?loss)(?:_step)?$")
_NO_PART = re.compile(
    r"^total$|scal|weight|coef|num|count|time|per_|_min$|_max$|std|var$|ema|smooth|best"
)
LAST_RESORT = 1000
"""Rank of a column that is used only if there is no better one."""
_TOKEN = re.compile(r"[\s\-]+")


def _key(raw: str) -> str:
    return _TOKEN.sub("_", raw.strip().lower())


def _plain(key: str) -> str:
    """The name without the words for training data."""
    return _OF_BOOSTER.sub("", _TRAIN_LAST.sub("", _TRAIN.sub("", key)))


def map_name(raw: str, unit: str = "") -> Named | None:
    """Our name for a column of a log; None if no check uses it."""
    key = _key(raw)
    plain = _plain(key)
    plain = plain.replace("_(pre_clip)", "/pre_clip").replace("_(post_clip)", "/post_clip")
    plain = plain.removesuffix("_(avg)")
    if _EVAL.match(key) or _EVAL.match(plain):
        return Named(f"eval/{re.sub(_EVAL, '', plain, count=1) or 'value'}")
    if _EVAL_LAST.search(plain):
        return Named(f"eval/{_EVAL_LAST.sub('', plain)}")
    if _EPOCH_MEAN.search(plain):
        # The mean of an epoch adds nothing if single steps are logged too.
        mean = map_name(_EPOCH_MEAN.sub("", plain), unit)
        return None if mean is None else replace(mean, rank=mean.rank + LAST_RESORT)
    if plain not in _EXACT and key not in _EXACT and (inside := _IN_UNIT.match(plain)):
        known = _EXACT.get(inside["plain"])
        if known is not None and known.name.endswith(("_bytes", "step_time_s")):
            return _scaled(known, inside["plain"], inside["unit"])
    found = _EXACT.get(plain) or _EXACT.get(key)
    if found is None and plain in ("time", "time_ms", "time_(ms)"):
        # In seconds it may be the time since the start; nobody prints that in milliseconds.
        milliseconds = plain != "time" or unit.strip().lower() == "ms"
        return Named("step_time_s", 1e-3, LAST_RESORT) if milliseconds else None
    rate = _PER_SECOND.match(plain) or _PER_SECOND.match(unit if unit == "tok/s" else "")
    if rate or plain in _RATE_LETTERS:
        kind = f"{rate.lastgroup}_per_s" if rate else _RATE_LETTERS[plain]
        return Named(kind)
    if found is None and re.match(r"lr[-_/](?!scale|mult|factor)", plain):
        found = Named("lr", rank=len(_LR))
    if found is not None:
        return _scaled(found, plain, unit.strip().lower())
    if (memory := _map_memory(raw, unit)) is not None:
        return memory
    part = _PART.match(plain)
    if part is None or _NO_PART.search(plain):
        return None
    return Named(f"loss/{(part['after'] or part['before']).strip('_/. ')}")


def _map_memory(raw: str, unit: str) -> Named | None:
    """The name of a memory column under any name in the script: `sys/vram_used_gib`."""
    spelled = _CAMEL.sub("_", raw.strip()).lower().replace("%", "_%_")
    words = re.sub(r"[^a-z0-9%]+", "_", spelled).strip("_")
    in_bytes = unit.strip().lower() in _UNITS and _ALLOCATED.search(words)
    if not (in_bytes or _MEMORY_WORD.search(words)) or _NO_MEMORY.search(words):
        return None
    on_host = _ON_HOST.search(words) and not _ON_DEVICE.search(words)
    name = "host_rss_bytes" if on_host else "device_allocated_bytes"
    written = _UNIT_WORD.search(words)
    short = unit.strip().lower() or (written[2] if written else "")
    short = _LONG_UNITS.get(short, short)
    if short in ("percent", "pct", "%"):
        return Named(name, PERCENT_BYTES, 2 * LAST_RESORT, percent=True)
    factor = 1.0 if short.startswith("byte") else _UNITS.get(short, 1.0)
    return Named(name, factor, LAST_RESORT)


def map_names(
    raws: Iterable[str],
    known: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> dict[str, Named]:
    """Our names for the columns of a log, by their names in the log.

    Each of our names is used once. `known` are names that the reader knows. If the only loss of a
    log is one component, it is the loss.
    """
    raws, known, units = list(raws), known or {}, units or {}
    found: dict[str, Named] = {}
    for raw in raws:
        if raw in known:
            if known[raw]:
                found[raw] = Named(known[raw], rank=-1)
        elif (name := map_name(raw, units.get(raw, ""))) is not None:
            found[raw] = name
    best: dict[str, str] = {}
    for raw, name in found.items():
        if name.name not in best or name.rank < found[best[name.name]].rank:
            best[name.name] = raw
    chosen = {raw: found[raw] for raw in best.values()}
    if "loss" not in best:
        parts = [raw for raw, name in chosen.items() if name.name.startswith("loss/")]
        if len(parts) == 1:
            chosen[parts[0]] = Named("loss")
        elif not parts and (unknown := [raw for raw in raws if _says_loss(raw, chosen)]):
            total = [raw for raw in unknown if _OF_ALL.search(_key(raw))]
            if total or len(unknown) == 1:
                chosen[(total or unknown)[0]] = Named("loss")
        elif not parts:
            objectives = {_plain(_key(raw)): raw for raw in raws if raw not in chosen}
            if least := next((objectives[one] for one in _OBJECTIVES if one in objectives), None):
                chosen[least] = Named("loss")
    return chosen


_OF_ALL = re.compile(r"(?<![a-z])(?:total|all|sum)(?![a-z])")


def _says_loss(raw: str, chosen: Mapping[str, Named]) -> bool:
    """Whether it is a loss under a name that is not known: `Gen Loss Total`, `ppo/loss/total`."""
    key = _key(raw)
    return "loss" in key and raw not in chosen and not _NO_PART.search(key.replace("total", ""))


def _scaled(found: Named, plain: str, unit: str) -> Named:
    if found.name.endswith("_bytes"):
        default = 2.0**20 if plain in _MEMORY_IS_MB else 1.0
        return Named(found.name, _UNITS.get(unit, default), found.rank)
    if found.name == "step_time_s" and unit in _TIMES:
        return Named(found.name, _TIMES[unit], found.rank)
    return found
