"""`nibble bench URL`: figures from a server's own counts, prompts that no cache knows, what is flagged."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from pathlib import Path

import pytest
import servers
from conftest import Run

QUICK = ("--runs", "3", "--batch", "1,4", "--tokens", "20", "--prompt", "300", "--long", "216")
PER_TOKEN_S, FIXED_S = 0.001, 0.1


class Steady:
    """Takes FIXED_S and PER_TOKEN_S a token, and notes what that became, so that the right figures are known; counts a token a word."""

    def __init__(self, cached: float = 0, stops_at: int = 10**6, word: str = "x ") -> None:
        self.prompts: list[str] = []
        self.took_s: defaultdict[int, list[float]] = defaultdict(list)
        self.cached, self.stops_at, self.word = cached, stops_at, word

    def __call__(self, body: dict) -> tuple[int, dict]:
        self.prompts.append(body["prompt"])
        assert body["temperature"] == 0 and body.get("ignore_eos", body["max_tokens"] == 1)
        n = min(body["max_tokens"], self.stops_at)
        start = time.monotonic()
        time.sleep(FIXED_S + n * PER_TOKEN_S)
        self.took_s[n].append(time.monotonic() - start)
        words = len(body["prompt"].split())
        return 200, servers.chat_reply(self.word * n, words, n, cached=int(words * self.cached))


def bench(nibble: Run, *arguments: str | Path) -> dict:
    done = nibble("bench", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_figures(nibble: Run, tmp_path: Path) -> None:
    server = Steady()
    with servers.double(server) as url:
        result = bench(nibble, url, *QUICK, "--out", tmp_path / "run")
        decode, one, four, long = result["rows"]
        took_s = {n: statistics.median(times) for n, times in server.took_s.items()}
        per_token_s = (took_s[216] - took_s[16]) / 200
        assert decode["tokens_per_s"] == pytest.approx(1 / per_token_s, rel=0.15)
        assert decode["fixed_s"] == pytest.approx(took_s[16] - 16 * per_token_s, abs=0.05)
        assert one["tokens_per_s"] == pytest.approx(20 / took_s[20], rel=0.3)
        assert 2 < four["tokens_per_s"] / one["tokens_per_s"] < 4.5 and four["slowest"] <= four["tokens_per_s"] <= four["fastest"]
        assert long["prompt_tokens"] == pytest.approx(300, rel=0.1) and 0 < long["first_token_s"] < 1
        assert (result["failed"], result["stopped_early"], result["flags"]) == (0, 0, [])
        # A second run with the same flags asks nothing that the first one asked (field report L2).
        bench(nibble, url, *QUICK)
    assert len(set(server.prompts)) == len(server.prompts)
    assert len({prompt.split()[0] for prompt in server.prompts}) == len(server.prompts)
    compared = nibble("compare", f"a={tmp_path}/run", f"b={tmp_path}/run")
    assert compared.returncode == 0 and "1.00x" in compared.stdout


def test_an_answer_without_text_has_no_first_token(nibble: Run) -> None:
    with servers.double(Steady(word="")) as url:
        *_, long = bench(nibble, url, *QUICK)["rows"]
        shown = nibble("bench", url, *QUICK).stdout
    assert long["first_token_s"] is None and long["runs_first_token_s"] == []
    assert "no text came" in shown


def test_what_a_cache_gave_is_flagged(nibble: Run) -> None:
    """Field report L2: a warm prefix cache inflates throughput."""
    with servers.double(Steady(cached=0.5)) as url:
        result = bench(nibble, url, *QUICK)
    assert result["cached_share"] == pytest.approx(0.5, abs=0.05) and "came from the server's cache" in result["flags"][0]


def test_answers_that_stop_early_are_counted(nibble: Run) -> None:
    with servers.double(Steady(stops_at=50)) as url:
        result = bench(nibble, url, *QUICK)
    assert result["stopped_early"] == 3 + 3 and "stopped before the length" in result["flags"][0]


def test_failed_requests_fail_the_run(nibble: Run) -> None:
    steady = Steady()
    with servers.double(lambda body: steady(body) if len(body["prompt"].split()) < 250 else (400, {"error": {"message": "too long"}})) as url:
        done = nibble("bench", url, *QUICK, "--context", "100")
    assert done.returncode == 1 and "too long" in done.stdout and "failed" in done.stdout


def test_llama_cpp(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "tiny.gguf"
    assert nibble("repack", tiny, gguf, "--format", "gguf").returncode == 0
    with servers.llama(gguf, tmp_path / "llama.log") as url:
        result = bench(nibble, url, "--runs", "1", "--batch", "1,2", "--tokens", "10", "--prompt", "300", "--context", "50", "--long", "100")
    assert result["failed"] == 0 and result["stopped_early"] == 0 and result["cached_share"] < 0.02
    assert [row["work"] for row in result["rows"]] == ["decode", "throughput", "throughput", "long prompt"]
    assert all(row["tokens_per_s"] > 0 for row in result["rows"][1:]) and result["facts"]["context_tokens"] == 2048
