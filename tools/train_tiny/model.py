"""The tiny Gemma 4 and a lean forward pass for training.

The parameters live in transformers' own `Gemma4ForCausalLM`; `Lean` computes the same function (checked by `max_difference`) with less work:
tokens that all samples of a batch share pass through the own-KV layers once, and the KV-shared layers see only the positions whose
logits are wanted, since they write no K/V.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from train_tiny.tasks import Batch
from train_tiny.tokenizer import BOS, EOS, PAD, TURN_END, VOCAB_SIZE

LAYERS = 8
SHARED = 4
# One fixed factor per layer, none of them 1, all exact in bf16.
LAYER_SCALARS = [0.90625, 1.0625, 0.9375, 1.125, 0.875, 1.09375, 0.96875, 1.03125]
SLIDING, FULL = "sliding_attention", "full_attention"
Weights = dict[str, torch.Tensor]


def text_config() -> Gemma4TextConfig:
    return Gemma4TextConfig(
        vocab_size=VOCAB_SIZE, vocab_size_per_layer_input=VOCAB_SIZE, hidden_size=128, intermediate_size=384,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=1, head_dim=32, global_head_dim=64,
        hidden_size_per_layer_input=32, num_kv_shared_layers=SHARED, use_double_wide_mlp=True, sliding_window=16,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL] * 2, final_logit_softcapping=30.0, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
        rope_parameters={SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
                         FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}})


def new_model(seed: int) -> Gemma4ForCausalLM:
    """Initial weights: unit-size embeddings, attention scale d^-0.5 put into the q and k norms, damped branches."""
    torch.manual_seed(seed)
    config = text_config()
    config._attn_implementation = "eager"
    model = Gemma4ForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                p.fill_(p.shape[0] ** -0.25)
            elif ".post_" in name:
                p.fill_(0.5)
            elif "embed_tokens" in name:
                p.normal_(std=config.hidden_size ** -0.5 if "per_layer" not in name else config.hidden_size_per_layer_input ** -0.5)
            elif p.dim() == 2:
                p.normal_(std=p.shape[1] ** -0.5)
        for layer, value in zip(model.model.layers, LAYER_SCALARS):
            layer.layer_scalar.fill_(value)
    return model


def parameters(model: Gemma4ForCausalLM) -> Weights:
    """Name (without `model.`) to parameter; the tied head is left out."""
    return {n.removeprefix("model."): p for n, p in model.named_parameters() if n != "lm_head.weight"}


def is_quantized(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2


def rms(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Lean:
    """Functional forward over a dictionary of weights (plain or fake-quantised)."""

    def __init__(self, model: Gemma4ForCausalLM, dtype: torch.dtype) -> None:
        self.config = model.config
        self.dtype = dtype
        self.eps = self.config.rms_norm_eps
        self.scalars = LAYER_SCALARS
        self.types = self.config.layer_types
        self.first_shared = LAYERS - SHARED
        positions = torch.arange(512)[None]
        self.rope = {t: tuple(x[0] for x in model.model.rotary_emb(torch.zeros(1), positions, t)) for t in (SLIDING, FULL)}
        place = torch.arange(512)
        causal = place[:, None] >= place[None, :]
        near = causal & (place[:, None] - place[None, :] < self.config.sliding_window)
        self.mask = {t: torch.where(m, 0.0, float("-inf")) for t, m in ((SLIDING, near), (FULL, causal))}

    def _qkv(self, w: Weights, name: str, part: str, x: torch.Tensor, layer_type: str, at: slice) -> torch.Tensor:
        """One projection, normed and turned: [B, S, heads, d] for q, [B, S, 1, d] for k and v."""
        d = 32 if layer_type == SLIDING else 64
        y = F.linear(x, w[f"{name}.{part}_proj.weight"]).unflatten(-1, (-1, d))
        if part == "v":
            return rms(y, None, self.eps)
        cos, sin = (r[at, None].to(self.dtype) for r in self.rope[layer_type])
        return rotate(rms(y, w[f"{name}.{part}_norm.weight"], self.eps), cos, sin)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """All heads share one K/V head, so heads and positions are rows of one matrix: [B, S * heads, d]."""
        b, s, heads, d = q.shape
        scores = torch.bmm(q.reshape(b, s * heads, d), k.squeeze(2).transpose(1, 2)).float()
        scores = scores + mask.repeat_interleave(heads, dim=0)
        return torch.bmm(scores.softmax(-1).to(self.dtype), v.squeeze(2)).reshape(b, s, heads * d)

    def _layer(self, w: Weights, i: int, h: torch.Tensor, ple: torch.Tensor, at: slice, kv: dict, past: dict) -> torch.Tensor:
        n, t = f"layers.{i}", self.types[i]
        x = rms(h, w[f"{n}.input_layernorm.weight"], self.eps)
        q = self._qkv(w, f"{n}.self_attn", "q", x, t, at)
        if i < self.first_shared:
            k, v = (self._qkv(w, f"{n}.self_attn", p, x, t, at) for p in "kv")
            if i in past:
                k, v = (torch.cat([old.expand(len(new), -1, -1, -1), new], 1) for old, new in zip(past[i], (k, v)))
            kv[i] = kv[t] = (k, v)
        k, v = kv[t]
        a = F.linear(self._attend(q, k, v, self.mask[t][at, : k.shape[1]]), w[f"{n}.self_attn.o_proj.weight"])
        h = h + rms(a, w[f"{n}.post_attention_layernorm.weight"], self.eps)
        x = rms(h, w[f"{n}.pre_feedforward_layernorm.weight"], self.eps)
        x = F.gelu(F.linear(x, w[f"{n}.mlp.gate_proj.weight"]), approximate="tanh") * F.linear(x, w[f"{n}.mlp.up_proj.weight"])
        h = h + rms(F.linear(x, w[f"{n}.mlp.down_proj.weight"]), w[f"{n}.post_feedforward_layernorm.weight"], self.eps)
        g = F.gelu(F.linear(h, w[f"{n}.per_layer_input_gate.weight"]), approximate="tanh") * ple
        h = h + rms(F.linear(g, w[f"{n}.per_layer_projection.weight"]), w[f"{n}.post_per_layer_input_norm.weight"], self.eps)
        return h * self.scalars[i]

    def _per_layer(self, w: Weights, ids: torch.Tensor, e: torch.Tensor, layers: range) -> list[torch.Tensor]:
        p = self.config.hidden_size_per_layer_input
        rows = slice(layers.start * p, layers.stop * p)
        context = F.linear(e, w["per_layer_model_projection.weight"][rows]) * self.config.hidden_size**-0.5
        context = rms(context.unflatten(-1, (-1, p)), w["per_layer_projection_norm.weight"], self.eps)
        token = (F.embedding(ids, w["embed_tokens_per_layer.weight"][:, rows]) * p**0.5).unflatten(-1, (-1, p)).to(self.dtype)
        return list(((context + token) * 2**-0.5).unbind(-2))

    def _own(self, w: Weights, ids: torch.Tensor, at: slice, past: dict) -> tuple[torch.Tensor, torch.Tensor, dict]:
        e = (F.embedding(ids, w["embed_tokens.weight"]) * self.config.hidden_size**0.5).to(self.dtype)
        ple = self._per_layer(w, ids, e, range(self.first_shared))
        h, kv = e, {}
        for i in range(self.first_shared):
            h = self._layer(w, i, h, ple[i], at, kv, past)
        return h, e, kv

    def logits(self, weights: Weights, ids: torch.Tensor, prefix: int, start: int) -> torch.Tensor:
        """[B, length - start, vocabulary] in float32."""
        w = {n: x.to(self.dtype) if x.dim() == 2 and "embed_tokens" not in n else x for n, x in weights.items()}
        length = ids.shape[1]
        past = self._own(w, ids[:1, :prefix], slice(0, prefix), {})[2] if prefix else {}
        h, e, kv = self._own(w, ids[:, prefix:], slice(prefix, length), past)
        h, e = h[:, start - prefix :], e[:, start - prefix :]
        ple = self._per_layer(w, ids[:, start:], e, range(self.first_shared, LAYERS))
        for i in range(self.first_shared, LAYERS):
            h = self._layer(w, i, h, ple[i - self.first_shared], slice(start, length), kv, {})
        h = rms(h, w["norm.weight"], self.eps)
        cap = self.config.final_logit_softcapping
        return cap * torch.tanh(F.linear(h, w["embed_tokens.weight"].to(self.dtype)).float() / cap)

    def loss(self, weights: Weights, ids: torch.Tensor, targets: torch.Tensor, prefix: int, start: int) -> torch.Tensor:
        return F.cross_entropy(self.logits(weights, ids, prefix, start).flatten(0, 1), targets.flatten(), ignore_index=-100)


@torch.no_grad()
def correct(lean: Lean, weights: Weights, batch: Batch) -> torch.Tensor:
    """Per sample: would greedy decoding give exactly the answer? True if every answer token is the likeliest after the right ones before it."""
    guess = lean.logits(weights, batch.ids, batch.prefix, batch.start).argmax(-1)
    return ((guess == batch.targets) | (batch.targets < 0)).all(-1)


@torch.no_grad()
def max_difference(model: Gemma4ForCausalLM, batch: Batch) -> float:
    """Largest difference of logits between `Lean` in float32 and transformers' forward."""
    lean = Lean(model, torch.float32)
    ours = lean.logits(parameters(model), batch.ids, batch.prefix, batch.start)
    theirs = model(input_ids=batch.ids, use_cache=False).logits[:, batch.start :]
    return (ours - theirs).abs().max().item()
