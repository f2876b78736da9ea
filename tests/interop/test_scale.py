"""`repack` on a cut of a real size: bounded memory, equal bytes however it runs, resumable after SIGKILL at any point and after a full disk.

What reads it back, `verify` and `inspect --grid`, needs little memory too.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Run, from_environment
from huggingface_hub import ModelCard
from peak_memory import run_watched
from transformers import AutoConfig, AutoTokenizer

MIB = 1 << 20
FORM = ["--format", "q4w4a16emb4", "--max-shard-size", "40MB"]
GGUF = ["--format", "gguf", "--keep-towers"]
CARD = "---\nlicense: apache-2.0\npipeline_tag: any-to-any\n---\n# source\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """E2B's shapes, 4 layers and a quarter of the vocabulary: 1.1 GB."""
    directory = tmp_path_factory.mktemp("scale") / "models--someone--cut" / "snapshots" / "0123"
    make = Path(from_environment("NIBBLE_BIN")).with_name("make_checkpoint")
    subprocess.run([make, "e2b", directory, "--layers", "4", "--vocab", "65536", "--tokenizer", tiny, "--shard-gb", "0.5"], check=True)
    (directory / "README.md").write_text(CARD)
    return directory


@pytest.fixture(scope="module")
def undisturbed(nibble: Run, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str], float]]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    start = time.monotonic()
    done = nibble("repack", source, out, *FORM)
    assert done.returncode == 0, done.stderr
    yield out, digests(out), time.monotonic() - start


def digests(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(directory.iterdir())}


def start_repack(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([from_environment("NIBBLE_BIN"), "repack", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def undisturbed_gguf(nibble: Run, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str], float]]:
    """The text model's file, the digests of that one and of the towers', and how long both took."""
    out = tmp_path_factory.mktemp("gguf") / "out.gguf"
    start = time.monotonic()
    report = json.loads(nibble("repack", source, out, *GGUF, "--json").stdout)
    seconds = time.monotonic() - start
    files = [report, report["towers"]]
    assert digests(out.parent) == {Path(file["file"]).name: file["sha256"] for file in files} and len(files) == len(digests(out.parent))
    assert all(file["file_bytes"] == Path(file["file"]).stat().st_size for file in files)
    yield out, digests(out.parent), seconds


@pytest.mark.parametrize("limit", ["256MiB", "128MiB"])
def test_memory_stays_below_the_limit(source: Path, undisturbed: tuple[Path, dict[str, str], float], tmp_path: Path, limit: str) -> None:
    out, err, peak = run_watched("repack", source, tmp_path / "out", *FORM, "--max-memory", limit, "--json")
    run = json.loads(out)["run"]
    assert peak <= int(limit[:-3]) * MIB == run["max_memory_bytes"]
    assert run["peak_memory_bytes"] == pytest.approx(peak, abs=4 * MIB)
    assert "peak memory" in err
    assert digests(tmp_path / "out") == undisturbed[1]


@pytest.mark.parametrize(("limit", "threads"), [("256MiB", "3"), ("64MiB", "1")])
def test_a_gguf_stays_below_it_too(source: Path, undisturbed_gguf: tuple[Path, dict[str, str], float], tmp_path: Path, limit: str, threads: str) -> None:
    out, err, peak = run_watched("repack", source, tmp_path / "out.gguf", *GGUF, "--max-memory", limit, "--threads", threads, "--json")
    run = json.loads(out)["run"]
    assert peak <= int(limit[:-3]) * MIB == run["max_memory_bytes"]
    assert run["peak_memory_bytes"] == pytest.approx(peak, abs=4 * MIB)
    assert "peak memory" in err
    assert digests(tmp_path) == undisturbed_gguf[1]


def test_what_reads_it_back_needs_little_memory(source: Path, undisturbed: tuple[Path, dict[str, str], float],
                                                undisturbed_gguf: tuple[Path, dict[str, str], float]) -> None:
    for command in (["verify", source, undisturbed[0]], ["verify", source, undisturbed_gguf[0]], ["inspect", source, "--grid"]):
        assert run_watched(*command)[2] < 160 * MIB, command


@pytest.mark.parametrize("arguments", [["out", *FORM], ["out.gguf", *GGUF]], ids=["directory", "gguf"])
def test_a_limit_that_cannot_be_kept_is_refused(nibble: Run, source: Path, tmp_path: Path, arguments: list[str]) -> None:
    refused = nibble("repack", source, tmp_path / arguments[0], *arguments[1:], "--max-memory", "16MiB")
    assert refused.returncode == 2 and "this model needs" in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_equal_bytes_at_any_thread_count(nibble: Run, source: Path, undisturbed: tuple[Path, dict[str, str], float], tmp_path: Path, threads: str) -> None:
    assert nibble("repack", source, tmp_path / "out", *FORM, "--threads", threads).returncode == 0
    assert digests(tmp_path / "out") == undisturbed[1]


def test_killed_again_and_again(nibble: Run, source: Path, undisturbed: tuple[Path, dict[str, str], float], tmp_path: Path) -> None:
    _, expected, seconds = undisturbed
    moments, out = random.Random(4), tmp_path / "out"
    n_killed = 0
    while n_killed < 10 and not out.exists():
        job = start_repack(source, out, *FORM, "--resume")
        try:
            job.wait(moments.uniform(0.0, 0.5 * seconds))
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGKILL)
            n_killed += job.wait() == -signal.SIGKILL
        job.communicate()
    assert n_killed >= 2, "it was never interrupted"
    if not out.exists() or (out / "nibble-resume.json").exists():
        last = json.loads(nibble("repack", source, out, *FORM, "--resume", "--json").stdout)
        assert last["run"]["shards_taken_over"] > 0
    assert digests(out) == expected
    assert not (tmp_path / "out.partial").exists()


def test_a_gguf_killed_again_and_again(nibble: Run, source: Path, undisturbed_gguf: tuple[Path, dict[str, str], float], tmp_path: Path) -> None:
    _, expected, seconds = undisturbed_gguf
    moments, out = random.Random(5), tmp_path / "out.gguf"
    n_killed, taken_over = 0, []
    while not out.exists() or (tmp_path / "out.gguf.resume.json").exists():
        # Long enough, now and then, to get to the next note; it ends by itself at last.
        patience = moments.uniform(0.1, 0.4) * seconds if n_killed < 8 else None
        limit = moments.choice(["64MiB", "1GiB"])  # slices of another size
        job = start_repack(source, out, *GGUF, "--resume", "--max-memory", limit, "--threads", "1", "--json")
        try:
            text, err = job.communicate(timeout=patience)
            assert job.returncode == 0, err
            taken_over.append(json.loads(text))
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGKILL)
            job.communicate()
            n_killed += job.returncode == -signal.SIGKILL
    assert n_killed >= 2, "it was never interrupted"
    assert taken_over and taken_over[-1]["run"]["bytes_taken_over"] > 0
    assert digests(tmp_path) == expected
    assert set(expected.values()) == {taken_over[-1]["sha256"], taken_over[-1]["towers"]["sha256"]}
    whole = json.loads(nibble("repack", source, tmp_path / "again.gguf", *GGUF, "--json").stdout)
    assert whole["grid"] == taken_over[-1]["grid"] and whole["tensors"] == taken_over[-1]["tensors"]


def test_an_interrupted_gguf_is_never_mixed_and_a_full_disk_loses_nothing(nibble: Run, source: Path, undisturbed_gguf: tuple[Path, dict[str, str], float],
                                                                          tmp_path: Path) -> None:
    out, partial, manifest = (tmp_path / name for name in ("out.gguf", "out.gguf.partial", "out.gguf.resume.json"))
    job = start_repack(source, out, *GGUF)
    while job.poll() is None and not (manifest.exists() and json.loads(manifest.read_text())["bytes"] > 0):
        time.sleep(0.002)
    job.kill()
    job.communicate()
    assert job.returncode == -signal.SIGKILL and partial.exists()
    plain = nibble("repack", source, out, *GGUF)
    assert plain.returncode == 2 and "left by an interrupted run; --resume goes on with it" in plain.stderr
    other = nibble("repack", source, out, *GGUF, "--resume", "--embeddings", "bf16")
    assert other.returncode == 2 and "cannot go on with it: header_sha256 is" in other.stderr
    left = partial.rename(tmp_path / "left")
    noted = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(noted) | {"bytes": 0, "sha256": ""}))
    partial.symlink_to("/dev/full")  # every write fails with ENOSPC
    full = nibble("repack", source, out, *GGUF, "--resume")
    errors = [line for line in full.stderr.splitlines() if "error" in line]
    assert full.returncode == 2 and len(errors) == 1
    assert "No space left on device" in errors[0]
    partial.unlink(missing_ok=True)
    left.rename(partial)
    manifest.write_text(noted)
    again = nibble("repack", source, out, *GGUF, "--resume", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["run"]["bytes_taken_over"] >= json.loads(noted)["bytes"] > 0
    assert digests(tmp_path) == undisturbed_gguf[1]


def interrupt(source: Path, out: Path) -> Path:
    """A run that is killed when it has finished its second shard."""
    partial = out.with_name(out.name + ".partial")
    job = start_repack(source, out, *FORM)
    while not any(partial.glob("model-00003-of-*")) and job.poll() is None:
        time.sleep(0.001)
    job.kill()
    job.communicate()
    assert job.returncode == -signal.SIGKILL and partial.exists()
    return partial


def test_what_an_interrupted_run_left_is_never_mixed_or_lost(nibble: Run, source: Path, undisturbed: tuple[Path, dict[str, str], float],
                                                              tmp_path: Path) -> None:
    out = tmp_path / "out"
    partial = interrupt(source, out)
    left = digests(partial)
    plain = nibble("repack", source, out, *FORM)
    assert plain.returncode == 2 and "left by an interrupted run; --resume goes on with it" in plain.stderr
    other = nibble("repack", source, out, *FORM, "--resume", "--scale-dtype", "bf16")
    assert other.returncode == 2 and 'options.scale_dtype is "F16" there and "BF16" now' in other.stderr
    shard = sorted(source.glob("*.safetensors"))[0]
    changed = shard.stat()
    os.utime(shard, ns=(changed.st_atime_ns, changed.st_mtime_ns + 1))
    touched = nibble("repack", source, out, *FORM, "--resume")
    os.utime(shard, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert touched.returncode == 2 and f"source.shards.{shard.name}.changed_ns" in touched.stderr
    assert digests(partial) == left
    assert nibble("repack", source, out, *FORM, "--resume").returncode == 0
    assert digests(out) == undisturbed[1]


def test_a_full_disk_is_one_line_and_loses_nothing(nibble: Run, source: Path, undisturbed: tuple[Path, dict[str, str], float], tmp_path: Path) -> None:
    out = tmp_path / "out"
    partial = interrupt(source, out)
    last = sorted(p for p in undisturbed[0].glob("model-*.safetensors"))[-1].name
    (partial / f"{last}.partial").symlink_to("/dev/full")  # every write fails with ENOSPC
    full = nibble("repack", source, out, *FORM, "--resume")
    assert full.returncode == 2
    errors = [line for line in full.stderr.splitlines() if "error" in line]
    assert len(errors) == 1 and "No space left on device; --resume goes on from what is finished" in errors[0] and last in errors[0]
    again = nibble("repack", source, out, *FORM, "--resume", "--json")
    assert again.returncode == 0, again.stderr
    run = json.loads(again.stdout)["run"]
    assert run["shards_taken_over"] == len(list(out.glob("model-*.safetensors"))) - 1
    assert digests(out) == undisturbed[1]


def test_the_directory_is_ready_to_publish(undisturbed: tuple[Path, dict[str, str], float]) -> None:
    out = undisturbed[0]
    checked = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=out, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert {line.split(":")[0] for line in checked.stdout.splitlines()} == {p.name for p in out.iterdir()} - {"SHA256SUMS"}
    card = ModelCard.load(out / "README.md")
    assert card.data.license == "apache-2.0" and card.data.pipeline_tag == "text-generation"
    assert card.data.base_model == "someone/cut" and card.data.base_model_relation == "quantized"
    assert "| ple |" in card.text and "bit-identical" in card.text and str(out) not in card.text
    assert AutoConfig.from_pretrained(out).architectures == ["Gemma4ForCausalLM"]
    assert AutoTokenizer.from_pretrained(out)("What is 2*3?")["input_ids"]
