"""Servers that eval and bench are tested against: a double that answers as told, and real llama.cpp."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from conftest import from_environment

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
def llama(gguf: Path, log: Path) -> Iterator[str]:
    with process(from_environment("NIBBLE_LLAMA_PYTHON"), Path(__file__).with_name("llama_server.py"), gguf, log=log) as address:
        yield address
