"""Four-bit grids: ggml's Q4_0 rule (what the model is trained on) and the amax / 7.5 rounding (what a careless second rounding does).

A run is 32 values along the input dimension. Q4_0: the value of largest magnitude gets the code -8, so about half of all scales are negative.
"""

from __future__ import annotations

import torch

GROUP = 32


def q4_0(weight: torch.Tensor) -> torch.Tensor:
    """bf16(fp16(d) * q) as float32, q in -8..7."""
    runs = weight.float().unflatten(-1, (-1, GROUP))
    peak = runs.gather(-1, runs.abs().argmax(-1, keepdim=True))
    d = peak / -8
    inverse = torch.where(d == 0, 0.0, 1.0 / d)
    q = torch.floor(runs * inverse + 8.5).clamp(0, 15) - 8
    return (d.half().float() * q).bfloat16().float().flatten(-2)


def amax_7_5(weight: torch.Tensor) -> torch.Tensor:
    """Scale max|w| / 7.5 in bf16, q = clamp(round(w / scale), -8, 7), value bf16(scale * q)."""
    runs = weight.float().unflatten(-1, (-1, GROUP))
    scale = (runs.abs().amax(-1, keepdim=True) / 7.5).bfloat16().float()
    q = torch.round(runs / torch.where(scale == 0, 1.0, scale)).clamp(-8, 7)
    return (scale * q).bfloat16().float().flatten(-2)

