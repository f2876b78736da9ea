"""`nibble compare` on runs of the trained model: figures against NumPy and SciPy's definitions, refusals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import ROOT, Run
from playwright.sync_api import sync_playwright


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
    assert len(plots) == 2 and len(circles) == 2  # differences, anatomy; no speeds
    report = compared(nibble, runs / "bf16", runs / "q4w4a16", f"<rounded>={runs}/minmax")
    assert all(flip["prompt"] in text for comparison in report["comparisons"] for flip in comparison["flips"])
    assert "prefers-color-scheme:dark" in text and "@media print" in text


# Of each plot: its marks, and pairs of labels that lie on each other, as the browser sets them.
LOOK = """() => [...document.querySelectorAll('svg')].map(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return {marks: svg.querySelectorAll('circle, rect').length, labels: boxes.length, smallest: Math.min(...boxes.map(b => b[1].height)),
          clash: boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => meet(a[1], b[1])).map(b => a[0] + ' | ' + b[0]))};
})"""


@pytest.mark.parametrize("view", [{"viewport": {"width": 1200, "height": 900}}, {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}],
                         ids=["desk", "phone"])
def test_the_committed_report_in_a_browser(view: dict) -> None:
    """docs/tiny-report.html: asks for nothing, complains of nothing, and its plots can be read."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium: run this through scripts/test interop"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_context(**view).new_page()
        asked: list[str] = []
        problems: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.goto((ROOT / "docs/tiny-report.html").as_uri())
        plots = page.evaluate(LOOK)
        assert len(asked) == 1 and not problems
        assert len(plots) >= 5 and all(plot["marks"] >= 10 and plot["labels"] > 10 and plot["smallest"] > 9 for plot in plots), plots
        assert not [clash for plot in plots for clash in plot["clash"]]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("table").first.inner_text().count("%") > 20
        browser.close()
