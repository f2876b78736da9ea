"""Synthetic checkpoints of the published sizes: names and shapes as transformers has them, values on the grid, equal bytes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import Run, from_environment
from safetensors import safe_open
from transformers import AutoConfig, Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4UnifiedForConditionalGeneration
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

SIZES = ["e2b", "e4b", "12b", "26b-a4b", "31b"]
Shapes = dict[str, list[int]]


def run(*arguments: str | Path) -> str:
    binary = Path(from_environment("NIBBLE_BIN")).with_name("make_checkpoint")
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shapes_in(directory: Path) -> Shapes:
    shapes = {}
    for shard in directory.glob("*.safetensors"):
        with safe_open(shard, "pt") as tensors:
            shapes |= {name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()}
    return shapes


def transformers_shapes(directory: Path) -> Shapes:
    """What transformers would build from config.json, without the tied head."""
    config = AutoConfig.from_pretrained(directory)
    (name,) = config.architectures
    kinds = {c.__name__: c for c in (Gemma4ForCausalLM, Gemma4ForConditionalGeneration, Gemma4UnifiedForConditionalGeneration)}
    with torch.device("meta"):
        model = kinds[name](config)
    return {n: list(t.shape) for n, t in model.state_dict().items() if n != "lm_head.weight"}


def as_loaded(shapes: Shapes, model_type: str) -> Shapes:
    """Names in the file -> names in the model, by transformers' own table."""
    renamings = get_checkpoint_conversion_mapping(model_type) or []
    loaded = {}
    for name, shape in shapes.items():
        for renaming in renamings:
            for source, target in zip(renaming.source_patterns, renaming.target_patterns, strict=True):
                name = re.sub(source, target, name)
        loaded[name] = shape
    return loaded


@pytest.mark.parametrize("cut", [[], ["--layers", "7", "--vocab", "1000"], ["--text-only"]], ids=["whole", "cut", "text"])
@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_transformers(tmp_path: Path, size: str, cut: list[str]) -> None:
    listed = json.loads(run(size, "--list", *cut))
    (tmp_path / "config.json").write_text(json.dumps(listed["config"]))
    assert as_loaded(listed["tensors"], listed["config"]["model_type"]) == transformers_shapes(tmp_path)


@pytest.mark.parametrize(("size", "published_gb", "tolerance", "options"), [
    ("e2b", 10.247, 0.001, ["--shared-kv"]), ("e4b", 16.0, 0.01, ["--shared-kv"]), ("12b", 24.0, 0.1, []),
    ("26b-a4b", 51.61, 0.005, []), ("31b", 62, 0.6, [])])
def test_sizes_are_the_published_ones(size: str, published_gb: float, tolerance: float, options: list[str]) -> None:
    """Published files of E2B and E4B hold the unused K/V of shared layers; the QAT exports do not."""
    total_bytes = json.loads(run(size, "--list", *options))["total_bytes"]
    assert total_bytes / 1e9 == pytest.approx(published_gb, abs=tolerance)


@pytest.fixture(scope="module")
def e2b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers with their own KV, two that share it, all widths real; in three shards."""
    out = tmp_path_factory.mktemp("make_checkpoint") / "e2b"
    run("e2b", out, "--layers", "4", "--vocab", "256", "--shard-gb", "0.2")
    return out


def test_written_as_listed_in_shards_with_an_index(e2b: Path) -> None:
    listed = json.loads(run("e2b", "--list", "--layers", "4", "--vocab", "256"))
    assert shapes_in(e2b) == listed["tensors"]
    assert json.loads((e2b / "config.json").read_text()) == listed["config"]
    index = json.loads((e2b / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == listed["total_bytes"]
    for shard in set(index["weight_map"].values()):
        assert (e2b / shard).stat().st_size < 0.21e9
        with safe_open(e2b / shard, "pt") as tensors:
            assert {index["weight_map"][name] for name in tensors.keys()} == {shard}
    assert json.loads((e2b / "generation_config.json").read_text())["eos_token_id"] == [1, 106, 50]


def test_repack_is_exact(nibble: Run, tmp_path: Path, e2b: Path) -> None:
    done = nibble("repack", e2b, tmp_path / "out", "--format", "q4w4a16emb4")
    assert done.returncode == 0, done.stderr
    proof = nibble("verify", e2b, tmp_path / "out")
    assert proof.returncode == 0, proof.stdout + proof.stderr


@pytest.mark.parametrize(("size", "cut", "scales"), [
    ("12b", ["--layers", "1"], "fp16"), ("26b-a4b", ["--layers", "1", "--experts", "2"], "bf16")])
def test_every_group_is_on_the_grid(nibble: Run, tmp_path: Path, size: str, cut: list[str], scales: str) -> None:
    run(size, tmp_path / "made", *cut, "--vocab", "256", "--text-only", "--scales", scales)
    done = nibble("inspect", "--grid", tmp_path / "made")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^off the grid +0$", done.stdout, re.MULTILINE), done.stdout


def test_transformers_runs_it(e2b: Path) -> None:
    model, info = Gemma4ForConditionalGeneration.from_pretrained(e2b, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        logits = model(torch.arange(3, 40)[None]).logits
    assert logits.isfinite().all() and 0.1 < logits.std() < 10


def test_values_look_like_trained_ones(e2b: Path) -> None:
    """The size of a fresh initialisation, half of the extremes positive, a few groups of zeros, many scales, hardly a group twice."""
    index = json.loads((e2b / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model.language_model.layers.0.mlp.gate_proj.weight"
    with safe_open(e2b / index[name], "pt") as tensors:
        groups = tensors.get_tensor(name).float().reshape(-1, 32)
    assert groups.std() == pytest.approx(1536**-0.5, rel=0.1)
    assert abs(groups.mean()) < 1e-4
    peaks = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    assert 0.49 < (peaks > 0).float().mean() < 0.51
    assert 0 < (groups == 0).all(1).sum() < 100
    assert len(groups.abs().amax(1).unique()) > 100
    assert len(groups.unique(dim=0)) > 0.99 * len(groups)


def test_equal_bytes_for_a_seed_at_any_thread_count(tmp_path: Path) -> None:
    def digest(name: str, *options: str) -> str:
        run("26b-a4b", tmp_path / name, "--layers", "1", "--experts", "2", "--vocab", "64", *options)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    one = digest("one", "--threads", "1")
    assert one == digest("three", "--threads", "3")
    assert one != digest("seed", "--seed", "1")


def test_copies_the_tokenizer(tmp_path: Path) -> None:
    source = tmp_path / "tokenizer"
    source.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "other.txt"):
        (source / name).write_text(name)
    cut = ["--layers", "1", "--experts", "1", "--vocab", "64", "--text-only"]
    run("26b-a4b", tmp_path / "a", *cut, "--tokenizer", source)
    run("26b-a4b", tmp_path / "b", *cut, "--tokenizer", source / "tokenizer.json")
    made = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert {p.name for p in (tmp_path / "a").iterdir()} == made | {"chat_template.jinja"}
    assert {p.name for p in (tmp_path / "b").iterdir()} == made


@pytest.mark.parametrize(("arguments", "message"), [
    (["e2b", "out", "--layers", "3"], "--layers: expected 4 to 35, found 3"), (["e2b", "."], "is not empty"), (["e2b"], "OUT is required")])
def test_refusals(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "file").touch()
    binary = Path(from_environment("NIBBLE_BIN")).with_name("make_checkpoint")
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr
