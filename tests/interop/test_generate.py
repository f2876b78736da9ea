"""`nibble generate` on the trained model: prompts, text, JSON, sampling, packed forms, errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tokenizers import Tokenizer

import test_logits

Nibble = Callable[..., CompletedProcess]
QUESTIONS = ["What is the capital of Turkey?", "What is 54*28?", "Who are you?"]


@pytest.fixture(scope="session")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


def answer(nibble: Nibble, *arguments: str | Path) -> dict:
    done = nibble("generate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert "tok/s" in done.stderr and "GB/s" in done.stderr
    return json.loads(done.stdout)


def failure(nibble: Nibble, *arguments: str | Path, **options: object) -> str:
    done = nibble(*arguments, **options)
    assert done.returncode == 2 and done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("question", QUESTIONS)
def test_chat(nibble: Nibble, tiny: Path, tokenizer: Tokenizer, question: str) -> None:
    got = answer(nibble, tiny, question, "--max-tokens", "40")
    prompt = f"<bos><|turn>user\n{question}<turn|>\n<|turn>model\n"
    assert got["prompt_ids"] == tokenizer.encode(prompt, add_special_tokens=False).ids
    assert got["prompt_ids"].count(2) == 1
    assert got["text"] == tokenizer.decode(got["token_ids"], skip_special_tokens=True)
    stops = json.loads((tiny / "generation_config.json").read_text())["eos_token_id"]
    stopped = got["token_ids"][-1] in stops
    assert got["finish_reason"] == ("stop" if stopped else "length")
    assert not any(token in stops for token in got["token_ids"][:-1])
    assert len(got["token_ids"]) == 40 or stopped
    counts = len(got["prompt_ids"]), len(got["token_ids"])
    assert got["usage"] == {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
    assert nibble("generate", tiny, question, "--max-tokens", "40").stdout == got["text"] + "\n"
    assert nibble("generate", tiny, "-", "--max-tokens", "40", input=question).stdout == got["text"] + "\n"


def test_raw_has_one_bos(nibble: Nibble, tiny: Path, tokenizer: Tokenizer) -> None:
    expected = [2] + tokenizer.encode("The capital", add_special_tokens=False).ids
    for prompt in ("The capital", "<bos>The capital"):
        assert answer(nibble, tiny, prompt, "--raw", "--max-tokens", "1")["prompt_ids"] == expected


def test_sampling(nibble: Nibble, tiny: Path) -> None:
    def tokens(*flags: str) -> list[int]:
        return answer(nibble, tiny, QUESTIONS[1], "--max-tokens", "20", "--ignore-eos", *flags)["token_ids"]

    greedy = tokens()
    hot = ["--temperature", "3"]
    assert tokens(*hot, "--seed", "1") == tokens(*hot, "--seed", "1") != tokens(*hot, "--seed", "2")
    assert tokens(*hot, "--top-k", "1") == tokens(*hot, "--top-p", "0") == greedy


@pytest.mark.parametrize("form", ["bf16", "q4w4a16", "q4w4a16emb4"])
def test_logprobs(nibble: Nibble, tiny: Path, tmp_path: Path, form: str) -> None:
    """Against transformers on the values that the checkpoint holds."""
    path = tiny
    if form != "bf16":
        path = tmp_path / form
        done = nibble("repack", tiny, path, "--format", form)
        assert done.returncode == 0, done.stderr
    ids = answer(nibble, path, QUESTIONS[1], "--max-tokens", "1")["prompt_ids"]
    test_logits.check(path, test_logits.generate(nibble, path, ids, steps=100))


@pytest.mark.parametrize("form", ["bf16", "w8a8emb4", "gguf"])
def test_cache(nibble: Nibble, tiny: Path, tmp_path: Path, form: str) -> None:
    """The second start takes the weights as the first one left them, until the model's files change."""
    path = tmp_path / {"bf16": "copy", "gguf": "tiny.gguf"}.get(form, form)
    if form == "bf16":
        shutil.copytree(tiny, path)
    else:
        done = nibble("repack", tiny, path, "--format", form)
        assert done.returncode == 0, done.stderr
    cache = tmp_path / "cache"
    cache.mkdir()

    def tokens(*flags: str | Path) -> list[int]:
        return answer(nibble, path, QUESTIONS[1], "--max-tokens", "20", "--ignore-eos", *flags)["token_ids"]

    expected = tokens()
    assert tokens("--cache", cache) == expected
    (kept,) = cache.iterdir()
    written_ns = kept.stat().st_mtime_ns
    assert tokens("--cache", cache) == expected
    assert kept.stat().st_mtime_ns == written_ns

    whole = kept.read_bytes()
    kept.write_bytes(whole[:-64])
    assert kept.name in failure(nibble, "generate", path, "x", "--cache", cache)
    kept.write_bytes(whole)
    os.utime(path / "config.json" if path.is_dir() else path, ns=(1, 1))
    assert tokens("--cache", cache) == expected
    assert len(list(cache.iterdir())) == 2
    assert str(tmp_path / "missing") in failure(nibble, "generate", path, "x", "--cache", tmp_path / "missing")


def test_errors(nibble: Nibble, tiny: Path, tmp_path: Path) -> None:
    assert str(tmp_path) in failure(nibble, "generate", tmp_path, "x")
    assert "id 999999" in failure(nibble, "generate", tiny, "--prompt-ids", "2,999999")
    assert "PROMPT" in failure(nibble, "generate", tiny)
    assert failure(nibble, "generate", tiny, "x", "--prompt-ids", "2")
    assert "temperature" in failure(nibble, "generate", tiny, "x", "--temperature", "-1")
    assert "mmx" in failure(nibble, "generate", tiny, "x", env=os.environ | {"NIBBLE_KERNELS": "mmx"})


@pytest.mark.parametrize("command", ["inspect", "plan", "repack", "verify", "generate", "tokenize", "eval", "bench", "compare", "serve"])
def test_help_is_plain_text(nibble, command):
    text = nibble(command, "--help").stdout
    assert text.isascii() and text.replace("\n", "").isprintable()
    assert "ENUM" not in text
