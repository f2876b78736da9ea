"""What `nibble repack` writes, read back with compressed-tensors and safetensors, which know nothing of nibble."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.utils.match import match_name
from conftest import Run
from safetensors.torch import load_file
from synthetic import Checkpoint, Tensors, make
from transformers import AutoConfig, Gemma4ForCausalLM

INT4 = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32))


def load(directory: Path) -> Tensors:
    tensors: Tensors = {}
    for shard in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(shard)
    return tensors


def decompress(tensors: Tensors, module: str) -> torch.Tensor:
    """The bf16 values of the reader's rule: compressed-tensors in float32, rounded once."""
    state = {k: tensors[f"{module}.{k}"] for k in ("weight_packed", "weight_scale", "weight_shape")}
    state["weight_scale"] = state["weight_scale"].float()
    return PackedQuantizationCompressor.decompress(state, INT4)["weight"].bfloat16()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.int16), b.view(torch.int16))


def repack(nibble: Run, tmp_path: Path, checkpoint: Checkpoint, *options: str) -> Path:
    source, out = checkpoint.write(tmp_path / "source"), tmp_path / "out"
    done = nibble("repack", source, out, *options)
    assert done.returncode == 0, done.stderr
    proof = nibble("verify", source, out)
    assert proof.returncode == 0, proof.stdout + proof.stderr
    return out


@pytest.mark.parametrize(("form", "scale"), [("q4w4a16", "fp16"), ("q4w4a16emb4", "fp16"), ("q4w4a16", "bf16"), ("q4w4a16emb4", "bf16")])
@pytest.mark.parametrize("towers", [False, True])
def test_every_packed_tensor_decompresses_to_the_source(nibble: Run, tmp_path: Path, form: str, scale: str, towers: bool) -> None:
    checkpoint = make(torch.float16 if scale == "fp16" else torch.bfloat16)
    flags = ["--keep-towers"] if towers else []
    written = load(repack(nibble, tmp_path, checkpoint, "--format", form, "--scale-dtype", scale, *flags))
    prefix = "model.language_model." if towers else "model."
    for name, expected in checkpoint.tensors.items():
        is_tower = not name.startswith("model.language_model.")
        target = name.replace("model.language_model.", prefix)
        if is_tower and not towers:
            assert target not in written
        elif f"{target.removesuffix('.weight')}.weight_packed" in written:
            assert not is_tower and len(expected.shape) == 2
            assert same_bits(decompress(written, target.removesuffix(".weight")), expected), name
        else:
            assert same_bits(written[target], expected), name
            assert is_tower or len(expected.shape) < 2 or (form == "q4w4a16" and "embed_tokens" in name), f"{name} should be packed"
    if form == "q4w4a16emb4":
        for part in ("weight_packed", "weight_scale", "weight_shape"):
            assert torch.equal(written[f"lm_head.{part}"], written[f"{prefix}embed_tokens.{part}"])
    else:
        assert not [n for n in written if n.startswith("lm_head")]


def test_codes_in_order_lowest_nibble_first(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    name = "model.language_model.layers.0.mlp.gate_proj.weight"
    rows = (torch.arange(64) % 8 - 8).float() * 0.5  # codes -8 .. -1 over and over
    checkpoint.tensors[name] = rows.bfloat16().repeat(96, 1)
    written = load(repack(nibble, tmp_path, checkpoint, "--format", "q4w4a16"))
    module = "model.layers.0.mlp.gate_proj"
    assert (written[f"{module}.weight_packed"] == 0x76543210).all()
    assert written[f"{module}.weight_shape"].tolist() == [96, 64]
    assert (written[f"{module}.weight_scale"] == 0.5).all()


def test_positive_extreme_is_not_clipped(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    checkpoint.tensors[name][0, :32] = 0.0625
    checkpoint.tensors[name][0, 5] = 0.5
    written = load(repack(nibble, tmp_path, checkpoint, "--format", "q4w4a16"))
    assert decompress(written, "model.layers.0.mlp.up_proj")[0, 5] == 0.5
    assert written["model.layers.0.mlp.up_proj.weight_scale"][0, 0] == -0.0625


def test_zeros_of_either_sign(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    checkpoint.tensors[name][0] = 0.0
    checkpoint.tensors[name][1] = -0.0
    written = load(repack(nibble, tmp_path, checkpoint, "--format", "q4w4a16"))
    assert same_bits(decompress(written, "model.layers.0.mlp.up_proj"), checkpoint.tensors[name])
    assert written["model.layers.0.mlp.up_proj.weight_scale"][:2].isfinite().all()


@pytest.mark.parametrize("towers", [False, True])
@pytest.mark.parametrize("form", ["q4w4a16", "q4w4a16emb4"])
def test_ignore_covers_every_plain_linear_and_no_packed_one(nibble: Run, tmp_path: Path, form: str, towers: bool) -> None:
    """Under Hugging Face's names and vLLM's; one MLP is 48 wide, so its down_proj cannot be packed."""
    out = repack(nibble, tmp_path, make(intermediate_size=48, use_double_wide_mlp=False), "--format", form, *(["--keep-towers"] if towers else []))
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    QuantizationConfig.model_validate(config)
    targets = config["config_groups"]["group_0"]["targets"]
    plain = 0
    for name, tensor in load(out).items():
        module, _, kind = name.rpartition(".")
        if tensor.dim() != 2 or kind not in ("weight", "weight_packed"):
            continue
        vllm = module.replace("model.language_model.", "language_model.model.") if "language_model" in module else module.removeprefix("model.") if towers else module
        for spelling in {module, vllm}:
            ignored = any(match_name(spelling, rule) for rule in config["ignore"])
            table = any(match_name(spelling, rule) for rule in targets)
            is_table = module.endswith(("embed_tokens", "embed_tokens_per_layer")) or module == "lm_head"
            if kind == "weight_packed":
                assert not ignored and table == is_table, spelling
            elif not is_table:
                assert ignored and not table, spelling
                plain += 1
    assert plain >= 4


def test_transformers_reads_the_config(nibble: Run, tmp_path: Path) -> None:
    for form in ("q4w4a16", "q4w4a16emb4"):
        out = repack(nibble, tmp_path / form, make(), "--format", form)
        config = AutoConfig.from_pretrained(out)
        assert config.architectures == ["Gemma4ForCausalLM"] and config.hidden_size_per_layer_input == 32
        assert config.eos_token_id == [1, 106] and config.bos_token_id == 2
        assert config.tie_word_embeddings == (form == "q4w4a16")


def test_transformers_runs_the_packed_linears(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    out = repack(nibble, tmp_path, checkpoint, "--format", "q4w4a16")
    ids = torch.arange(3, 40)[None]
    packed = Gemma4ForCausalLM.from_pretrained(out, dtype=torch.float32)
    config = AutoConfig.from_pretrained(out)
    del config.quantization_config
    plain = Gemma4ForCausalLM(config).float().eval()
    written = load(out)
    weights = {n.replace("language_model.", ""): t.float() for n, t in checkpoint.tensors.items() if "language_model" in n}
    for name in weights:
        module = name.removesuffix(".weight")
        if f"{module}.weight_packed" in written:  # what this reader computes: no rounding to bf16
            state = {k: written[f"{module}.{k}"] for k in ("weight_packed", "weight_scale", "weight_shape")}
            weights[name] = PackedQuantizationCompressor.decompress(state | {"weight_scale": state["weight_scale"].float()}, INT4)["weight"]
    plain.load_state_dict(weights, strict=False)
    plain.tie_weights()
    with torch.no_grad():
        torch.testing.assert_close(packed(ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-4)
