"""Every member of the family in every format: all tensors accounted for, each decompressed by compressed-tensors, configs that loaders match.

Tensors are read back with compressed-tensors and safetensors; which modules a loader quantises is asked of compressed-tensors on
transformers' own model. vLLM's spelling of module names is copied from its model files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import random_models
import torch
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, apply_quantization_config
from compressed_tensors.utils.match import match_name
from conftest import Run
from safetensors.torch import load_file
from synthetic import FAMILY, Checkpoint, Tensors, make, make_member
from test_logits import LONG, dense, generate, prompt
from transformers import AutoConfig, Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4UnifiedForConditionalGeneration

FORMATS = ["q4w4a16", "q4w4a16emb4", "w8a8", "w8a8emb4"]
NESTED = "model.language_model."
INT4 = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32))
INT8 = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel"))


def load(directory: Path) -> Tensors:
    tensors: Tensors = {}
    for shard in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(shard)
    return tensors


def repack(nibble: Run, tmp_path: Path, checkpoint: Checkpoint, *options: str) -> Path:
    source, out = checkpoint.write(tmp_path / "source"), tmp_path / "out"
    done = nibble("repack", source, out, *options)
    assert done.returncode == 0, done.stderr
    proof = nibble("verify", source, out)
    assert proof.returncode == 0, proof.stdout + proof.stderr
    return out


def pieces(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Source tensor -> modules that it becomes: banks fall into experts, whose gate rows come before the up rows."""
    if tensor.dim() != 3 or ".experts." not in name:
        return {name.removesuffix(".weight"): tensor}
    module, _, bank = name.rpartition(".")
    parts = ["gate_proj", "up_proj"] if bank == "gate_up_proj" else ["down_proj"]
    return {f"{module}.{e}.{part}": rows for e, expert in enumerate(tensor) for part, rows in zip(parts, expert.chunk(len(parts)), strict=True)}


def check_int4(written: Tensors, module: str, source: torch.Tensor) -> None:
    state = {k: written.pop(f"{module}.{k}") for k in ("weight_packed", "weight_scale", "weight_shape")}
    state["weight_scale"] = state["weight_scale"].float()
    values = PackedQuantizationCompressor.decompress(state, INT4)["weight"].bfloat16()
    assert torch.equal(values.view(torch.int16), source.view(torch.int16)), module


def check_int8(written: Tensors, module: str, source: torch.Tensor) -> None:
    state = {k: written.pop(f"{module}.{k}") for k in ("weight", "weight_scale")}
    scale = source.float().abs().amax(1, keepdim=True) / 127
    assert torch.equal(state["weight_scale"], scale), module
    assert torch.equal(state["weight"], (source.float() / scale).round().to(torch.int8)), module
    values = IntQuantizationCompressor.decompress(state, INT8)["weight"].float()
    assert ((values - source.float()).abs() <= scale * 0.5001).all() and not torch.equal(values, source.float()), module


def check_modules(out: Path, packed: set[str]) -> None:
    """Quantised are exactly the packed modules: by compressed-tensors on transformers' model, and by name as vLLM spells it."""
    config = AutoConfig.from_pretrained(out)
    kinds = {c.__name__: c for c in (Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4UnifiedForConditionalGeneration)}
    (architecture,) = config.architectures
    rules = json.loads((out / "config.json").read_text())["quantization_config"]
    del config.quantization_config
    with torch.device("meta"):
        model = kinds[architecture](config)
    apply_quantization_config(model, QuantizationConfig.model_validate(rules), run_compressed=False)
    chosen = {name for name, module in model.named_modules() if getattr(module, "quantization_scheme", None) is not None}
    assert chosen == {name for name in packed if ".experts." not in name}  # banks are no Linear in transformers

    groups = rules["config_groups"].values()
    tables = ("embed_tokens", "embed_tokens_per_layer")
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) and not name.endswith(tables):
            continue
        vllm = name
        if architecture != "Gemma4ForCausalLM":
            vllm = re.sub(r"^model\.language_model\.|^model\.(?!vision|audio|embed_)", "language_model.model.", name).removeprefix("model.")
            vllm = re.sub("^lm_head", "language_model.lm_head", vllm)
        is_ignored = any(match_name(vllm, rule) for rule in rules["ignore"])
        is_target = any(match_name(vllm, rule) for group in groups for rule in group["targets"]) or isinstance(module, torch.nn.Linear)
        assert (is_target and not is_ignored) == (name in packed), vllm


@pytest.mark.parametrize("towers", [False, True], ids=["text", "towers"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("member", list(FAMILY))
def test_every_tensor_of_every_member(nibble: Run, tmp_path: Path, member: str, form: str, towers: bool) -> None:
    checkpoint = make_member(member)
    out = repack(nibble, tmp_path, checkpoint, "--format", form, *(["--keep-towers"] if towers else []))
    written = load(out)
    packed = set()
    for name, tensor in checkpoint.tensors.items():
        target = name if towers else name.replace(NESTED, "model.", 1)
        if not name.startswith(NESTED) and not towers:
            continue
        is_linear = name.startswith(NESTED) and tensor.dim() >= 2 and ".router." not in name and "embed_tokens" not in name
        is_table = "embed_tokens" in name
        if not is_linear and not (is_table and form.endswith("emb4")):
            plain = written.pop(target)
            assert plain.dtype == tensor.dtype and torch.equal(plain.view(torch.int16), tensor.view(torch.int16)), name
            continue
        for module, rows in pieces(target, tensor).items():
            packed.add(module)
            (check_int8 if is_linear and form.startswith("w8a8") else check_int4)(written, module, rows)
    if form.endswith("emb4"):  # a tied head over a packed table fails in vLLM: it is written a second time
        packed.add("lm_head")
        check_int4(written, "lm_head", checkpoint.tensors[f"{NESTED}embed_tokens.weight"])
    assert not written
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == (checkpoint.config["architectures"] if towers else ["Gemma4ForCausalLM"])
    assert config["tie_word_embeddings"] is not form.endswith("emb4")
    check_modules(out, packed)


def test_gate_rows_come_before_up_rows(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make_member("26b")
    name = f"{NESTED}layers.0.experts.gate_up_proj"
    checkpoint.tensors[name][:, :32] = 1
    checkpoint.tensors[name][:, 32:] = 2
    written = load(repack(nibble, tmp_path, checkpoint, "--format", "q4w4a16"))
    for expert in range(4):
        for part, value in (("gate_proj", 1), ("up_proj", 2)):
            check_int4(written, f"model.layers.0.experts.{expert}.{part}", torch.full((32, 64), value).bfloat16())


def test_an_explicit_v_where_v_is_k_is_kept(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make_member("31b")
    k = checkpoint.tensors[f"{NESTED}layers.2.self_attn.k_proj.weight"]
    v = k.flip(0)
    checkpoint.tensors[f"{NESTED}layers.2.self_attn.v_proj.weight"] = v
    written = load(repack(nibble, tmp_path, checkpoint, "--format", "q4w4a16"))
    check_int4(written, "model.layers.2.self_attn.v_proj", v)
    check_int4(written, "model.layers.2.self_attn.k_proj", k)


def test_an_unknown_bank_is_named_with_its_share(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make_member("26b")
    known = repack(nibble, tmp_path / "known", checkpoint, "--format", "q4w4a16emb4")
    coverage = json.loads((known / "nibble-report.json").read_text())["coverage"]
    assert coverage["packed_share"] > 0.97
    assert {entry["tensor"].split(".", 4)[-1] for entry in coverage["matrices_left"]} == {"router.proj.weight"}
    checkpoint.tensors[f"{NESTED}layers.0.experts.sideways_proj"] = torch.zeros(64, 64, 64).bfloat16()
    refused = nibble("repack", checkpoint.write(tmp_path / "unknown"), tmp_path / "out", "--format", "q4w4a16")
    assert refused.returncode == 2 and "experts.sideways_proj" in refused.stderr and "[64, 64, 64]" in refused.stderr
    share = float(re.search(r"\((\S+) % of the bytes\)", refused.stderr)[1])
    assert share == pytest.approx(100 * 64**3 / sum(t.numel() for t in checkpoint.tensors.values()), rel=0.01)


def test_rows_of_no_multiple_of_32_stay_bf16_in_int4_only(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make(intermediate_size=48, use_double_wide_mlp=False)
    left = {}
    for form in ("q4w4a16", "w8a8"):
        out = repack(nibble, tmp_path / form, checkpoint, "--format", form)
        report = json.loads((out / "nibble-report.json").read_text())
        left[form] = sorted(report["linears_left_bf16"])
        assert set(left[form]) <= set(json.loads((out / "config.json").read_text())["quantization_config"]["ignore"])
    assert left == {"q4w4a16": [f"model.layers.{i}.mlp.down_proj" for i in range(4)], "w8a8": []}


def test_a_split_over_two_devices_is_checked_before_it_is_written(nibble: Run, tmp_path: Path) -> None:
    """K of down_proj is 96, or 192 in double-wide layers: three groups do not split in two, six do."""
    source = make().write(tmp_path / "source")
    for form, devices, left in (("q4w4a16", "1", []), ("q4w4a16", "2", [0, 1]), ("w8a8", "2", [])):
        out = tmp_path / f"{form}-{devices}"
        done = nibble("repack", source, out, "--format", form, "--tensor-parallel", devices)
        assert done.returncode == 0, done.stderr
        names = [f"model.layers.{layer}.mlp.down_proj" for layer in left]
        assert sorted(json.loads((out / "nibble-report.json").read_text())["linears_left_bf16"]) == names
        assert set(names) <= set(json.loads((out / "config.json").read_text())["quantization_config"]["ignore"])
        assert all(name in done.stdout for name in names)
        assert nibble("verify", source, out).returncode == 0
    moe = make_member("26b").write(tmp_path / "moe")  # experts of one group
    refused = nibble("repack", moe, tmp_path / "out", "--format", "q4w4a16", "--tensor-parallel", "2")
    assert refused.returncode == 2 and "experts.down_proj: rows of 32 values do not divide into groups of 32 on 2" in refused.stderr


def test_a_tied_model_has_one_table_and_no_other_bytes(nibble: Run, tmp_path: Path) -> None:
    out = repack(nibble, tmp_path, make(vocab_size=16384), "--format", "q4w4a16")
    tensors = load(out)
    assert not any(name.startswith("lm_head") for name in tensors)
    assert sum(name.endswith("embed_tokens.weight") for name in tensors) == 1
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert sum(file.stat().st_size for file in out.glob("*.safetensors")) == pytest.approx(n_bytes, rel=0.01)


def test_a_per_layer_table_off_the_grid_is_refused_for_four_bits(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    table = f"{NESTED}embed_tokens_per_layer.weight"
    checkpoint.tensors[table] = torch.rand(checkpoint.tensors[table].shape).bfloat16()
    source = checkpoint.write(tmp_path / "source")
    refused = nibble("repack", source, tmp_path / "emb4", "--format", "w8a8emb4")
    assert refused.returncode == 2 and f"tensor {table} row 0 group 0" in refused.stderr and "--format w8a8 leaves" in refused.stderr
    assert nibble("repack", source, tmp_path / "plain", "--format", "w8a8").returncode == 0


def test_int8_reports_its_error_and_int4_none(nibble: Run, tmp_path: Path) -> None:
    """Runs of 32 whose steps differ by 77 share one scale in int8."""
    checkpoint = make()
    name = f"{NESTED}layers.0.mlp.gate_proj.weight"
    codes = (torch.arange(64) % 16 - 8).float()
    checkpoint.tensors[name][0] = (codes * torch.tensor([1.0, 0.013]).half().float().repeat_interleave(32)).bfloat16()
    source = checkpoint.write(tmp_path / "source")
    errors = {}
    for form in ("q4w4a16", "w8a8"):
        text = nibble("repack", source, tmp_path / form, "--format", form)
        report = json.loads((tmp_path / form / "nibble-report.json").read_text())
        proof = json.loads(nibble("verify", source, tmp_path / form, "--json").stdout)
        (measured,) = [t["measured"] for t in proof["tensors"] if t["source"] == name]
        errors[form] = measured["relative_error"]
        if form == "w8a8":
            assert "exact" not in text.stdout and "LOSSY" in text.stdout and "exact" not in json.dumps(report)
            (written,) = [t["rounding"] for t in report["tensors"] if t["source"] == name]
            assert written["relative_error"] == pytest.approx(measured["relative_error"], rel=1e-9)
            assert written["max_error"] == pytest.approx(measured["max_error"])
            assert proof["measured"]["int8"]["snr_db"] == pytest.approx(report["rounding"]["snr_db"], rel=1e-9)
    assert errors["q4w4a16"] == 0 and 1e-3 < errors["w8a8"] < 0.02


@pytest.mark.parametrize("form", FORMATS)
def test_equal_bytes_at_any_thread_count(nibble: Run, tmp_path: Path, form: str) -> None:
    source = make_member("26b", torch.float32).write(tmp_path / "source")
    for threads in ("1", "3"):
        assert nibble("repack", source, tmp_path / threads, "--format", form, "--threads", threads).returncode == 0
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "3" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("kind", list(random_models.KINDS))
def test_the_engine_runs_every_format(nibble: Run, tmp_path: Path, kind: str) -> None:
    """int4 against transformers on its values; int8 against transformers with inputs rounded as that format's reader rounds them.

    Rounding inputs is not continuous: where a value lies on the edge between two codes, two float32 runs differ by a step, and what
    follows drifts apart. That takes thousands of values, so most of several short prompts meet no such edge.
    """
    random_models.build(kind, tmp_path / "plain")
    random_models.as_qat(tmp_path / "plain", tmp_path / "qat")
    prompts = [[2, *prompt(60)[i : i + 2]] for i in range(1, 50, 8)]
    for form in FORMATS:
        out = tmp_path / form
        assert nibble("repack", tmp_path / "qat", out, "--format", form).returncode == 0
        oracle = random_models.load_oracle(out, torch.float32)
        assert bool(oracle.int8_modules) == form.startswith("w8a8")
        if form.startswith("q4"):
            answer = generate(nibble, out, prompt(LONG), steps=20)
            ids = answer["prompt_ids"] + answer["token_ids"][:-1]
            assert (dense(answer) - random_models.logprobs(oracle, ids)[-20:]).abs().max() < 1e-3
            continue
        ours = [dense(generate(nibble, out, ids, steps=1))[0] for ids in prompts]
        errors = [(mine - random_models.logprobs(oracle, ids)[-1]).abs().max().item() for mine, ids in zip(ours, prompts, strict=True)]
        oracle.int8_modules = set()
        unrounded = [(mine - random_models.logprobs(oracle, ids)[-1]).abs().max().item() for mine, ids in zip(ours, prompts, strict=True)]
        print(f"{kind} {form}: errors {sorted(errors)}, without rounded inputs {min(unrounded)} and more")
        assert sorted(errors)[len(errors) // 2] < 1e-4 and min(unrounded) > 1e-2
