"""Tiny random checkpoints of the whole family in Google's layout, every matrix on a 4-bit grid: what the repack tests start from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Gemma4Config, Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4TextConfig, Gemma4UnifiedForConditionalGeneration
from transformers.models.gemma4.configuration_gemma4 import Gemma4AudioConfig, Gemma4VisionConfig
from transformers.models.gemma4_unified.configuration_gemma4_unified import (
    Gemma4UnifiedAudioConfig, Gemma4UnifiedConfig, Gemma4UnifiedTextConfig, Gemma4UnifiedVisionConfig)

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


# Members of the family as toys: their kinds of layers, architecture and towers.
K_EQ_V = dict(num_hidden_layers=3, layer_types=["sliding_attention", "sliding_attention", "full_attention"], attention_k_eq_v=True,
              num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, hidden_size_per_layer_input=0,
              num_kv_shared_layers=0, use_double_wide_mlp=False)
FAMILY: dict[str, dict[str, object]] = {
    "e2b": {}, "12b": K_EQ_V, "31b": K_EQ_V,
    "26b": K_EQ_V | dict(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32),
}


def _family_config(member: str, text: dict[str, object]) -> tuple[Gemma4Config | Gemma4UnifiedConfig, type]:
    vision = Gemma4VisionConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                                head_dim=32, position_embedding_size=128)
    audio = Gemma4AudioConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, subsampling_conv_channels=[128, 4], output_proj_dims=64)
    if member != "12b":
        config = Gemma4Config(text_config=Gemma4TextConfig(**text), vision_config=vision, audio_config=audio if member == "e2b" else None)
        return config, Gemma4ForConditionalGeneration
    unified_vision = Gemma4UnifiedVisionConfig(mm_embed_dim=64, mm_posemb_size=128, output_proj_dims=64)
    return Gemma4UnifiedConfig(text_config=Gemma4UnifiedTextConfig(**text), vision_config=unified_vision,
                               audio_config=Gemma4UnifiedAudioConfig(audio_embed_dim=640)), Gemma4UnifiedForConditionalGeneration


def published(name: str) -> str:
    """transformers 5.23 builds the unified vision embedder inside embed_vision and renames on loading; files have the older names."""
    if name.startswith("model.embed_vision.multimodal_embedder."):
        return name.replace("multimodal_embedder.", "")
    parts = ("patch_dense", "patch_ln1", "patch_ln2", "pos_embedding", "pos_norm")
    return name.replace("embed_vision", "vision_embedder") if name.split(".")[2] in parts else name


def make_member(member: str, behind: torch.dtype = torch.float16, seed: int = 0, **changes: object) -> Checkpoint:
    """A toy with the names of the member's every tensor, towers included, as published files spell them; `changes` are of the text model."""
    generator = torch.Generator().manual_seed(seed)
    config, kind = _family_config(member, text_config(**(FAMILY[member] | changes)).to_dict() | {"model_type": None})
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = True
    with torch.device("meta"):
        model = kind(config)
    tensors: Tensors = {}
    for name, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        is_text = name.startswith("model.language_model.")
        if name == "lm_head.weight":
            continue
        if is_text and len(shape) >= 2 and ".router." not in name:
            tensors[name] = on_grid(shape, behind, generator)
        else:
            tensors[published(name)] = (torch.rand(shape, generator=generator) + 0.5).bfloat16()
    json_config = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [kind.__name__], "eos_token_id": [1, 106]}
    return Checkpoint(config=json_config, tensors=tensors)
