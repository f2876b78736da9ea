"""The element-wise parts of the model between its matrix products, each one compiled into few loops.

Compiling the whole model would make hundreds of kernels per batch shape and take minutes; these few functions are compiled once for any
number of rows, and torch's bf16 matrix products (AMX where the CPU has it) do the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

torch._dynamo.config.recompile_limit = 64
torch._dynamo.config.accumulated_recompile_limit = 1024
EPS = 1e-6


def compiled(dynamic_dims: dict[int, tuple[int, ...]]) -> Callable:
    """Compile with the named dimensions of the named arguments free and all others fixed."""
    def wrap(function: Callable) -> Callable:
        fast = torch.compile(function, dynamic=False)

        def call(*args: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_compiling():  # already inside a larger compiled function
                return function(*args)
            for position, dims in dynamic_dims.items():
                for dim in dims:
                    if args[position].shape[dim] > 1:
                        torch._dynamo.mark_dynamic(args[position], dim)
            return fast(*args)

        return call
    return wrap


def rms(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)
    return (y if weight is None else y * weight).to(x.dtype)


@compiled({0: (0,)})
def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[rows, n]"""
    return rms(x, weight)


@compiled({0: (0,)})
def norm_plain(x: torch.Tensor) -> torch.Tensor:
    return rms(x, None)


@compiled({0: (0,), 1: (0,)})
def add_norm(h: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """h + rmsnorm(x), the end of every branch. [rows, n]"""
    return h + rms(x, weight)


@compiled({0: (0,), 1: (0,)})
def gated(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.gelu(gate.float(), approximate="tanh").to(value.dtype) * value


@compiled({0: (0, 1), 2: (0,), 3: (0,)})
def norm_rotate(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """rmsnorm, then RoPE. x: [B, S, heads, d]; cos, sin: [S, d]"""
    y = rms(x, weight).float()
    a, b = y.chunk(2, dim=-1)
    return (y * cos[:, None] + torch.cat((-b, a), dim=-1) * sin[:, None]).to(x.dtype)


@compiled({0: (0, 1, 2), 1: (0, 1)})
def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (scores.float() + mask).softmax(-1).to(scores.dtype)


@compiled({0: (0,), 2: (0,)})
def per_layer_mix(context: torch.Tensor, weight: torch.Tensor, token: torch.Tensor, scale: float) -> torch.Tensor:
    """[rows, layers, p]: the projection of the embedding and the token's own row."""
    return (rms(context * scale, weight) + (token * token.shape[-1] ** 0.5).to(context.dtype)) * 2**-0.5


@compiled({0: (0,), 1: (0,)})
def capped_loss(logits: torch.Tensor, targets: torch.Tensor, cap: float) -> torch.Tensor:
    """Mean cross entropy over the positions whose target is not -100, logits soft-capped."""
    return F.cross_entropy(cap * torch.tanh(logits.float() / cap), targets, ignore_index=-100)
