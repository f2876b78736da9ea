"""Servers that eval and bench are tested against: a double that answers as told, and real ones: nibble, llama.cpp, vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from conftest import ROOT, Run, from_environment

# What a double makes of a request's body: (status, reply), or None to close the connection without a word.
Answer = Callable[[dict], "tuple[int, dict] | None"]


def chat_reply(text: str = "", prompt_tokens: int = 10, completion_tokens: int = 1, cached: int = 0, **message: object) -> dict:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [{"message": {"role": "assistant", "content": text, **message}, "text": text, "finish_reason": "stop"}], "usage": usage}


@contextlib.contextmanager
def double(answer: Answer, retry_after: str | None = None, port: int = 0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def send(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status == 429 and retry_after:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            listed = {"data": [{"id": "double", "owned_by": "tests"}]}
            self.send(*((200, json.dumps(listed).encode()) if self.path == "/v1/models" else (404, b"{}")))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answered = answer(body)
            if answered is None:
                self.close_connection = True
                return
            status, reply = answered
            if not body.get("stream") or status != 200:
                self.send(status, json.dumps(reply).encode())
                return
            chunk = {"choices": [{"text": reply["choices"][0]["text"], "finish_reason": "length"}], "usage": reply["usage"]}
            self.send(status, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def process(*command: str | Path, log: Path, seconds: int = 240) -> Iterator[str]:
    """A server that prints "address: URL" when it is ready and ends with its stdin."""
    with log.open("w") as stderr, subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                                                   text=True, errors="replace") as server:
        timer = threading.Timer(seconds, server.kill)
        timer.start()
        try:
            address = next((line.split()[1] for line in server.stdout if line.startswith("address:")), None)
            assert address, log.read_text()[-2000:]
            drain = threading.Thread(target=server.stdout.read, daemon=True)
            drain.start()
            yield address
        finally:
            timer.cancel()
            server.kill()


@contextlib.contextmanager
def llama(gguf: Path, log: Path, *mmproj: Path) -> Iterator[str]:
    with process(from_environment("NIBBLE_LLAMA_PYTHON"), Path(__file__).with_name("llama_server.py"), gguf, *mmproj, log=log) as address:
        yield address


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def listening(*command: str | Path, port: int, log: Path, seconds: int = 300, **variables: str) -> Iterator[str]:
    """A server that listens on `port` and is ready when it says so at /health."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as out, subprocess.Popen(list(map(str, command)), stdout=out, stderr=out, start_new_session=True,
                                                env=os.environ | variables) as server:
        try:
            end = time.monotonic() + seconds
            while True:
                assert server.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
                with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(f"{url}/health") as reply:
                    if reply.status == 200:
                        break
                time.sleep(0.2)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def serve(model: Path, log: Path, *flags: str) -> contextlib.AbstractContextManager[str]:
    port = free_port()
    return listening(from_environment("NIBBLE_BIN"), "serve", model, "--port", str(port), *flags, port=port, log=log)


def vllm(model: Path, log: Path) -> contextlib.AbstractContextManager[str]:
    """In float16: its int4 kernel for CPUs has no float32. Its command `vllm` does not start without the metadata of a package of that name."""
    port = free_port()
    return listening(from_environment("NIBBLE_VLLM_PYTHON"), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name",
                     "tiny", "--dtype", "float16", "--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager", "--enable-auto-tool-choice",
                     "--tool-call-parser", "gemma4", "--port", str(port), port=port, log=log, VLLM_CPU_KVCACHE_SPACE="1",
                     VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")


# What every kind of server is asked.
SUITES = {"forty": ("--concurrency", "4"), "identity": ("--n", "10"), "bfcl-simple": ("--data", ROOT / "tools/tiny_calls", "--n", "10"),
          "choice": ("--n", "10", "--top-logprobs", "20"), "kl": ("--data", ROOT / "docs/GRID.md", "--n", "1", "--top-logprobs", "5")}
BENCH = ("--runs", "1", "--batch", "2", "--tokens", "8", "--prompt", "100", "--context", "30", "--long", "40")


def ask_all(nibble: Run, target: str | Path, out: Path, *flags: str, but: tuple[str, ...] = ()) -> None:
    for suite, arguments in SUITES.items():
        if suite not in but:
            done = nibble("eval", target, "--suite", suite, *arguments, *flags, "--out", out / suite)
            assert done.returncode == 0, done.stderr


def compared(nibble: Run, *builds: Path) -> dict[str, dict]:
    """Suite -> the second build's comparison with the first."""
    done = nibble("compare", *builds, "--json")
    assert done.returncode == 0, done.stderr
    return {comparison["suite"]: comparison | {m["name"]: m for m in comparison["metrics"]} for comparison in json.loads(done.stdout)["comparisons"]}
