"""`nibble verify` on exports that somebody else made: what it measures against what torch computes from the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from conftest import Run
from safetensors.torch import save_file
from synthetic import Tensors, make, make_member
from test_family import load

NESTED = "model.language_model."
INT4_CONFIG = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
    "targets": ["Linear"], "input_activations": None, "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}},
    "ignore": ["lm_head", "re:.*vision.*", "re:.*audio.*"]}


def is_linear(name: str, tensor: torch.Tensor) -> bool:
    return name.startswith(NESTED) and tensor.dim() == 2 and "embed_tokens" not in name


def write_export(path: Path, config: dict, tensors: Tensors) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"})
    return path


def int4_export(tensors: Tensors, divisor: float, scale_dtype: torch.dtype) -> Tensors:
    """All linears by amax / divisor, everything else as it is."""
    export: Tensors = {}
    for name, tensor in tensors.items():
        if not is_linear(name, tensor):
            export[name] = tensor
            continue
        groups = tensor.float().unflatten(-1, (-1, 32))
        scale = (groups.abs().amax(-1) / divisor).to(scale_dtype)
        codes = (groups / scale.float()[..., None]).round().clamp(-8, 7)
        module = name.removesuffix(".weight")
        export |= {f"{module}.weight_packed": pack_to_int32(codes.flatten(1).to(torch.int8), 4), f"{module}.weight_scale": scale,
                   f"{module}.weight_shape": torch.tensor(tensor.shape)}
    return export


def levels(packed: Tensors, module: str) -> torch.Tensor:
    """Codes with their scale's sign."""
    codes = unpack_from_int32(packed[f"{module}.weight_packed"], 4, torch.Size(packed[f"{module}.weight_shape"].tolist()))
    return codes.unflatten(-1, (-1, 32)).int() * packed[f"{module}.weight_scale"].float().sign().int()[..., None]


def test_amax_over_seven_and_a_half(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """The scale rule of the usual exports, on the trained model: what was published for it."""
    assert "LOSSY" in nibble("repack", "--help").stdout
    made = nibble("repack", tiny, tmp_path / "out", "--format", "q4w4a16", "--rounding", "minmax")
    assert made.returncode == 0 and "LOSSY" in made.stdout and "exact" not in made.stdout
    report = json.loads((tmp_path / "out/nibble-report.json").read_text())
    assert "7.5" in report["lossy"] and "exact" not in json.dumps(report)
    verified = nibble("verify", tiny, tmp_path / "out", "--json")
    assert verified.returncode == 1
    proof = json.loads(verified.stdout)
    measured = proof["measured"]["int4"]
    assert measured["relative_error"] == pytest.approx(0.067, abs=0.002) and measured["snr_db"] == pytest.approx(23.5, abs=0.2)
    assert measured["relative_error"] == pytest.approx(report["rounding"]["relative_error"], rel=1e-9)
    assert 0 < measured["levels_moved"] < measured["levels"] == measured["values"]
    assert " row 0 group 0 column " in proof["faults"][0]
    text = nibble("verify", tiny, tmp_path / "out").stdout
    assert "MEASURED, int4: relative error 6.6" in text and "SNR 23.5 dB" in text and "VERIFIED" not in text


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("names", ["multimodal", "text"])
def test_an_export_with_other_names_and_scales(nibble: Run, tmp_path: Path, names: str, scale_dtype: torch.dtype) -> None:
    checkpoint = make()
    source = checkpoint.write(tmp_path / "source")
    assert nibble("repack", source, tmp_path / "exact", "--format", "q4w4a16").returncode == 0
    exact = load(tmp_path / "exact")
    export = int4_export(checkpoint.tensors, 7.5, scale_dtype)
    export["lm_head.weight"] = checkpoint.tensors[f"{NESTED}embed_tokens.weight"]  # a copy that nothing reads
    config = checkpoint.config | {"quantization_config": INT4_CONFIG}
    if names == "text":
        export = {n.replace(NESTED, "model."): t for n, t in export.items() if n.startswith((NESTED, "lm_head"))}
        config = checkpoint.config["text_config"] | {"architectures": ["Gemma4ForCausalLM"], "quantization_config": INT4_CONFIG}
    verified = nibble("verify", source, write_export(tmp_path / "export", config, export), "--json")
    proof = json.loads(verified.stdout)
    assert verified.returncode == 1 and "row 0 group 0" in proof["faults"][0]
    assert not any("lm_head" in fault or "missing" in fault for fault in proof["faults"])

    squares = errors = moved = total = 0.0
    by_name = {t["source"]: t.get("measured") for t in proof["tensors"]}
    for name, tensor in checkpoint.tensors.items():
        if not is_linear(name, tensor):
            assert by_name[name] is None
            continue
        target = name if names == "multimodal" else name.replace(NESTED, "model.")
        module = target.removesuffix(".weight")
        theirs = levels(export, module)
        read = (theirs * export[f"{module}.weight_scale"].float()[..., None]).flatten(1).bfloat16().double()
        error, energy = (read - tensor.double()).square().sum(), tensor.double().square().sum()
        assert by_name[name]["relative_error"] == pytest.approx((error / energy).sqrt().item(), rel=1e-6)
        assert by_name[name]["max_error"] == pytest.approx((read - tensor.double()).abs().max().item())
        moved += (theirs != levels(exact, module.replace(NESTED, "model."))).sum().item()
        squares, errors, total = squares + energy, errors + error, total + tensor.numel()
    measured = proof["measured"]["int4"]
    assert measured["relative_error"] == pytest.approx((errors / squares).sqrt().item(), rel=1e-6)
    assert measured["snr_db"] == pytest.approx(10 * torch.log10(squares / errors).item(), rel=1e-6)
    assert measured["levels"] == total and measured["levels_moved"] == pytest.approx(moved, rel=1e-3)


def test_an_exact_export_with_float32_scales_is_right(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    source = checkpoint.write(tmp_path / "source")
    assert nibble("repack", source, tmp_path / "out", "--format", "q4w4a16").returncode == 0
    tensors = load(tmp_path / "out")
    wide = {n: t.float() if n.endswith("weight_scale") else t for n, t in tensors.items()}
    config = json.loads((tmp_path / "out/config.json").read_text())
    verified = nibble("verify", source, write_export(tmp_path / "wide", config, wide), "--json")
    proof = json.loads(verified.stdout)
    assert verified.returncode == 0, proof["faults"]
    assert proof["measured"]["int4"]["relative_error"] == 0 and proof["measured"]["int4"]["levels_moved"] == 0


def test_int8_by_another_rule_is_measured(nibble: Run, tmp_path: Path) -> None:
    """absmax / 127.5 in bf16, as compressed-tensors' own observers choose it."""
    checkpoint = make()
    source = checkpoint.write(tmp_path / "source")
    assert nibble("repack", source, tmp_path / "out", "--format", "w8a8").returncode == 0
    tensors = load(tmp_path / "out")
    squares = errors = moved = 0.0
    for name, codes in list(tensors.items()):
        if codes.dtype != torch.int8:
            continue
        original = checkpoint.tensors[name.replace("model.", NESTED, 1)].double()
        scale = (original.abs().amax(1, keepdim=True) / 127.5).bfloat16()
        tensors[name] = (original.float() / scale.float()).round().clamp(-128, 127).to(torch.int8)
        tensors[f"{name}_scale"] = scale
        read = (tensors[name].float() * scale.float()).double()
        ours = (original.float() / (original.float().abs().amax(1, keepdim=True) / 127).bfloat16().float()).round().clamp(-127, 127)
        moved += (ours != tensors[name]).sum().item()
        squares, errors = squares + original.square().sum(), errors + (read - original).square().sum()
    config = json.loads((tmp_path / "out/config.json").read_text())
    verified = nibble("verify", source, write_export(tmp_path / "other", config, tensors), "--json")
    proof = json.loads(verified.stdout)
    assert verified.returncode == 1 and "largest magnitude / 127" in proof["faults"][0]
    measured = proof["measured"]["int8"]
    assert measured["relative_error"] == pytest.approx((errors / squares).sqrt().item(), rel=1e-6)
    assert measured["levels_moved"] == moved > 0


def test_one_changed_int8_code_is_named(nibble: Run, tmp_path: Path) -> None:
    source = make().write(tmp_path / "source")
    assert nibble("repack", source, tmp_path / "out", "--format", "w8a8").returncode == 0
    tensors = load(tmp_path / "out")
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] ^= 1
    config = json.loads((tmp_path / "out/config.json").read_text())
    verified = nibble("verify", source, write_export(tmp_path / "changed", config, tensors))
    assert verified.returncode == 1 and "model.layers.1.mlp.up_proj row 5 column 7: code is" in verified.stdout
    assert verified.stdout.count("WRONG") == 1


def test_every_expert_is_accounted_for(nibble: Run, tmp_path: Path) -> None:
    source = make_member("26b").write(tmp_path / "source")
    assert nibble("repack", source, tmp_path / "out", "--format", "q4w4a16").returncode == 0
    tensors = load(tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    prefix = "model.layers.1.experts"
    missing = {n: t for n, t in tensors.items() if not n.startswith(f"{prefix}.2.up_proj.")}
    verified = nibble("verify", source, write_export(tmp_path / "missing", config, missing))
    assert verified.returncode == 1 and f"{prefix}.2.up_proj.weight is missing" in verified.stdout
    for part in ("weight_packed", "weight_scale"):
        key = f"{prefix}.%d.down_proj.{part}"
        tensors[key % 0], tensors[key % 1] = tensors[key % 1], tensors[key % 0]
    verified = nibble("verify", source, write_export(tmp_path / "swapped", config, tensors))
    assert verified.returncode == 1 and f"tensor {prefix}.0.down_proj row 0 group 0" in verified.stdout
