"""`nibble eval` on the engine in its own process: records, scores, what a run leaves behind and how it goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Run


def evaluated(nibble: Run, *arguments: str | Path) -> dict:
    done = nibble("eval", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def records_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]


def test_forty(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Each answer is what `nibble generate` gives to the same question alone; each score is that of the published expressions.
    Field report L4: records hold the first prompt ids, and <bos> stands once (in completions: test_suites.py, kl)."""
    out = tmp_path / "runs" / "a"
    summary = evaluated(nibble, tiny, "--suite", "forty", "--out", out)
    assert summary == json.loads((out / "summary.json").read_text())
    records = sorted(records_of(out), key=lambda r: int(r["id"]))
    assert [record["id"] for record in records] == [str(i) for i in range(40)]
    for record in records:
        assert record["first_prompt_ids"][0] == 2 and len(record["first_prompt_ids"]) == 5 and record["bos_count"] == 1
        expected = re.escape(record["expected"])
        pattern = {"product": rf"\b{expected}\b", "sum": rf"(?<![\d-]){expected}\b", "capital": f"(?i){expected.replace('Brasilia', 'Bras[ií]lia')}"}
        assert record["score"] == bool(re.search(pattern[record["kind"]], record["answer"]))
        alone = json.loads(nibble("generate", tiny, record["prompt"], "--max-tokens", "64", "--json").stdout)
        assert (alone["text"], alone["token_ids"]) == (record["answer"], record["token_ids"])
        assert record["prompt_tokens"] == alone["usage"]["prompt_tokens"] and record["time_s"] > 0
    assert summary["correct"] == sum(record["score"] for record in records) and summary["bos_count"] == [1, 1]
    assert {kind: counts["total"] for kind, counts in summary["kinds"].items()} == {"product": 15, "sum": 15, "capital": 10}


def test_a_run_goes_on(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    whole = evaluated(nibble, tiny, "--suite", "forty", "--out", tmp_path / "run")
    lines = (tmp_path / "run/records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run/records.jsonl").write_text("".join(lines[:30]) + lines[30][:17])
    again = evaluated(nibble, tiny, "--suite", "forty", "--out", tmp_path / "run")
    kept = (tmp_path / "run/records.jsonl").read_text().splitlines(keepends=True)
    assert kept[:30] == lines[:30] and len(kept) == 40
    assert (again["correct"], again["kinds"]) == (whole["correct"], whole["kinds"])


@pytest.mark.parametrize(("flags", "what"), [(("--n", "80"), "suite/items: 80 here, 40 there"), (("--seed", "5"), "suite/settings/seed: 5 here"),
                                             (("--kv", "int8"), 'target/kv: "int8" here, "bf16" there')])
def test_another_run_is_not_mixed_in(nibble: Run, tiny: Path, tmp_path: Path, flags: tuple[str, ...], what: str) -> None:
    evaluated(nibble, tiny, "--suite", "forty", "--out", tmp_path / "run")
    before = (tmp_path / "run/records.jsonl").read_bytes()
    refused = nibble("eval", tiny, "--suite", "forty", "--out", tmp_path / "run", *flags)
    assert refused.returncode == 2 and what in refused.stderr
    assert (tmp_path / "run/records.jsonl").read_bytes() == before


def test_unknown_suite(nibble: Run, tiny: Path) -> None:
    refused = nibble("eval", tiny, "--suite", "fifty")
    assert refused.returncode == 2 and "suite" in refused.stderr
