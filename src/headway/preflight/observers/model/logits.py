"""The size of attention logits and of output logits."""

from __future__ import annotations

import math
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.script_context import CallSite, CallSites, is_measured_step
from headway.torch_adapters.compat import base_tensor, find_aliases

# How large the logits of attention are, and how evenly it looks around.

# Heard at `scaled_dot_product_attention`, at `nn.MultiheadAttention`, and at a hand-written
# softmax whose result is multiplied with something. A few samples of the batch are enough.

FUSED = find_aliases("scaled_dot_product_attention")
WHOLE = (F.multi_head_attention_forward,)
SOFTMAX = find_aliases("softmax")
USES = find_aliases("matmul", "__matmul__", "bmm", "baddbmm")
EINSUM = (torch.einsum,)
PASSES = find_aliases("dropout")
SAMPLES = 4
MOST_SCORES = 1 << 20
MASKED = -1e4
"""Scores below this are masked out, however the mask was made."""
MOST_WAITING = 64


class Attention(Observer):
    """Measures `act/attention_logit` and `act/attention_entropy` of every attention."""

    functions = (*FUSED, *WHOLE, *SOFTMAX, *USES, *EINSUM, *PASSES)

    def start(self) -> None:
        self._sites = CallSites(self.script)
        self._waiting: dict[int, tuple[ref[Any], CallSite, Tensor]] = {}
        """Softmax results that are not used yet, with their scores."""
        self._found: dict[tuple[Any, ...], tuple[CallSite, float, float]] = {}
        self._named: dict[str, None] = {}

    def function_ended(self, call: TorchCall) -> None:
        if not torch.is_grad_enabled() or not is_measured_step(self.script.step):
            return
        result = call.result
        if call.function in PASSES:
            self._passed(call)
        elif call.function in USES or call.function in EINSUM:
            self._used(call)
        elif isinstance(result, Tensor) and not result.requires_grad:
            return
        elif call.function in FUSED:
            self._measure(self._sites.here(), _fused_scores(call))
        elif call.function in WHOLE:
            self._measure(self._sites.here(), _whole_scores(call))
        elif isinstance(result, Tensor):
            self._wait(call, result)

    def backward_begins(self, roots: Any) -> None:
        found, self._found = self._found, {}
        self._forget()
        logits, entropies = {}, {}
        for site, logit, entropy in found.values():
            name = site.name(self.script)
            if name not in self._named:
                self._named[name] = None
                self.evidence.record("attention", {"member": name, "place": site.place})
            logits[name], entropies[name] = logit, entropy
        if logits:
            self.evidence.column("act/attention_logit", logits)
            self.evidence.column("act/attention_entropy", entropies)

    def step_ended(self, optimizer: Optimizer) -> None:
        self._found = {}
        self._forget()

    def _forget(self) -> None:
        self._waiting.clear()
        self._sites.restart()

    def _wait(self, call: TorchCall, result: Tensor) -> None:
        scores = call.argument(0, "input")
        dim = call.argument(1, "dim")
        if not isinstance(scores, Tensor) or scores.dim() < 2 or min(scores.shape[-2:]) < 2:
            return
        if dim not in (-1, scores.dim() - 1) or len(self._waiting) >= MOST_WAITING:
            return
        site = self._sites.here()
        if site is not None:
            self._waiting[id(result)] = (ref(result), site, scores.detach())

    def _passed(self, call: TorchCall) -> None:
        known = self._known(call.argument(0, "input"))
        if known is not None and isinstance(call.result, Tensor):
            self._waiting[id(call.result)] = (ref(call.result), known[1], known[2])

    def _used(self, call: TorchCall) -> None:
        if not self._waiting:
            return
        operands = call.args[1:] if call.function in EINSUM else call.args
        for item in operands:
            known = self._known(item)
            if known is None and isinstance(item, Tensor):
                known = self._known(base_tensor(item))
            if known is not None:
                self._waiting = {at: w for at, w in self._waiting.items() if w[1] is not known[1]}
                self._measure(known[1], known[2])
                return

    def _known(self, item: Any) -> tuple[ref[Any], CallSite, Tensor] | None:
        known = self._waiting.get(id(item))
        return known if known is not None and known[0]() is item else None

    def _measure(self, site: CallSite | None, scores: Tensor | None) -> None:
        if site is None or scores is None or scores.dim() < 2:
            return
        with torch.no_grad():
            found = _sharpness(scores)
        if found is not None:
            self._found[site.key] = (site, *found)


def _sharpness(scores: Tensor) -> tuple[float, float] | None:
    """(how far the largest logit stands above its row, entropy by its maximum), mean over rows."""
    while scores.numel() > MOST_SCORES and scores.shape[0] > 1:
        scores = scores[: scores.shape[0] // 2]
    scores = scores.float()
    allowed = scores > MASKED
    count = allowed.sum(-1)
    rows = count > 1
    if not bool(rows.any()):
        return None
    scores, allowed, count = scores[rows], allowed[rows], count[rows]
    mean = torch.where(allowed, scores, 0.0).sum(-1) / count
    above = scores.amax(-1) - mean
    weights = torch.where(allowed, scores, -math.inf).softmax(-1)
    entropy = -torch.special.xlogy(weights, weights).sum(-1) / count.float().log()
    return float(above.mean()), float(entropy.mean())


def _fused_scores(call: TorchCall) -> Tensor | None:
    query, key = call.argument(0, "query"), call.argument(1, "key")
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or query.dim() < 3:
        return None
    mask = call.argument(3, "attn_mask")
    causal = call.argument(5, "is_causal", False)
    scale = call.argument(6, "scale")
    if isinstance(mask, Tensor) and mask.dim() == query.dim() and mask.shape[0] > 1:
        mask = mask[:SAMPLES]
    query, key = query.detach()[:SAMPLES].float(), key.detach()[:SAMPLES].float()
    if query.dim() > 3 and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = scale if isinstance(scale, (int, float)) else 1 / math.sqrt(query.shape[-1])
    return _masked(query @ key.transpose(-1, -2) * scale, mask, causal is True)


def _whole_scores(call: TorchCall) -> Tensor | None:
    query, key = call.argument(0, "query"), call.argument(1, "key")
    heads = call.argument(4, "num_heads")
    weight, bias = call.argument(5, "in_proj_weight"), call.argument(6, "in_proj_bias")
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or query.dim() != 3:
        return None
    wide = query.shape[-1]
    to_query: Any
    to_key: Any
    if isinstance(weight, Tensor):
        to_query, to_key = weight[:wide], weight[wide : 2 * wide]
    else:
        to_query = call.argument(18, "q_proj_weight")
        to_key = call.argument(19, "k_proj_weight")
    if not isinstance(to_query, Tensor) or not isinstance(to_key, Tensor) or not heads:
        return None
    biases = (None, None) if not isinstance(bias, Tensor) else (bias[:wide], bias[wide : 2 * wide])
    with torch.no_grad():
        projected = []
        for given, matrix, shift in ((query, to_query, biases[0]), (key, to_key, biases[1])):
            item = F.linear(given[:, :SAMPLES].float(), matrix.float())
            item = item if shift is None else item + shift.float()
            # (length, batch, width) → (batch, heads, length, width of a head)
            item = item.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
            projected.append(item)
        scores = projected[0] @ projected[1].transpose(-1, -2)
        scores = scores / math.sqrt(projected[0].shape[-1])
    mask = call.argument(16, "attn_mask")
    padding = call.argument(14, "key_padding_mask")
    if isinstance(mask, Tensor) and mask.dim() == 3:
        mask = mask.unflatten(0, (-1, heads))[:SAMPLES]
    # A mask of one's own is true where nothing may be seen, unlike that of the fused call.
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:
        mask = ~mask
    scores = _masked(scores, mask, False)
    if isinstance(padding, Tensor) and padding.dim() == 2:
        hidden = padding[:SAMPLES] if padding.dtype is torch.bool else padding[:SAMPLES] < MASKED
        scores = scores.masked_fill(hidden[:, None, None, :], -math.inf)
    return scores


def _masked(scores: Tensor, mask: Any, causal: bool) -> Tensor:
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if isinstance(mask, Tensor):
        if mask.dtype is torch.bool:
            return scores.masked_fill(~mask, -math.inf)
        return scores + mask.detach().float()
    return scores


# Where the output logits stand: their common level, and how far the classes are apart.

LOSSES = find_aliases("cross_entropy")
NORMALISED = find_aliases("log_softmax", "logsumexp")
MOST_ROWS = 512


class OutputLogits(Observer):
    """Measures `logit_level`, `logit_spread` and `log_z` of what the loss normalises."""

    functions = (*LOSSES, *NORMALISED)

    def start(self) -> None:
        self._found: tuple[float, float, float] | None = None
        self._place: Any = None
        self._told = False

    def function_ended(self, call: TorchCall) -> None:
        if not torch.is_grad_enabled() or not is_measured_step(self.script.step):
            return
        logits = call.argument(0, "input")
        result = call.result
        if not isinstance(logits, Tensor) or not logits.requires_grad or logits.dim() < 2:
            return
        if not isinstance(result, Tensor) or not logits.is_floating_point():
            return
        classes = 1 if call.function in LOSSES else call.argument(1, "dim", -1)
        if not isinstance(classes, int) or logits.shape[classes] < 3:
            return
        if call.function in NORMALISED and classes not in (1, -1, logits.dim() - 1):
            return
        rows = logits.detach().movedim(classes, -1).reshape(-1, logits.shape[classes])
        rows = rows[:MOST_ROWS].float()
        if not rows.numel():
            return
        level, spread = rows.mean(1).mean(), rows.std(1).mean()
        self._found = (float(level), float(spread), float(rows.logsumexp(1).mean()))
        if not self._told:
            self._place = self.script.place()

    def backward_begins(self, roots: Any) -> None:
        found, self._found = self._found, None
        if found is None:
            return
        if not self._told:
            self._told = True
            self.evidence.record("output-logits", {"place": self._place})
        for name, value in zip(("logit_level", "logit_spread", "log_z"), found, strict=True):
            self.evidence.value(name, value)

    def step_ended(self, optimizer: Optimizer) -> None:
        self._found = None
