"""Requests of all kinds from 64 connections, some of which go away, against a server whose keys and values do not fit: every answer is the
one that its request gets alone, none is lost, and nothing is left behind. NIBBLE_SOAK_REQUESTS sets how many there are."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Run
from test_serve import NEVER_S, WEATHER, Server
from test_serve_tools import NOW, ORDER

N_CONNECTIONS = 64


def chat(text: str, **options: object) -> tuple[str, dict]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 40} | options


def requests() -> list[tuple[str, dict]]:
    """All different, each with one right answer."""
    place = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}}, "required": ["city", "n"]}
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": place}}
    words = " ".join(str(n) for n in range(60))
    made = [chat(f"What is the capital of {country}?") for country in ("Turkey", "France", "Japan", "Peru", "Kenya", "Norway")]
    made += [chat(f"What is {n}*37?", temperature=1, seed=n) for n in range(12, 18)]
    made += [chat(f"What is {n}+81?", n=3, temperature=1.5, seed=n, logprobs=True, top_logprobs=2) for n in range(20, 24)]
    made += [chat(f"What is the weather in {city}?", tools=[WEATHER]) for city in ("Bern", "Oslo", "Lima")]
    made += [chat(f"Order {n}.", tools=[WEATHER, ORDER, NOW], tool_choice="required", temperature=1.5, seed=n, max_tokens=80) for n in range(3)]
    made += [chat(f"Where is {n}?", response_format=schema, temperature=2, seed=n, max_tokens=60) for n in range(4)]
    made += [chat(f"Choose {n}.", guided_choice=["red", "green", "blue"], temperature=2, seed=n) for n in range(3)]
    made += [chat(f"Tell me about {n}.", stop=["a", "1"], ignore_eos=True, temperature=1, seed=n, max_tokens=100) for n in range(4)]
    made += [chat(f"{words} {n}", ignore_eos=True, max_tokens=150, temperature=0.7, seed=n, min_p=0.05) for n in range(6)]
    made += [("/v1/completions", {"prompt": f"The capital of {n}", "max_tokens": 30, "temperature": 0, "echo": True, "logprobs": 1}) for n in range(3)]
    made += [("/v1/completions", {"prompt": [f"One {n}", f"Two {n} {words}"], "n": 2, "max_tokens": 50, "temperature": 1, "seed": n}) for n in range(3)]
    return made


def summary(choices: list[dict], usage: dict) -> object:
    """What does not differ between two answers to the same request."""
    kept = []
    for choice in choices:
        message = choice.get("message", {"content": choice.get("text")})
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
        kept.append((choice["index"], message.get("content") or "", calls, json.dumps(choice.get("logprobs")), choice["finish_reason"]))
    return sorted(kept), usage["prompt_tokens"], usage["completion_tokens"]


def joined(events: list[dict]) -> object:
    """The summary of a stream."""
    choices: dict[int, dict] = {}
    for event in events:
        for piece in event["choices"]:
            whole = choices.setdefault(piece["index"], {"index": piece["index"], "message": {"content": "", "tool_calls": []}, "logprobs": None})
            delta = piece.get("delta", {"content": piece.get("text")})
            whole["message"]["content"] += delta.get("content") or ""
            whole["message"]["tool_calls"] += delta.get("tool_calls") or []
            whole["finish_reason"] = piece["finish_reason"] or whole.get("finish_reason")
            for name, values in (piece.get("logprobs") or {}).items():
                whole["logprobs"] = whole["logprobs"] or {}
                whole["logprobs"][name] = [*(whole["logprobs"].get(name) or []), *values] if values is not None else values
    return summary(list(choices.values()), events[-1]["usage"])


class Client:
    """One connection, made anew behind a request that was given up."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connection = self.connect()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=NEVER_S)

    def send(self, path: str, body: dict) -> None:
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})

    def ask(self, path: str, body: dict) -> object:
        self.send(path, body)
        response = self.connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        if not body.get("stream"):
            answer = json.loads(data)
            return summary(answer["choices"], answer["usage"])
        *events, done, _ = data.split(b"\n\n")
        assert done == b"data: [DONE]"
        return joined([json.loads(event.removeprefix(b"data: ")) for event in events if event.startswith(b"data: ")])

    def give_up(self, path: str, body: dict, after_a_byte: bool) -> None:
        self.send(path, body)
        if after_a_byte:
            self.connection.getresponse().read(1)
        self.connection.close()
        self.connection = self.connect()


def is_at_rest(server: Server) -> bool:
    """No request runs or waits, and no page is used but by the prefix cache."""
    pages = ('nibble_kv_pages{model_name="packed",kind="full",state="used"', 'nibble_kv_pages{model_name="packed",kind="sliding",state="used"')
    return all(server.metric(name) == 0 for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", *pages))


@pytest.fixture(scope="module")
def server(nibble: Run, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """24 sequences at once, but keys and values for a few long ones."""
    model = tmp_path_factory.mktemp("soak") / "packed"
    nibble("repack", tiny, model, "--format", "q4w4a16emb4", check=True)
    server = Server(model, "--kv-memory", os.environ.get("NIBBLE_SOAK_KV", "256KiB"), "--max-num-seqs", "24", "--max-queue", "1024", "--max-model-len", "512").wait()
    yield server
    log = server.stop()
    assert server.process.returncode == 0, log[-3000:]  # nor did a sanitizer find anything


def test_every_answer_is_its_own(server: Server) -> None:
    """Cases I1, I6, I7 and I8 of the field reports."""
    n_requests = int(os.environ.get("NIBBLE_SOAK_REQUESTS", "640"))
    made = requests()
    alone = [Client(server).ask(*request) for request in made]
    assert len({json.dumps(answer) for answer in alone}) > len(made) * 2 // 3
    server.until(lambda: is_at_rest(server))
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    lock = threading.Lock()

    def run(seed: int) -> None:
        chance = random.Random(seed)
        client = Client(server)
        for _ in range(n_requests // N_CONNECTIONS // 2):
            idx = chance.randrange(len(made))
            path, body = made[idx]
            if chance.random() < 0.5:
                body = body | {"stream": True, "stream_options": {"include_usage": True}}
            gives_up = chance.random() < 0.2
            answer = client.give_up(path, body, after_a_byte=chance.random() < 0.5) if gives_up else client.ask(path, body)
            with lock:
                counts["given up" if gives_up else "answered"] += 1
                if not gives_up and answer != alone[idx]:
                    wrong.append(f"{body}:\nalone {alone[idx]}\nhere  {answer}")

    def bytes_at_rest(seed: int) -> float:
        """Of the server, behind half of the requests."""
        with ThreadPoolExecutor(N_CONNECTIONS) as pool:
            list(pool.map(run, range(seed, seed + N_CONNECTIONS)))
        server.until(lambda: is_at_rest(server))
        return server.metric("process_resident_memory_bytes")

    warm_bytes, end_bytes = bytes_at_rest(0), bytes_at_rest(1000)
    n_preempted = server.metric("vllm:num_preemptions_total")
    print(f"{dict(counts)}, {len(wrong)} wrong, {n_preempted:.0f} preempted, {warm_bytes / 2**20:.0f} MiB half-way, {end_bytes / 2**20:.0f} MiB at the end")
    assert not wrong, wrong[0]
    assert sum(counts.values()) == n_requests // N_CONNECTIONS // 2 * 2 * N_CONNECTIONS
    assert n_preempted > 0
    assert end_bytes < warm_bytes * 1.1 + (16 << 20)
    assert [Client(server).ask(*request) for request in made] == alone
