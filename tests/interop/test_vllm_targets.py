"""eval and bench against real vLLM on CPU, which serves what `nibble repack` wrote, beside our engine on the same files. One start for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import servers
from conftest import REFERENCE, Run


def test_vllm(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Both read the same int4 values. vLLM computes in float16, so a near tie may turn: at most one answer, and likelihoods nearly the same."""
    packed = tmp_path / "q4w4a16"
    assert nibble("repack", tiny, packed, "--format", "q4w4a16").returncode == 0
    servers.ask_all(nibble, packed, tmp_path / "engine", *REFERENCE)
    log = tmp_path / "vllm.log"
    with servers.vllm(packed, log) as url:
        servers.ask_all(nibble, url, tmp_path / "vllm")
        bench = json.loads(nibble("bench", url, *servers.BENCH, "--server-log", log, "--json").stdout)
    found = servers.compared(nibble, tmp_path / "engine", tmp_path / "vllm")
    assert found["forty"]["identical"] >= 39 and found["bfcl-simple"]["identical"] >= 9 and found["choice"]["identical"] == 10
    assert found["identity"]["identical answers"]["value"] >= 0.9
    assert found["choice"]["Brier score"]["difference"] == pytest.approx(0, abs=1e-3)
    assert found["kl"]["KL divergence from the reference, nats"]["value"] < 1e-3 and found["kl"]["same best token"]["value"] > 0.98
    assert (bench["failed"], bench["stopped_early"]) == (0, 0) and bench["cached_share"] < 0.02
    facts = bench["facts"]
    assert facts["server"] == "vllm" and facts["version"].startswith("0.") and facts["context_tokens"] == 2048 and facts["kv_tokens"] > 10_000
