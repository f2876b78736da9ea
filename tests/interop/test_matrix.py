"""`nibble compare --matrix`: builds served in turn, failures on the way, resuming, uploading, stopping."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import servers
from conftest import Run, from_environment
from test_eval import records_of

# A server that answers every chat with "7" and ends without a word after LIFE of them.
MORTAL = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import servers

life = int(sys.argv[3])


def answer(body):
    global life
    life -= 1
    if life < 0:
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(5)
    return 200, servers.chat_reply("7")


with servers.double(answer, port=int(sys.argv[2])):
    signal.pause()
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def mortal(port: int, life: int) -> list[str]:
    return [sys.executable, "-c", MORTAL, str(Path(__file__).parent), str(port), str(life)]


def write(path: Path, **fields: object) -> Path:
    path.write_text(json.dumps(fields))
    return path


@pytest.fixture
def packed(nibble: Run, tiny: Path, tmp_path: Path) -> Path:
    assert nibble("repack", tiny, tmp_path / "q4", "--format", "q4w4a16").returncode == 0
    return tmp_path / "q4"


def test_the_loop(nibble: Run, tiny: Path, packed: Path, tmp_path: Path, port: int) -> None:
    out, away = tmp_path / "runs", tmp_path / "away"
    away.mkdir()
    builds = [{"name": "bf16", "model": str(tiny), "port": port}, {"name": "missing", "model": str(tmp_path / "nothing"), "port": port},
              {"name": "mortal", "command": mortal(port, 25), "url": f"http://127.0.0.1:{port}/v1"},
              {"name": "q4", "model": str(packed), "port": port, "arguments": ["--threads", "1"]}]
    # One question at a time: what the mortal server has answered has arrived when it dies.
    suites = [{"suite": "forty", "arguments": ["--concurrency", "1"]}, {"suite": "identity", "arguments": ["--n", "5"]},
              {"suite": "bench", "arguments": "--runs 1 --batch 2 --tokens 8 --prompt 100 --long 32".split()}]
    plan = write(tmp_path / "plan.json", out=str(out), builds=builds, suites=suites, ready_s=60, upload=["cp", "-r", "{dir}", f"{away}/{{build}}"])
    done = nibble("compare", "--matrix", plan, "--json")
    assert done.returncode == 1, done.stderr
    # What failed is named with its reason; the rest was done, compared and uploaded.
    failed = done.stderr.split("failed, and to be done by the same command again:")[1].strip().splitlines()
    assert len(failed) == 2, done.stderr
    assert failed[0].strip().startswith("missing: the server ended with exit status 2: ") and "nothing" in failed[0]
    assert failed[1].strip().startswith("mortal: forty: the server ended with exit status 5: out of memory")
    report = json.loads(done.stdout)
    assert [build["name"] for build in report["builds"]] == ["bf16", "q4"]
    assert {c["suite"] for c in report["comparisons"]} == {"forty", "identity"} and report["builds"][0]["weight_bytes"] > 2e6
    assert len(records_of(out / "bf16/forty")) == 40 and len(records_of(out / "mortal/forty")) == 25
    assert (away / "q4/forty/summary.json").exists() and (away / "mortal/forty/records.jsonl").exists()

    # Again: what is done is not served again, the missing model has come, the mortal one goes on where it died and dies later.
    times = {path: path.stat().st_mtime_ns for path in [*out.glob("bf16/**/*"), *out.glob("q4/**/*")] if path.name != "plan.json"}
    (tmp_path / "nothing").symlink_to(packed)
    again = nibble("compare", "--matrix", plan, "--json")
    assert again.returncode == 1 and "bf16: all suites were done before" in again.stderr, again.stderr
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert (out / "missing/bench/summary.json").exists() and [b["name"] for b in json.loads(again.stdout)["builds"]] == ["bf16", "missing", "q4"]
    assert len(records_of(out / "mortal/forty")) == 40 and len(records_of(out / "mortal/identity")) == 5
    assert "mortal: bench: the server ended with exit status 5: out of memory" in again.stderr.split("failed,")[1]


def test_another_plan_is_not_mixed_in(nibble: Run, tiny: Path, tmp_path: Path, port: int) -> None:
    build = {"name": "a", "model": str(tiny), "port": port}
    plan = write(tmp_path / "plan.json", out=str(tmp_path / "runs"), builds=[build], suites=[{"suite": "forty"}])
    assert nibble("compare", "--matrix", plan).returncode == 0
    write(plan, out=str(tmp_path / "runs"), builds=[build], suites=[{"suite": "forty", "arguments": ["--n", "80"]}])
    refused = nibble("compare", "--matrix", plan)
    assert refused.returncode == 2 and "runs/a: holds runs of another plan: " in refused.stderr and "--n" in refused.stderr
    write(plan, out=str(tmp_path / "runs"), builds=[build | {"arguments": ["--kv", "int8"]}], suites=[{"suite": "forty"}])
    refused = nibble("compare", "--matrix", plan)
    assert refused.returncode == 2 and "arguments" in refused.stderr
    refused = nibble("compare", tmp_path)
    assert refused.returncode == 2 and "--matrix" in refused.stderr


def test_a_server_that_is_never_ready(nibble: Run, tmp_path: Path, port: int) -> None:
    build = {"name": "slow", "command": ["sh", "-c", "echo still loading; exec sleep 600"], "url": f"http://127.0.0.1:{port}"}
    plan = write(tmp_path / "plan.json", out=str(tmp_path / "runs"), builds=[build], suites=[{"suite": "forty"}], ready_s=1)
    done = nibble("compare", "--matrix", plan, timeout=60)
    assert done.returncode == 1 and 'slow: the server was not ready in 1 s ("ready_s"): still loading' in done.stderr


def test_a_port_that_is_taken(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    with servers.double(lambda body: (200, servers.chat_reply("7"))) as url:
        build = {"name": "a", "model": str(tiny), "port": int(url.rpartition(":")[2])}
        plan = write(tmp_path / "plan.json", out=str(tmp_path / "runs"), builds=[build], suites=[{"suite": "forty"}])
        done = nibble("compare", "--matrix", plan)
    assert done.returncode == 1 and f"a: another server answers at {url}" in done.stderr


def test_an_interrupt_stops_the_server(tiny: Path, tmp_path: Path, port: int) -> None:
    suite = {"suite": "forty", "arguments": ["--n", "4000"]}
    plan = write(tmp_path / "plan.json", out=str(tmp_path / "runs"), builds=[{"name": "a", "model": str(tiny), "port": port}], suites=[suite])
    matrix = subprocess.Popen([from_environment("NIBBLE_BIN"), "compare", "--matrix", plan], stderr=subprocess.PIPE, text=True)
    records = tmp_path / "runs/a/forty/records.jsonl"
    for _ in range(600):
        if records.exists() and records.read_text():
            break
        time.sleep(0.05)
    os.kill(matrix.pid, signal.SIGINT)
    _, stderr = matrix.communicate(timeout=60)
    assert matrix.returncode == 2 and "interrupted; the same command goes on" in stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
