"""Clients that know nothing of nibble: LangChain's, and schemathesis, which asks what the served description says may be asked, and what it
says may not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import from_environment
from test_serve import NEVER_S, Server


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    server = Server(tiny, "--max-model-len", "256").wait()
    yield server
    server.stop()


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([from_environment("NIBBLE_CLIENTS_PYTHON"), *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=NEVER_S * 2)


def test_langchain(server: Server, tmp_path: Path) -> None:
    done = run(Path(__file__).with_name("langchain_client.py"), f"http://127.0.0.1:{server.port}/v1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    assert answers["whole"] == answers["stream"] == "Ankara" and answers["batch"][0] == "Ankara" and answers["finish"] == "stop"
    assert answers["stream_usage"]["output_tokens"] == answers["usage"]["output_tokens"] > 0
    [call], [streamed], [forced] = answers["call"], answers["streamed_call"], answers["forced"]
    assert (call["name"], call["args"]) == (streamed["name"], streamed["args"]) == ("get_weather", {"city": "Bern"})
    assert forced["name"] == "get_weather" and set(forced["args"]) == {"city"}
    assert answers["after"]
    assert len(answers["places"]) == 2  # pydantic has checked them


def test_schemathesis(server: Server, tmp_path: Path) -> None:
    """Case I5 of the field reports. NIBBLE_SCHEMATHESIS_EXAMPLES sets how many bodies each endpoint gets. What a schema cannot say, such as that
    a field goes with another one alone, makes a valid body a refused one."""
    examples = os.environ.get("NIBBLE_SCHEMATHESIS_EXAMPLES", "10")
    done = run("-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json", "--max-examples", examples, "--seed", "1",
               "--generation-deterministic", "--phases", "coverage,fuzzing", "--mode", "all", "--checks", "all", "--exclude-checks", "positive_data_acceptance", "--no-color", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    assert server.get("/health")[0] == 200 and server.client().models.list().data[0].id == "tiny"
