"""The commands inspect, repack and verify from outside: refusals, exit codes, what is left on disk, equal bytes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
import torch
from conftest import Run, from_environment
from synthetic import make, make_member

GATE = "model.language_model.layers.0.mlp.gate_proj.weight"
TABLE = "model.language_model.embed_tokens_per_layer.weight"


def digests(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(directory.iterdir())}


def patch(directory: Path, tensor: str, at: int, change: int) -> None:
    """XORs one byte of a tensor in a written checkpoint."""
    for shard in directory.glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        (header_bytes,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + header_bytes])
        if tensor in header:
            data[8 + header_bytes + header[tensor]["data_offsets"][0] + at] ^= change
            shard.write_bytes(data)
            return
    raise KeyError(tensor)


@pytest.fixture
def packed(nibble: Run, tmp_path: Path) -> tuple[Path, Path]:
    source, out = make().write(tmp_path / "source"), tmp_path / "out"
    assert nibble("repack", source, out, "--format", "q4w4a16emb4").returncode == 0
    return source, out


@pytest.mark.parametrize("form", ["q4w4a16", "q4w4a16emb4"])
def test_equal_bytes_at_any_thread_count(nibble: Run, tmp_path: Path, form: str) -> None:
    source = make(torch.float32).write(tmp_path / "source")
    seen = []
    for threads in (1, 2, 3):
        out = tmp_path / f"out{threads}"
        assert nibble("repack", source, out, "--format", form, "--threads", str(threads)).returncode == 0
        seen.append(digests(out))
    assert seen[0] == seen[1] == seen[2]
    assert {"model.safetensors", "config.json", "nibble-report.json", "tokenizer.json", "chat_template.jinja"} <= set(seen[0])
    assert "preprocessor_config.json" not in seen[0]


def test_one_value_off_the_grid_is_refused_with_its_place(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    checkpoint.tensors[GATE][7, 41] = checkpoint.tensors[GATE][7, 32:64].abs().max() * 0.55  # between two codes, whatever the peak's
    source, out = checkpoint.write(tmp_path / "source"), tmp_path / "out"
    refused = nibble("repack", source, out, "--format", "q4w4a16")
    assert refused.returncode == 2
    assert f"tensor {GATE} row 7 group 1 (columns 32 to 63)" in refused.stderr and "column 41 " in refused.stderr
    assert not out.exists() and not (tmp_path / "out.partial").exists()
    inspected = nibble("inspect", source, "--grid", "--json")
    assert inspected.returncode == 1
    grid = json.loads(inspected.stdout)["grid"]
    assert grid["groups_off_grid"] == 1 and f"{GATE} row 7 group 1" in grid["first_off_grid"]

    rounded = nibble("repack", source, out, "--format", "q4w4a16", "--allow-offgrid", "--json")
    assert rounded.returncode == 0
    assert json.loads(rounded.stdout)["totals"]["groups_off_grid"] == 1
    verified = nibble("verify", source, out)
    assert verified.returncode == 1
    assert "model.layers.0.mlp.gate_proj row 7 group 1 column 41:" in verified.stdout


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(nibble: Run, tmp_path: Path, bad: float) -> None:
    checkpoint = make()
    checkpoint.tensors[GATE][3, 2] = bad
    refused = nibble("repack", checkpoint.write(tmp_path / "source"), tmp_path / "out", "--format", "q4w4a16", "--allow-offgrid")
    assert refused.returncode == 2 and f"{GATE} row 3 group 0" in refused.stderr and "column 2 " in refused.stderr


def test_a_table_off_the_grid_is_refused_only_where_it_would_be_packed(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    checkpoint.tensors[TABLE] = torch.rand(checkpoint.tensors[TABLE].shape).bfloat16()
    source = checkpoint.write(tmp_path / "source")
    refused = nibble("repack", source, tmp_path / "emb4", "--format", "q4w4a16emb4")
    assert refused.returncode == 2 and f"tensor {TABLE} row 0 group 0" in refused.stderr and "--format q4w4a16" in refused.stderr
    assert nibble("repack", source, tmp_path / "plain", "--format", "q4w4a16").returncode == 0


def test_random_weights_do_not_pass_for_qat(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    for name, tensor in checkpoint.tensors.items():
        checkpoint.tensors[name] = torch.rand(tensor.shape).bfloat16()
    checkpoint.config["quantization_config"] = {"weight_bits": 4}
    source = checkpoint.write(tmp_path / "source")
    inspected = nibble("inspect", source, "--grid", "--json")
    answer = json.loads(inspected.stdout)
    assert inspected.returncode == 1 and answer["grid"]["groups_off_grid"] == answer["grid"]["groups"]
    assert "without a method" in answer["basis"]


def test_inspect_names_parts_grid_and_duplicate_head(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.language_model.embed_tokens.weight"].clone()
    source = checkpoint.write(tmp_path / "source")
    answer = json.loads(nibble("inspect", source, "--grid", "--json").stdout)
    by_part = {p["part"]: p["bytes"] for p in answer["parts"]}
    assert set(by_part) == {"body", "ple", "vocabulary", "audio", "vision"}
    assert sum(by_part.values()) == answer["bytes"] == sum(t.numel() * 2 for t in checkpoint.tensors.values())
    assert answer["format"] == "bf16" and answer["duplicate_head"] == "lm_head.weight"
    assert "says nothing of quantisation" in answer["basis"]
    grid = answer["grid"]
    assert grid["groups_off_grid"] == 0 and grid["groups_exact_fp16"] == grid["groups"] > grid["groups_exact_bf16"]
    assert 0.4 < grid["negative_scales"] / grid["groups"] < 0.6

    out = tmp_path / "out"
    report = json.loads(nibble("repack", source, out, "--format", "q4w4a16", "--json").stdout)
    assert report["tensors_dropped"] == {"towers": 4, "kv_of_shared_layers": 0, "duplicate_heads": 1}
    assert nibble("verify", source, out).returncode == 0
    assert json.loads(nibble("inspect", out, "--json").stdout)["format"] == "q4w4a16"


def test_inspect_says_which_names_it_does_not_know(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    names = ["model.language_model.layers.0.mlp.sideways.weight", "model.layers.1.unheard_of.weight", "transformer.h.0.weight",
             "model.language_model.layers.99.mlp.up_proj.weight"]
    for name in names:
        checkpoint.tensors[name] = torch.zeros(32, 32).bfloat16()
    source = checkpoint.write(tmp_path / "source")
    answer = json.loads(nibble("inspect", source, "--json").stdout)
    assert sorted(tensor["name"] for tensor in answer["unknown_tensors"]) == sorted(names)
    assert {tensor["bytes"] for tensor in answer["unknown_tensors"]} == {32 * 32 * 2}
    text = nibble("inspect", source).stdout
    assert "Not part of the model that nibble knows: 4 tensors" in text and all(name in text for name in names)
    for known, form in ((make(leftovers=True), "q4w4a16emb4"), (make_member("26b"), "w8a8"), (make_member("12b"), "q4w4a16")):
        source, out = known.write(tmp_path / form / "source"), tmp_path / form / "out"
        assert nibble("repack", source, out, "--format", form, "--keep-towers").returncode == 0
        for path in (source, out):
            assert json.loads(nibble("inspect", path, "--json").stdout)["unknown_tensors"] == []


@pytest.mark.parametrize("kernels", ["neon", "altivec"])
def test_kernels_that_the_cpu_lacks_are_refused_alike(nibble: Run, tiny: Path, tmp_path: Path, kernels: str) -> None:
    if kernels in Path("/proc/cpuinfo").read_text() or platform.machine() != "x86_64":
        pytest.skip("a CPU with them")
    environment = os.environ | {"NIBBLE_KERNELS": kernels}
    commands = [["repack", tiny, tmp_path / "out", "--format", "q4w4a16"], ["repack", tiny, tmp_path / "out.gguf", "--format", "gguf"],
                ["verify", tiny, tiny], ["inspect", tiny, "--grid"], ["generate", tiny, "Hello"]]
    errors = {nibble(*command, env=environment).stderr.splitlines()[-1] for command in commands}
    assert len(errors) == 1 and f"NIBBLE_KERNELS={kernels}: not on this CPU; expected one of scalar" in errors.pop()
    assert not list(tmp_path.iterdir())


def test_a_head_that_contradicts_the_config_is_refused(nibble: Run, tmp_path: Path) -> None:
    checkpoint = make()
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.language_model.embed_tokens.weight"].flip(0)
    refused = nibble("repack", checkpoint.write(tmp_path / "source"), tmp_path / "out", "--format", "q4w4a16")
    assert refused.returncode == 2 and "lm_head.weight differs from" in refused.stderr


@pytest.mark.parametrize("form", ["q4w4a16", "q4w4a16emb4"])
def test_an_untied_head_of_its_own_is_kept(nibble: Run, tmp_path: Path, form: str) -> None:
    checkpoint = make(tie_word_embeddings=False)
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.language_model.embed_tokens.weight"].flip(0)
    source, out = checkpoint.write(tmp_path / "source"), tmp_path / "out"
    assert nibble("repack", source, out, "--format", form).returncode == 0
    verified = nibble("verify", source, out)
    assert verified.returncode == 0, verified.stdout
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False


def test_leftover_kv_of_shared_layers_is_dropped_and_counted(nibble: Run, tmp_path: Path) -> None:
    outs = []
    for leftovers in (False, True):
        source, out = make(leftovers=leftovers).write(tmp_path / f"source{leftovers}"), tmp_path / f"out{leftovers}"
        report = json.loads(nibble("repack", source, out, "--format", "q4w4a16", "--json").stdout)
        assert report["tensors_dropped"]["kv_of_shared_layers"] == (3 if leftovers else 0)
        verified = json.loads(nibble("verify", source, out, "--json").stdout)
        assert verified["ok"] and verified["source_tensors"].get("dropped: K/V of a KV-shared layer", 0) == (3 if leftovers else 0)
        names = set()
        for shard in out.glob("*.safetensors"):
            data = shard.read_bytes()
            names |= set(json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]]))
        outs.append(names)
    assert outs[0] == outs[1]


@pytest.mark.parametrize(
    ("tensor", "at", "bit", "place"),
    [("model.layers.0.mlp.gate_proj.weight_packed", 32 * 5 + 16 + 3, 1, "model.layers.0.mlp.gate_proj row 5 group 1 column 38:"),
     ("model.layers.0.mlp.gate_proj.weight_scale", 4 * 9 + 2, 16, "model.layers.0.mlp.gate_proj row 9 group 1 column "),
     ("model.norm.weight", 6, 1, "model.norm.weight row 0 column 3:"),
     ("model.layers.0.mlp.gate_proj.weight_shape", 8, 1, "model.layers.0.mlp.gate_proj: expected codes"),
     ("lm_head.weight_packed", 100, 1, "lm_head.weight_packed: not the bytes of model.embed_tokens.weight_packed")])
def test_verify_names_the_place_of_a_flipped_bit(nibble: Run, packed: tuple[Path, Path], tensor: str, at: int, bit: int, place: str) -> None:
    source, out = packed
    assert nibble("verify", source, out).returncode == 0
    patch(out, tensor, at, bit)
    verified = nibble("verify", source, out)
    assert verified.returncode == 1 and place in verified.stdout, verified.stdout
    if "weight_shape" not in tensor:
        assert verified.stdout.count("WRONG") == 1


def test_verify_demands_the_exact_scale_where_one_exists(nibble: Run, tmp_path: Path) -> None:
    """Eight fp16 steps move the values by about one bf16 step: all codes still right, but it need not be."""
    source, out = make().write(tmp_path / "source"), tmp_path / "out"
    assert nibble("repack", source, out, "--format", "q4w4a16").returncode == 0
    patch(out, "model.layers.1.mlp.up_proj.weight_scale", 0, 8)
    verified = nibble("verify", source, out)
    assert verified.returncode == 1 and "a nearer F16 scale exists" in verified.stdout


def test_bf16_scales_over_fp16_values_are_right_but_not_bit_identical(nibble: Run, tmp_path: Path) -> None:
    source, out = make(torch.float16).write(tmp_path / "source"), tmp_path / "out"
    report = json.loads(nibble("repack", source, out, "--format", "q4w4a16", "--scale-dtype", "bf16", "--json").stdout)
    assert 0.3 < report["totals"]["groups_exact"] / report["totals"]["groups"] < 0.6 and report["totals"]["worst_ulp"] == 1
    verified = nibble("verify", source, out, "--json")
    proof = json.loads(verified.stdout)
    assert verified.returncode == 0 and proof["totals"]["worst_ulp"] == 1
    assert proof["totals"]["groups_right"] == proof["totals"]["groups"]
    assert proof["totals"]["values_bit_identical"] == report["totals"]["values_bit_identical"] < proof["totals"]["values"]


def test_verify_checks_the_config_against_the_tensors(nibble: Run, packed: tuple[Path, Path]) -> None:
    source, out = packed
    config = json.loads((out / "config.json").read_text())
    for change, words in [(("ignore", ["model.layers.0.mlp.gate_proj"]), "gate_proj is packed"), (("format", "int-quantized"), "format")]:
        changed = config | {"quantization_config": config["quantization_config"] | dict([change])}
        (out / "config.json").write_text(json.dumps(changed))
        verified = nibble("verify", source, out)
        assert verified.returncode == 1 and words in verified.stdout
    (out / "config.json").write_text(json.dumps(config | {"sliding_window": 17}))
    verified = nibble("verify", source, out)
    assert verified.returncode == 1 and "sliding_window" in verified.stdout


def test_truncated_shards_are_refused(nibble: Run, packed: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = packed
    shard = out / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    verified = nibble("verify", source, out)
    assert verified.returncode == 2 and "model.safetensors" in verified.stderr
    shard = next(source.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    refused = nibble("repack", source, tmp_path / "new", "--format", "q4w4a16")
    assert refused.returncode == 2 and shard.name in refused.stderr and not (tmp_path / "new").exists()


def test_an_existing_output_is_left_alone(nibble: Run, packed: tuple[Path, Path]) -> None:
    source, out = packed
    before = digests(out)
    refused = nibble("repack", source, out, "--format", "q4w4a16")
    assert refused.returncode == 2 and "exists already" in refused.stderr and digests(out) == before


def test_a_dry_run_writes_nothing(nibble: Run, tmp_path: Path) -> None:
    source = make().write(tmp_path / "source")
    dry = json.loads(nibble("repack", source, tmp_path / "out", "--format", "q4w4a16", "--dry-run", "--json").stdout)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]
    real = json.loads(nibble("repack", source, tmp_path / "out", "--format", "q4w4a16", "--json").stdout)
    assert dry["output"]["bytes"] == real["output"]["bytes"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"missing": GATE}, f"{GATE.replace('language_model.', '')} is missing"),
     ({"extra": "model.language_model.layers.0.mlp.sideways.weight"}, "sideways"),
     ({"extra": "model.layers.1.unheard_of.weight"}, "unheard_of")])
def test_layouts_that_are_not_gemma4_are_refused(nibble: Run, tmp_path: Path, change: dict[str, str], words: str) -> None:
    checkpoint = make()
    if "missing" in change:
        del checkpoint.tensors[change["missing"]]
    else:
        checkpoint.tensors[change["extra"]] = torch.zeros(32, 32).bfloat16()
    refused = nibble("repack", checkpoint.write(tmp_path / "source"), tmp_path / "out", "--format", "q4w4a16")
    assert refused.returncode == 2 and words in refused.stderr


def test_a_killed_repack_leaves_no_output(nibble: Run, tmp_path: Path) -> None:
    source = make(vocab_size=40_000, vocab_size_per_layer_input=40_000, hidden_size=512).write(tmp_path / "source")
    out = tmp_path / "out"
    job = subprocess.Popen([from_environment("NIBBLE_BIN"), "repack", source, out, "--format", "q4w4a16emb4", "--threads", "1"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "out.partial").exists() and job.poll() is None:
        time.sleep(0.001)
    job.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL, "it finished before it could be killed"
    assert not out.exists()
    assert nibble("repack", source, out, "--format", "q4w4a16emb4", "--resume").returncode == 0
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_damaged_file_is_named(nibble: Run, packed: tuple[Path, Path], name: str) -> None:
    source, out = packed
    data = bytearray((out / name).read_bytes())
    data[-1] ^= 1
    (out / name).write_bytes(data)
    damaged = nibble("verify", source, out)
    assert damaged.returncode == 1 and f"{name}: damaged: its SHA-256 is" in damaged.stderr
