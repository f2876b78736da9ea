"""`nibble compare` on runs of the trained model: figures against NumPy and SciPy's definitions, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import Run


@pytest.fixture(scope="module")
def runs(nibble: Run, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders bf16, q4w4a16 and minmax, each with a run of 400 questions."""
    root = tmp_path_factory.mktemp("compare")
    for name, flags in (("bf16", None), ("q4w4a16", ()), ("minmax", ("--rounding", "minmax"))):
        model = tiny
        if flags is not None:
            model = root / f"model-{name}"
            assert nibble("repack", tiny, model, "--format", "q4w4a16", *flags).returncode == 0
        done = nibble("eval", model, "--suite", "forty", "--n", "400", "--out", root / name / "forty", "--activations", "f32")
        assert done.returncode == 0, done.stderr
    return root


def scores(run: Path) -> dict[str, int]:
    return {r["id"]: r["score"] for r in map(json.loads, (run / "forty/records.jsonl").read_text().splitlines())}


def compared(nibble: Run, *arguments: str | Path) -> dict:
    done = nibble("compare", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_figures(nibble: Run, runs: Path) -> None:
    report = compared(nibble, runs / "bf16", runs / "q4w4a16", runs / "minmax")
    assert [b["name"] for b in report["builds"]] == ["bf16", "q4w4a16", "minmax"]
    before = scores(runs / "bf16")
    for comparison in report["comparisons"]:
        after = scores(runs / comparison["build"])
        difference = np.array([after[i] - before[i] for i in before])
        accuracy = comparison["metrics"][0]
        assert accuracy["difference"] == pytest.approx(difference.mean())
        assert (comparison["gained"], comparison["lost"]) == ((difference > 0).sum(), (difference < 0).sum())
        rng = np.random.default_rng(1)
        means = difference[rng.integers(len(difference), size=(20_000, len(difference)))].mean(1)
        assert accuracy["interval"] == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.004)
    # The exact repack answers as its source does; weights come from the files.
    assert report["comparisons"][0]["identical"] == 400
    assert report["builds"][0]["weight_bytes"] > 2 * report["builds"][1]["weight_bytes"] > 0
    assert "missing: no claim" in nibble("compare", runs / "bf16", runs / "minmax").stdout


def test_markdown(nibble: Run, runs: Path, tmp_path: Path) -> None:
    assert nibble("compare", runs / "bf16", f"rounded={runs}/minmax", "--markdown", tmp_path / "card.md").returncode == 0
    lines = (tmp_path / "card.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert any("| rounded | q4w4a16 |" in line for line in tables) and any(set(line) <= set("|- ") for line in tables)


def test_what_is_not_comparable_is_refused(nibble: Run, tiny: Path, runs: Path, tmp_path: Path) -> None:
    assert nibble("eval", tiny, "--suite", "forty", "--out", tmp_path / "other/forty").returncode == 0
    refused = nibble("compare", runs / "bf16", tmp_path / "other")
    assert refused.returncode == 2 and "not comparable: items: 40 here, 400 there" in refused.stderr and refused.stdout == ""
    refused = nibble("compare", runs / "bf16", tmp_path)
    assert refused.returncode == 2 and "manifest.json" in refused.stderr


def test_html(nibble: Run, runs: Path, tmp_path: Path) -> None:
    """One page, nothing from elsewhere, well-formed, with a plot of the differences and the answers that changed."""
    page = tmp_path / "report.html"
    assert nibble("compare", runs / "bf16", runs / "q4w4a16", f"<rounded>={runs}/minmax", "--html", page).returncode == 0
    text = page.read_text()
    assert "<script" not in text and "http" not in text and "&lt;rounded&gt;" in text and "<rounded>" not in text
    plots = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    circles = [circle for svg in plots for circle in svg.iter("circle")]
    assert len(plots) == 2 and len(circles) == 2
    report = compared(nibble, runs / "bf16", runs / "q4w4a16", f"<rounded>={runs}/minmax")
    assert all(flip["prompt"] in text for comparison in report["comparisons"] for flip in comparison["flips"])
    assert "prefers-color-scheme:dark" in text and "@media print" in text
