"""Tiny random E-type checkpoints in Google's layout, every matrix on a 4-bit grid: what the repack tests start from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

GROUP = 32
Tensors = dict[str, torch.Tensor]


def on_grid(shape: tuple[int, ...], behind: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """bf16(d * q): q uniform in -8..7, d of either sign, rounded to `behind`."""
    runs = (*shape[:-1], shape[-1] // GROUP, GROUP)
    codes = torch.randint(-8, 8, runs, generator=generator).float()
    d = torch.rand((*runs[:-1], 1), generator=generator) * 0.01 + 0.002
    sign = torch.randint(0, 2, d.shape, generator=generator) * 2 - 1
    return ((d * sign).to(behind).float() * codes).bfloat16().reshape(shape)


def text_config(**changes: object) -> Gemma4TextConfig:
    """Two own-KV layers, two shared ones that are double wide, PLE, sliding and full attention with different head dims."""
    facts: dict[str, object] = dict(
        vocab_size=128, vocab_size_per_layer_input=128, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, global_head_dim=64, hidden_size_per_layer_input=32,
        num_kv_shared_layers=2, use_double_wide_mlp=True, sliding_window=16, final_logit_softcapping=30.0, max_position_embeddings=512,
        layer_types=["sliding_attention", "full_attention"] * 2, tie_word_embeddings=True, bos_token_id=2, eos_token_id=1, pad_token_id=0)
    return Gemma4TextConfig(**(facts | changes))


@dataclass
class Checkpoint:
    """A checkpoint in memory; tests change it before they write it."""

    config: dict[str, object]
    tensors: Tensors
    files: dict[str, str] = field(default_factory=lambda: {"tokenizer.json": "{}", "chat_template.jinja": "x", "preprocessor_config.json": "{}"})

    def write(self, path: Path, shards: int = 2) -> Path:
        path.mkdir(parents=True)
        names = sorted(self.tensors)
        parts = [names[i::shards] for i in range(shards)]
        weight_map = {}
        for i, part in enumerate(parts):
            shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            save_file({n: self.tensors[n].contiguous() for n in part}, path / shard, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, shard)
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        (path / "config.json").write_text(json.dumps(self.config))
        for name, content in self.files.items():
            (path / name).write_text(content)
        return path


def make(behind: torch.dtype = torch.float16, seed: int = 0, leftovers: bool = False, **changes: object) -> Checkpoint:
    """The multimodal form with two small towers; `leftovers`: with K/V of the KV-shared layers, as older exports have."""
    generator = torch.Generator().manual_seed(seed)
    config = text_config(**changes)
    with torch.device("meta"):
        shapes = {n: tuple(t.shape) for n, t in Gemma4ForCausalLM(config).state_dict().items() if n != "lm_head.weight"}
    tensors: Tensors = {}
    for name, shape in shapes.items():
        grid = len(shape) == 2 and shape[-1] % GROUP == 0
        tensors[name.replace("model.", "model.language_model.", 1)] = (
            on_grid(shape, behind, generator) if grid else torch.rand(shape, generator=generator).bfloat16())
    if leftovers:
        for name in [n for n in tensors if ".layers.1.self_attn." in n and n.split(".")[-2] in ("k_proj", "v_proj", "k_norm")]:
            tensors[name.replace(".layers.1.", ".layers.3.")] = tensors[name].clone()
    for tower in ("vision_tower.encoder.layers.0.mlp.gate_proj.linear", "audio_tower.layers.0.self_attn.k_proj.linear",
                  "embed_vision.embedding_projection", "embed_audio.embedding_projection"):
        tensors[f"model.{tower}.weight"] = torch.rand((32, 32), generator=generator).bfloat16()
    return Checkpoint(
        config={"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "dtype": "bfloat16",
                "text_config": config.to_dict(), "vision_config": {"model_type": "gemma4_vision"}, "audio_config": {"model_type": "gemma4_audio"},
                "eos_token_id": [1, 106], "image_token_id": 100, "tie_word_embeddings": config.tie_word_embeddings},
        tensors=tensors)
