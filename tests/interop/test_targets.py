"""eval and bench against real servers of the trained model, beside the engine in its own process: nibble serve and llama.cpp's server (vLLM:
test_vllm.py). One server a kind, every suite that it can answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import servers
from conftest import REFERENCE, Run


def test_nibble_serve(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Over HTTP the same tokens, likelihoods and calls as without."""
    servers.ask_all(nibble, tiny, tmp_path / "engine", *REFERENCE)
    with servers.serve(tiny, tmp_path / "server.log", *REFERENCE) as url:
        servers.ask_all(nibble, url, tmp_path / "served")
        bench = json.loads(nibble("bench", url, *servers.BENCH, "--json").stdout)
    found = servers.compared(nibble, tmp_path / "engine", tmp_path / "served")
    assert found["forty"]["identical"] == 40 and found["bfcl-simple"]["identical"] == 10 and found["choice"]["identical"] == 10
    assert found["identity"]["verdict"] == "token by token the same"
    assert found["kl"]["KL divergence from the reference, nats"]["value"] < 1e-6
    assert found["kl"]["perplexity"]["difference"] == pytest.approx(0, abs=1e-3 * found["kl"]["perplexity"]["reference"])
    assert (bench["failed"], bench["stopped_early"]) == (0, 0) and bench["facts"]["server"] == "nibble" and bench["facts"]["weights"] > 2e6


def test_llama_cpp(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """On our GGUF, of which both read the same values; llama.cpp rounds activations to int8 and keeps keys and values in float16.
    Left out: kl, of which its server tells nothing, and tool calls, which it reads by the official template alone (the model knows ours)."""
    gguf = tmp_path / "tiny.gguf"
    assert nibble("repack", tiny, gguf, "--format", "gguf").returncode == 0
    servers.ask_all(nibble, gguf, tmp_path / "engine", but=("kl", "bfcl-simple"))
    with servers.llama(gguf, tmp_path / "llama.log") as url:
        servers.ask_all(nibble, url, tmp_path / "llama", but=("kl", "bfcl-simple"))
        refused = nibble("eval", url, "--suite", "kl", *servers.SUITES["kl"])
        bench = json.loads(nibble("bench", url, *servers.BENCH, "--json").stdout)
    assert refused.returncode == 1 and "no log-probabilities of the prompt" in refused.stderr
    found = servers.compared(nibble, tmp_path / "engine", tmp_path / "llama")
    assert found["forty"]["identical"] == 40 and found["choice"]["identical"] == 10
    assert found["identity"]["verdict"] == "token by token the same"
    assert found["choice"]["Brier score"]["difference"] == pytest.approx(0, abs=1e-3)
    assert (bench["failed"], bench["stopped_early"]) == (0, 0) and bench["cached_share"] < 0.02 and bench["facts"]["context_tokens"] == 2048
