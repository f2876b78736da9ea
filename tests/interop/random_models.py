"""Random tiny Gemma 4 models of every kind, the layouts that checkpoints come in, and the oracle.

Weights are bf16 values whose sizes keep activations near 1 and logits spread over several units, so that a wrong scale,
norm, mask or rotation moves log-probabilities by far more than any tolerance.
"""

from __future__ import annotations

import contextlib
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from safetensors.torch import load_file, save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm, Gemma4TextScaledWordEmbedding

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW = 16
VOCAB = 320
COMMON = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
              global_head_dim=64, sliding_window=WINDOW, max_position_embeddings=2048, tie_word_embeddings=True,
              bos_token_id=2, eos_token_id=1, pad_token_id=0)
KINDS: dict[str, dict] = {
    # E2B, E4B: per-layer embeddings, KV-shared layers with a double-wide MLP, softcap.
    "e": dict(layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL, SLIDING, SLIDING, FULL], num_kv_shared_layers=3, use_double_wide_mlp=True,
              hidden_size_per_layer_input=32, vocab_size_per_layer_input=VOCAB, final_logit_softcapping=30.0),
    # 12B, 31B: V = K on full layers, which have fewer KV heads; no softcap, to run that path too.
    "k_eq_v": dict(layer_types=[SLIDING, SLIDING, FULL] * 2, attention_k_eq_v=True, num_global_key_value_heads=1,
                   hidden_size_per_layer_input=0),
    # 26B-A4B: the same with experts beside the dense MLP.
    "moe": dict(layer_types=[SLIDING, SLIDING, FULL], attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=0,
                enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32, final_logit_softcapping=30.0),
}


def _fill(name: str, p: torch.Tensor) -> None:
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        p.uniform_(0.5, 1.5).mul_(p.shape[0] ** -0.25)  # the attention scale is 1
    elif name == "model.norm.weight":
        # Spreads the logits; random signs keep a tied head from repeating the last token.
        p.uniform_(2, 4).mul_(torch.randint(0, 2, p.shape) * 2 - 1)
    elif name.endswith("router.proj.weight"):
        p.normal_()  # its input is scaled by H^-0.5
    elif p.dim() == 1:
        p.uniform_(0.5, 1.5)
    else:
        p.normal_(std=p.shape[-1] ** -0.5)


def build(kind: str, path: Path, seed: int = 0) -> None:
    """Writes a text-only bf16 checkpoint of this kind."""
    torch.manual_seed(seed)
    model = Gemma4ForCausalLM(Gemma4TextConfig(num_hidden_layers=len(KINDS[kind]["layer_types"]), **COMMON, **KINDS[kind]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter)
        for layer in model.model.layers:
            layer.layer_scalar.uniform_(0.8, 1.2)
    model.to(torch.bfloat16).save_pretrained(path)


def write(path: Path, config: dict, tensors: dict[str, torch.Tensor]) -> None:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"})


def read(path: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    return json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")


def as_multimodal(source: Path, path: Path) -> None:
    """The same model as Google publishes it: nested config, other names, a tower, K/V of KV-shared layers left in."""
    config, tensors = read(source)
    nested = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": config, "tie_word_embeddings": True}
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    renamed["model.vision_tower.patch_embedder.input_proj.weight"] = torch.zeros(4, 4, dtype=torch.bfloat16)
    first_shared = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    for layer in range(first_shared, config["num_hidden_layers"]):
        for module in ("k_proj", "v_proj", "k_norm"):
            renamed[f"model.language_model.layers.{layer}.self_attn.{module}.weight"] = torch.full((3,), float("nan"), dtype=torch.bfloat16)
    write(path, nested, renamed)


def as_packed(source: Path, path: Path, scale_dtype: torch.dtype, with_tables: bool) -> None:
    """The same model in compressed-tensors' int4 layout, made with its own packing."""
    config, tensors = read(source)
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or "router" in name or ("embed_tokens" in name and not with_tables):
            packed[name] = tensor
            continue
        groups = tensor.float().unflatten(-1, (-1, 32))
        scale = (groups.abs().amax(-1) / -8).to(scale_dtype)  # negative, as about half of a real checkpoint's are
        codes = (groups / scale.float()[..., None]).round().clamp(-8, 7)
        module = name.removesuffix(".weight")
        for target in [module, "lm_head"] if module == "model.embed_tokens" else [module]:
            packed[f"{target}.weight_packed"] = pack_to_int32(codes.flatten(1).to(torch.int8), 4)
            packed[f"{target}.weight_scale"] = scale
            packed[f"{target}.weight_shape"] = torch.tensor(tensor.shape)
    write(path, config | {"tie_word_embeddings": not with_tables}, packed)


def as_qat(source: Path, path: Path) -> None:
    """The same model with every matrix that QAT quantises moved onto a 4-bit grid: bf16(code * fp16 scale)."""
    config, tensors = read(source)
    for name, tensor in tensors.items():
        if tensor.dim() >= 2 and "router" not in name:
            groups = tensor.float().unflatten(-1, (-1, 32))
            scale = (groups.abs().amax(-1, keepdim=True) / -8).half().float()
            tensors[name] = ((groups / scale).round().clamp(-8, 7) * scale).flatten(-2).bfloat16()
    write(path, config, tensors)


def int8_modules(path: Path) -> set[str]:
    """Modules stored as int8 per channel, in text-only spelling."""
    names = set()
    for shard in path.glob("*.safetensors"):
        names |= {name.replace("model.language_model.", "model.", 1) for name, tensor in load_file(shard).items() if tensor.dtype == torch.int8}
    return {name.removesuffix(".weight") for name in names}


def _join_experts(values: dict[str, torch.Tensor]) -> None:
    """Linears per expert back into the banks that transformers computes with."""
    experts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for name in list(values):
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+_proj)\.weight", name):
            experts.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = values.pop(name)
    for module, parts in experts.items():
        in_order = [parts[i] for i in range(len(parts))]
        values[f"{module}.gate_up_proj"] = torch.stack([torch.cat([p["gate_proj"], p["up_proj"]]) for p in in_order])
        values[f"{module}.down_proj"] = torch.stack([p["down_proj"] for p in in_order])


def read_values(path: Path) -> dict[str, torch.Tensor]:
    """The text model's weights in float32 by their text-only names; packed ones as code x scale, not rounded."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(path.glob("*.safetensors")):
        tensors |= {name.replace("model.language_model.", "model.", 1): tensor for name, tensor in load_file(shard).items()}
    other = re.compile(r"\.weight_(packed|scale|shape)$|_tower\.|\.vision_embedder|\.embed_(vision|audio)")
    values = {name: tensor.float() for name, tensor in tensors.items() if not other.search(name)}
    for name, words in tensors.items():
        if words.dtype == torch.int8:
            values[name] = words.float() * tensors[f"{name}_scale"].float()
        if name.endswith("_packed"):
            scale = tensors[name.replace("_packed", "_scale")].float()
            codes = unpack_from_int32(words, 4, torch.Size(tensors[name.replace("_packed", "_shape")].tolist()))
            values[name.removesuffix("_packed")] = (codes.float().unflatten(-1, (-1, 32)) * scale[..., None]).flatten(1)
    _join_experts(values)
    return values


def load_oracle(path: Path, dtype: torch.dtype) -> Gemma4ForCausalLM:
    """transformers on the checkpoint's values, built and run without bf16, but for the embedding scales, rounded as in a bf16 run."""
    config = json.loads((path / "config.json").read_text())
    text_config = Gemma4TextConfig.from_dict(config.get("text_config", config))
    text_config._attn_implementation = text_config._experts_implementation = "eager"
    model = Gemma4ForCausalLM(text_config).eval()
    model.int8_modules = int8_modules(path)
    missing, unexpected = model.load_state_dict(read_values(path), strict=False)
    assert set(missing) <= {"lm_head.weight"}  # tied
    assert all(re.search(r"\.(k_proj|v_proj|k_norm)\.", name) for name in unexpected)  # of KV-shared layers
    for module in model.modules():
        if isinstance(module, Gemma4TextScaledWordEmbedding):
            module.embed_scale = module.embed_scale.to(torch.bfloat16).float()
    return model if dtype == torch.float32 else _to_double(model)


def _to_double(model: Gemma4ForCausalLM) -> Gemma4ForCausalLM:
    """All arithmetic in float64, but RoPE's angles, whose float32 rounding is part of the model."""
    frequencies = {name: buffer.clone() for name, buffer in model.named_buffers() if "inv_freq" in name}
    model.double()
    for name, buffer in frequencies.items():
        module, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module), attribute, buffer)
    for module in model.modules():
        if isinstance(module, Gemma4RMSNorm):  # casts to float32
            module.forward = types.MethodType(lambda self, x: self._norm(x) * (self.weight if self.with_scale else 1), module)
    return model


@contextlib.contextmanager
def softmax_without_cast() -> Iterator[None]:
    softmax = torch.nn.functional.softmax
    with mock.patch.object(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim)):
        yield


@contextlib.contextmanager
def int8_inputs(model: Gemma4ForCausalLM) -> Iterator[None]:
    """What the reader of int8 weights does with a matrix's inputs: rounds each token's to 127 steps of its largest."""
    linear = torch.nn.functional.linear
    stored = {f"{name}.weight" for name in model.int8_modules}
    stored |= {re.sub(r"\.\d+\.(gate|up)_proj$", ".gate_up_proj", re.sub(r"\.\d+\.down_proj$", ".down_proj", n)) for n in model.int8_modules if ".experts." in n}
    storages = {p.untyped_storage().data_ptr() for name, p in model.named_parameters() if name in stored}

    def quantised(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if weight.untyped_storage().data_ptr() in storages:
            scale = x.abs().amax(-1, keepdim=True) / 127
            x = (x / torch.where(scale > 0, scale, 1)).round() * scale
        return linear(x, weight, bias)

    with mock.patch.object(torch.nn.functional, "linear", quantised):
        yield


@torch.no_grad()
def logprobs(model: Gemma4ForCausalLM, ids: list[int]) -> torch.Tensor:
    """[len(ids), V]: of the token after each of ids, in float64."""
    double = next(model.parameters()).dtype == torch.float64
    with softmax_without_cast() if double else contextlib.nullcontext(), int8_inputs(model):
        logits = model(torch.tensor([ids])).logits[0].double()
    return logits.log_softmax(-1)
