"""The suites on the trained model in this process: labels, likelihoods, identity, needles."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import servers
from conftest import REFERENCE, Run
from test_eval import evaluated, records_of


@pytest.fixture(scope="module")
def rounded(nibble: Run, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suites") / "minmax"
    assert nibble("repack", tiny, path, "--format", "q4w4a16", "--rounding", "minmax").returncode == 0
    return path


def test_choice(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    summary = evaluated(nibble, tiny, "--suite", "choice", "--n", "40", "--out", tmp_path / "run", *REFERENCE)
    assert summary["accuracy"] > 0.9 and summary["calibration_error"] < 0.1 and summary["brier_score"] < 0.2
    record = records_of(tmp_path / "run")[0]
    top = json.loads(nibble("generate", tiny, record["prompt"], "--max-tokens", "1", "--top-logprobs", "20", "--json", *REFERENCE).stdout)["top_logprobs"][0]
    assert sum(record["probabilities"]) == pytest.approx(1) and 1 <= record["labels_returned"] <= len(record["labels"])
    assert max(record["probabilities"]) >= math.exp(top[0][1]) - 1e-6


def test_kl_is_near_nothing_for_an_exact_repack_and_not_for_a_rounded_one(nibble: Run, tiny: Path, rounded: Path, tmp_path: Path) -> None:
    """Field report L1: a repack is judged against its own source."""
    text = tmp_path / "text.txt"
    text.write_text("What is the capital of Turkey? Ankara. " * 60)
    exact = tmp_path / "exact"
    assert nibble("repack", tiny, exact, "--format", "q4w4a16").returncode == 0
    for name, model in (("bf16", tiny), ("exact", exact), ("rounded", rounded)):
        flags = ("--suite", "kl", "--data", text, "--n", "2", "--top-logprobs", "64", *REFERENCE)
        summary = evaluated(nibble, model, *flags, "--out", tmp_path / "runs" / name / "kl")
        record = records_of(tmp_path / "runs" / name / "kl")[0]
        assert len(record["tokens"]) == len(record["logprobs"]) == len(record["top"]) == record["prompt_tokens"] - 1 and record["bos_count"] == 1
        if name == "bf16":
            ids = tmp_path / "runs/bf16/kl"
            logprobs = [p for r in records_of(ids) for p in r["logprobs"]]
            assert summary["perplexity"] == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)))
    runs = tmp_path / "runs"
    report = json.loads(nibble("compare", runs / "bf16", runs / "exact", runs / "rounded", "--json").stdout)
    kl = {c["build"]: {m["name"]: m["value"] for m in c["metrics"]}["KL divergence from the reference, nats"] for c in report["comparisons"]}
    # Our engine multiplies code and scale without rounding the product to bf16, which is what is left of the exact repack.
    assert 0 <= kl["exact"] < 2e-4 and kl["rounded"] > 20 * kl["exact"]
    assert all(not c["notes"] for c in report["comparisons"])
    swapped = nibble("compare", runs / "rounded", runs / "bf16", "--json")
    assert json.loads(swapped.stdout)["comparisons"][0]["notes"] == []  # the same pair, seen from the other side


def test_identity(nibble: Run, tiny: Path, rounded: Path, tmp_path: Path) -> None:
    for name, model in (("a", tiny), ("b", tiny), ("c", rounded)):
        evaluated(nibble, model, "--suite", "identity", "--out", tmp_path / name / "identity", *REFERENCE)
    report = json.loads(nibble("compare", tmp_path / "a", tmp_path / "b", tmp_path / "c", "--json").stdout)
    same, other = report["comparisons"]
    assert same["verdict"] == "token by token the same" and same["flips"] == []
    for flip in other["flips"]:
        assert flip["reference_answer"] != flip["answer"] and "parts at token" in flip["expected"]


def test_long_on_a_server_that_reads(nibble: Run, tmp_path: Path) -> None:
    """A double that forgets the middle of long texts: the grid shows where."""
    def answer(body: dict) -> tuple[int, dict]:
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        words = len(text.split())
        needle = re.search(r"secret number is (\d+)", text)
        place = needle.start() / len(text) if needle else 0
        found = needle and not (words > 600 and 0.3 < place < 0.7)
        return 200, servers.chat_reply(needle[1] if found else "no idea", prompt_tokens=words)

    with servers.double(answer) as url:
        summary = evaluated(nibble, url, "--suite", "long", "--lengths", "400,1000", "--depths", "0,50,100", "--n", "2", "--out", tmp_path / "run/long")
    found = {kind: counts["correct"] for kind, counts in summary["kinds"].items()}
    assert found == {"400/0": 2, "400/50": 2, "400/100": 2, "1000/0": 2, "1000/50": 0, "1000/100": 2}
    tokens = {r["kind"]: r["prompt_tokens"] for r in records_of(tmp_path / "run/long")}
    assert tokens["400/0"] == pytest.approx(400, rel=0.25) and tokens["1000/0"] == pytest.approx(1000, rel=0.1)
    page = tmp_path / "page.html"
    assert nibble("compare", f"a={tmp_path}/run", f"b={tmp_path}/run", "--html", page).returncode == 0
    assert page.read_text().count('class="heat"') == 2 * 6
