"""`nibble bench` measures what it is asked for, in a form that programs read."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from conftest import Run


def test_rows(nibble: Run, tiny: Path) -> None:
    done = nibble("bench", tiny, "--prompt", "20,300", "--context", "10,40", "--batch", "1,3", "--tokens", "5", "--runs", "3", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = [(row["work"], row["context_tokens"], row["sequences"]) for row in result["rows"]]
    assert rows == [("prefill", 20, 1), ("prefill", 300, 1), ("decode", 10, 1), ("decode", 10, 3), ("decode", 40, 1), ("decode", 40, 3)]
    for row in result["rows"]:
        assert len(row["runs_tokens_per_s"]) == 3 and min(row["runs_tokens_per_s"]) > 0
        assert row["tokens_per_s"] == pytest.approx(statistics.median(row["runs_tokens_per_s"]))
    # The text model's matrices, the head included, in bf16; the per-layer table is looked up only.
    assert 1_000_000 < result["weight_bytes_per_token"] < 2_500_000
    assert result["peak_resident_bytes"] > result["weight_bytes_per_token"]
    assert result["read_bandwidth_bytes_per_s"] > 1e8 and 0 < result["share_of_read_bandwidth"] < 2 and result["load_s"] > 0


def test_many_sequences_run_at_once(nibble: Run, tiny: Path) -> None:
    """More than an engine runs unless told: else the tokens of those that wait would be counted, too (an error of `bench` itself)."""
    done = nibble("bench", tiny, "--prompt", "1", "--context", "10", "--batch", "1,40", "--tokens", "5", "--runs", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["sequences"] for row in json.loads(done.stdout)["rows"]] == [1, 1, 40]


def test_table(nibble: Run, tiny: Path) -> None:
    done = nibble("bench", tiny, "--prompt", "20", "--context", "10", "--tokens", "3", "--runs", "1")
    assert done.returncode == 0, done.stderr
    assert "tok/s" in done.stdout and "decoding of one sequence reaches" in done.stdout


def test_a_prompt_beyond_the_context_is_refused(nibble: Run, tiny: Path) -> None:
    done = nibble("bench", tiny, "--prompt", "5000")
    assert done.returncode == 2 and "2048" in done.stderr and done.stdout == ""
