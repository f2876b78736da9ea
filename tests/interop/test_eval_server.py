"""`nibble eval URL`: the same suites on servers. A double for what goes wrong; real llama.cpp for the numbers."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
import servers
from conftest import Run
from test_eval import evaluated, records_of


def solve(prompt: str) -> str:
    numbers = [int(n) for n in re.findall(r"\d+", prompt)]
    if "*" in prompt:
        return str(numbers[0] * numbers[1])
    return str(numbers[0] + numbers[1] - numbers[2]) if numbers else "I do not know"


def right(body: dict) -> tuple[int, dict]:
    return 200, servers.chat_reply(solve(body["messages"][0]["content"]), completion_tokens=3)


def test_requests_are_greedy_chats(nibble: Run, tmp_path: Path) -> None:
    bodies: list[dict] = []

    def answer(body: dict) -> tuple[int, dict]:
        bodies.append(body)
        return right(body)

    with servers.double(answer) as url:
        summary = evaluated(nibble, url + "/v1/", "--suite", "forty", "--out", tmp_path / "run", "--concurrency", "4")
    assert summary["correct"] == 30 and summary["kinds"]["capital"] == {"correct": 0, "total": 10}
    assert len(bodies) == 40 and all(set(b) == {"model", "messages", "temperature", "max_tokens"} for b in bodies)
    assert all((b["model"], b["temperature"], b["max_tokens"]) == ("double", 0, 64) for b in bodies)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["target"] == {"kind": "server", "server": "tests", "model": "double"} and manifest["facts"]["version"] == "unknown"


@pytest.mark.parametrize("fault", [429, 503, None], ids=["busy", "failing", "closed"])
def test_what_passes_is_asked_again(nibble: Run, tmp_path: Path, fault: int | None) -> None:
    seen: set[str] = set()
    lock = threading.Lock()

    def answer(body: dict) -> tuple[int, dict] | None:
        prompt = body["messages"][0]["content"]
        with lock:
            first = prompt not in seen
            seen.add(prompt)
        if not first:
            return right(body)
        return None if fault is None else (fault, {"error": {"message": "not now"}})

    with servers.double(answer, retry_after="1" if fault == 429 else None) as url:
        summary = evaluated(nibble, url, "--suite", "forty", "--n", "40", "--out", tmp_path / "run", "--concurrency", "40")
    assert summary["n"] == 40 and all(r["attempts"] == 2 for r in records_of(tmp_path / "run"))


def test_what_does_not_pass_fails_and_goes_on_later(nibble: Run, tmp_path: Path) -> None:
    with servers.double(lambda body: (400, {"error": {"message": "no such luck"}}) if "*" in body["messages"][0]["content"] else right(body)) as url:
        done = nibble("eval", url, "--suite", "forty", "--out", tmp_path / "run")
    assert done.returncode == 1 and "15 of 40 requests failed" in done.stderr and "no such luck" in done.stderr
    assert not (tmp_path / "run/summary.json").exists() and len(records_of(tmp_path / "run")) == 25
    asked: list[dict] = []

    def answer(body: dict) -> tuple[int, dict]:
        asked.append(body)
        return right(body)

    with servers.double(answer) as url:
        assert evaluated(nibble, url, "--suite", "forty", "--out", tmp_path / "run")["n"] == 40
    assert len(asked) == 15


def test_no_server(nibble: Run) -> None:
    done = nibble("eval", "http://127.0.0.1:1", "--suite", "forty")
    assert done.returncode == 2 and "127.0.0.1:1/v1/models" in done.stderr
    with servers.double(right) as url:
        done = nibble("eval", url, "--suite", "forty", "--model", "other")
    assert done.returncode == 2 and "has no model other; it has double" in done.stderr


def test_llama_cpp(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Greedy answers of real llama.cpp on our GGUF are those of our engine on the same file."""
    gguf = tmp_path / "tiny.gguf"
    assert nibble("repack", tiny, gguf, "--format", "gguf").returncode == 0
    with servers.llama(gguf, tmp_path / "llama.log") as url:
        theirs = evaluated(nibble, url, "--suite", "forty", "--out", tmp_path / "llama/forty")
    ours = evaluated(nibble, gguf, "--suite", "forty", "--out", tmp_path / "nibble/forty")
    assert theirs["correct"] == ours["correct"] == 40
    compared = json.loads(nibble("compare", tmp_path / "nibble", tmp_path / "llama", "--json").stdout)
    assert compared["comparisons"][0]["identical"] == 40 and not compared["comparisons"][0]["notes"]
