"""Writes a checkpoint directory as transformers would: `Gemma4ForConditionalGeneration`, two or more shards, configs.

The towers are random and tiny: nothing uses them, they are there because the real checkpoints have them and a text-only repacker drops them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import Gemma4AudioConfig, Gemma4Config, Gemma4ForConditionalGeneration, Gemma4VisionConfig

from train_tiny.model import LAYER_SCALARS, Weights, is_quantized, text_config
from train_tiny.tokenizer import EOS, TOOL_RESPONSE, TURN_END, media_id

SHARD_SIZE = "1MB"
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


def full_config() -> Gemma4Config:
    vision = Gemma4VisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                                head_dim=16, patch_size=16, position_embedding_size=64, pooling_kernel_size=3, use_clipped_linears=True)
    audio = Gemma4AudioConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, subsampling_conv_channels=[8, 4],
                              output_proj_dims=48)
    config = Gemma4Config(
        text_config=text_config(), vision_config=vision, audio_config=audio, tie_word_embeddings=True,
        boi_token_id=media_id("<|image>"), eoi_token_id=media_id("<image|>"), image_token_id=media_id("<|image|>"),
        video_token_id=media_id("<|video|>"), boa_token_id=media_id("<|audio>"), eoa_token_index=media_id("<audio|>"),
        audio_token_id=media_id("<|audio|>"))
    config.eos_token_id = [EOS, TURN_END]
    return config


def config_json(written: dict) -> dict:
    """The public configs' spelling of per-layer sizes, instead of transformers' expanded `per_layer_config`."""
    text = written["text_config"]
    full_layer = text["layer_types"].index("full_attention")
    overrides = text.pop("per_layer_config", {})
    sizes = overrides.get(str(full_layer)) or overrides.get(full_layer) or {"head_dim": 64}
    text["global_head_dim"] = sizes["head_dim"]
    text["num_global_key_value_heads"] = None
    written.update({"eos_token_id": [EOS, TURN_END], "eoa_token_id": written["eoa_token_index"], "vision_soft_tokens_per_image": 280})
    return written


def generation_config() -> dict:
    return {"bos_token_id": 2, "do_sample": True, "eos_token_id": [EOS, TURN_END, TOOL_RESPONSE], "pad_token_id": 0,
            "temperature": 1.0, "top_k": 64, "top_p": 0.95}


def assemble(weights: Weights, on_matrix: Callable[[torch.Tensor], torch.Tensor]) -> Gemma4ForConditionalGeneration:
    """The whole model in bf16; `on_matrix` is what happens to every matrix of the text model (a grid, or nothing)."""
    torch.manual_seed(1)
    model = Gemma4ForConditionalGeneration(full_config())
    target = dict(model.model.language_model.named_parameters())
    assert set(target) == set(weights)
    with torch.no_grad():
        for name, p in target.items():
            p.copy_(on_matrix(weights[name].detach()) if is_quantized(p) else weights[name])
        for layer, value in zip(model.model.language_model.layers, LAYER_SCALARS):
            layer.layer_scalar.fill_(value)
        for name, buffer in model.named_buffers():  # clip ranges of the towers: real checkpoints hold finite ones
            if name.endswith(("input_min", "output_min")):
                buffer.fill_(-8.0)
            elif name.endswith(("input_max", "output_max")):
                buffer.fill_(8.0)
    return model.to(torch.bfloat16)


def write(weights: Weights, on_matrix: Callable[[torch.Tensor], torch.Tensor], out: Path, tokenizer_dir: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("model*.safetensors*"):
        old.unlink()
    model = assemble(weights, on_matrix)
    model.save_pretrained(out, max_shard_size=SHARD_SIZE)
    for shard in out.glob("model*.safetensors"):
        shard.chmod(0o644)
    path = out / "config.json"
    path.write_text(json.dumps(config_json(json.loads(path.read_text())), indent=2, sort_keys=True) + "\n")
    (out / "generation_config.json").write_text(json.dumps(generation_config(), indent=2) + "\n")
    if out.resolve() != tokenizer_dir.resolve():
        for name in TOKENIZER_FILES:
            shutil.copy(tokenizer_dir / name, out / name)
