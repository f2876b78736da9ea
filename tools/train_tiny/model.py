"""The tiny Gemma 4 and a lean forward pass for training.

The parameters live in transformers' own `Gemma4ForCausalLM`; `Lean` computes the same function (checked by `max_difference`) with less work:
tokens that all samples of a batch share pass through the own-KV layers once, and the KV-shared layers see only the positions whose
logits are wanted, since they write no K/V.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from train_tiny import fused
from train_tiny.tasks import Batch
from train_tiny.tokenizer import BOS, EOS, PAD, TURN_END, VOCAB_SIZE

LAYERS = 8
SHARED = 4
# One fixed factor per layer, none of them 1, all exact in bf16.
LAYER_SCALARS = [0.90625, 1.0625, 0.9375, 1.125, 0.875, 1.09375, 0.96875, 1.03125]
LONGEST = 256  # tokens of a training sample at most
SLIDING, FULL = "sliding_attention", "full_attention"
Weights = dict[str, torch.Tensor]


def text_config() -> Gemma4TextConfig:
    return Gemma4TextConfig(
        vocab_size=VOCAB_SIZE, vocab_size_per_layer_input=VOCAB_SIZE, hidden_size=64, intermediate_size=256,
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


def is_quantized(tensor: torch.Tensor) -> bool:
    """Every matrix of the text model lies on the grid: all linears and both tables; norms do not."""
    return tensor.dim() == 2


class Lean:
    """Functional forward over a dictionary of weights (plain or fake-quantised). Activations are rows: [samples * positions, width]."""

    def __init__(self, model: Gemma4ForCausalLM, dtype: torch.dtype) -> None:
        self.config = model.config
        self.dtype = dtype
        assert self.config.rms_norm_eps == fused.EPS
        self.types = self.config.layer_types
        self.first_shared = LAYERS - SHARED
        place = torch.arange(LONGEST)
        self.rope = {t: tuple(x[0] for x in model.model.rotary_emb(torch.zeros(1), place[None], t)) for t in (SLIDING, FULL)}
        causal = place[:, None] >= place[None, :]
        near = causal & (place[:, None] - place[None, :] < self.config.sliding_window)
        heads = self.config.num_attention_heads  # heads and positions are rows of one matrix, see _attend
        self.mask = {t: torch.where(m, 0.0, float("-inf")).repeat_interleave(heads, 0) for t, m in ((SLIDING, near), (FULL, causal))}

    def _attend(self, w: Weights, name: str, layer_type: str, x: torch.Tensor, at: slice, kv: tuple) -> torch.Tensor:
        """All heads share one K/V head, so a sample's scores are one product: [positions * heads, d] x [d, keys]."""
        samples, heads = kv[0].shape[0], self.config.num_attention_heads
        q = F.linear(x, w[f"{name}.q_proj.weight"]).view(samples, at.stop - at.start, heads, -1)
        q = fused.norm_rotate(q, w[f"{name}.q_norm.weight"], *(r[at] for r in self.rope[layer_type])).flatten(1, 2)
        mask = self.mask[layer_type][at.start * heads : at.stop * heads, : at.stop]
        scores = fused.masked_softmax(torch.bmm(q, kv[0].transpose(1, 2)), mask)
        return F.linear(torch.bmm(scores, kv[1]).view(len(x), -1), w[f"{name}.o_proj.weight"])

    def _keys_values(self, w: Weights, name: str, layer_type: str, x: torch.Tensor, at: slice, past: tuple | None) -> tuple:
        """[samples, keys, d] each; `past` belongs to the shared prefix and is repeated for every sample."""
        k, v = (F.linear(x, w[f"{name}.{p}_proj.weight"]) for p in "kv")
        k = k.view(-1, at.stop - at.start, 1, k.shape[-1])
        k = fused.norm_rotate(k, w[f"{name}.k_norm.weight"], *(r[at] for r in self.rope[layer_type])).squeeze(2)
        v = fused.norm_plain(v).view_as(k)
        if past is None:
            return k, v
        return tuple(torch.cat([old.expand(len(new), -1, -1), new], 1) for old, new in zip(past, (k, v)))

    def _layer(self, w: Weights, i: int, h: torch.Tensor, ple: torch.Tensor, at: slice, kv: dict, past: dict) -> torch.Tensor:
        n, t = f"layers.{i}", self.types[i]
        x = fused.norm(h, w[f"{n}.input_layernorm.weight"])
        if i < self.first_shared:
            kv[i] = kv[t] = self._keys_values(w, f"{n}.self_attn", t, x, at, past.get(i))
        h = fused.add_norm(h, self._attend(w, f"{n}.self_attn", t, x, at, kv[t]), w[f"{n}.post_attention_layernorm.weight"])
        x = fused.norm(h, w[f"{n}.pre_feedforward_layernorm.weight"])
        x = fused.gated(F.linear(x, w[f"{n}.mlp.gate_proj.weight"]), F.linear(x, w[f"{n}.mlp.up_proj.weight"]))
        h = fused.add_norm(h, F.linear(x, w[f"{n}.mlp.down_proj.weight"]), w[f"{n}.post_feedforward_layernorm.weight"])
        g = fused.gated(F.linear(h, w[f"{n}.per_layer_input_gate.weight"]), ple)
        h = fused.add_norm(h, F.linear(g, w[f"{n}.per_layer_projection.weight"]), w[f"{n}.post_per_layer_input_norm.weight"])
        return h * LAYER_SCALARS[i]

    def _per_layer(self, w: Weights, ids: torch.Tensor, e: torch.Tensor, layers: range) -> list[torch.Tensor]:
        p = self.config.hidden_size_per_layer_input
        rows = slice(layers.start * p, layers.stop * p)
        context = F.linear(e, w["per_layer_model_projection.weight"][rows]).unflatten(-1, (-1, p))
        token = F.embedding(ids.flatten(), w["embed_tokens_per_layer.weight"][:, rows]).unflatten(-1, (-1, p))
        mixed = fused.per_layer_mix(context, w["per_layer_projection_norm.weight"], token, self.config.hidden_size**-0.5)
        return [x.contiguous() for x in mixed.unbind(-2)]

    def _own(self, w: Weights, ids: torch.Tensor, at: slice, past: dict) -> tuple[torch.Tensor, torch.Tensor, dict]:
        """Embedding and the layers with K/V of their own."""
        e = (F.embedding(ids.flatten(), w["embed_tokens.weight"]) * self.config.hidden_size**0.5).to(self.dtype)
        ple = self._per_layer(w, ids, e, range(self.first_shared))
        h, kv = e, {}
        for i in range(self.first_shared):
            h = self._layer(w, i, h, ple[i], at, kv, past)
        return h, e, kv

    def cast(self, weights: Weights) -> Weights:
        """Matrices in the dtype of the products; tables and norms stay in float32 (a table's gradient sums thousands of rows)."""
        return {n: x.to(self.dtype) if x.dim() == 2 and "embed_tokens" not in n else x for n, x in weights.items()}

    def head(self, w: Weights, ids: torch.Tensor, prefix: int, start: int) -> torch.Tensor:
        """Logits before the soft cap, [samples * (length - start), vocabulary]."""
        samples, length = ids.shape
        past = self._own(w, ids[:1, :prefix], slice(0, prefix), {})[2] if prefix else {}
        h, e, kv = self._own(w, ids[:, prefix:], slice(prefix, length), past)
        h, e = (x.view(samples, length - prefix, -1)[:, start - prefix :].flatten(0, 1) for x in (h, e))
        ple = self._per_layer(w, ids[:, start:], e, range(self.first_shared, LAYERS))
        for i in range(self.first_shared, LAYERS):
            h = self._layer(w, i, h, ple[i - self.first_shared], slice(start, length), kv, {})
        return F.linear(fused.norm(h, w["norm.weight"]), w["embed_tokens.weight"].to(self.dtype))

    def logits(self, weights: Weights, batch: Batch) -> torch.Tensor:
        """[samples, length - start, vocabulary] in float32."""
        cap = self.config.final_logit_softcapping
        logits = self.head(weights, batch.ids, batch.prefix, batch.start).float()
        return (cap * torch.tanh(logits / cap)).view(len(batch.ids), -1, logits.shape[-1])

    def loss(self, w: Weights, ids: torch.Tensor, targets: torch.Tensor, prefix: int, start: int) -> torch.Tensor:
        return fused.capped_loss(self.head(w, ids, prefix, start), targets.flatten(), self.config.final_logit_softcapping)


@torch.no_grad()
def correct(lean: Lean, weights: Weights, batch: Batch) -> torch.Tensor:
    """Per sample: would greedy decoding give exactly the answer? True if every answer token is the likeliest after the right ones before it."""
    guess = lean.logits(weights, batch).argmax(-1)
    return ((guess == batch.targets) | (batch.targets < 0)).all(-1)


@torch.no_grad()
def max_difference(model: Gemma4ForCausalLM, batch: Batch) -> float:
    """Largest difference of logits between `Lean` in float32 and transformers' forward."""
    lean = Lean(model, torch.float32)
    ours = lean.logits(parameters(model), batch)
    theirs = model(input_ids=batch.ids, use_cache=False).logits[:, batch.start :]
    return (ours - theirs).abs().max().item()
