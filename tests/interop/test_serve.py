"""`nibble serve` on the trained model, through the openai client and by hand: answers, streams, tools, limits, signals."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from conftest import Run, from_environment

TURKEY = [{"role": "user", "content": "What is the capital of Turkey?"}]
BERN = [{"role": "user", "content": "What is the weather in Bern?"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Current weather in a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "The city."}}, "required": ["city"]}}}
GREEDY = {"model": "tiny", "temperature": 0}
NEVER_S = 300  # what takes longer does not happen


class Server:
    """One `nibble serve` on a free port; its log is read as it comes or, if not `reads_log`, at the end, and kept."""

    def __init__(self, model: Path | None, *flags: str, env: dict[str, str] | None = None, reads_log: bool = True) -> None:
        arguments = [str(model), "--port", "0", "--threads", "1", *flags] if model else []
        self.process = subprocess.Popen([from_environment("NIBBLE_BIN"), "serve", *arguments], stderr=subprocess.PIPE, text=True, env=os.environ | (env or {}))
        self.port = int(self.process.stderr.readline().rsplit(":", 1)[1])
        self.log: list[str] = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        if reads_log:
            self.reader.start()

    def wait(self) -> Server:
        return self.until(lambda: self.get("/health")[0] == 200)

    def until(self, condition: Callable[[], bool]) -> Server:
        """Waits for what happens soon, whatever that is on this machine."""
        deadline = time.monotonic() + NEVER_S
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.005)
        return self

    def request(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=NEVER_S)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()

    def get(self, path: str) -> tuple[int, str]:
        status, _, body = self.request("GET", path)
        return status, body.decode()

    def post(self, path: str, body: object, **headers: str) -> tuple[int, dict]:
        status, _, answer = self.request("POST", path, body, **headers)
        return status, json.loads(answer)

    def metric(self, name: str) -> float:
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.get("/metrics")[1].splitlines() if line.startswith(name))

    def client(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, **options)

    def end(self) -> str:
        """Waits for it; the log."""
        self.process.wait(timeout=NEVER_S)
        if self.reader.ident is None:
            self.reader.start()
        self.reader.join()
        return "".join(self.log)

    def stop(self) -> str:
        if self.process.poll() is None:
            self.process.terminate()
        return self.end()


Start = Callable[..., Server]


@pytest.fixture
def start(tiny: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def run(*flags: str, model: Path = tiny, **options: object) -> Server:
        servers.append(Server(model, *flags, **options))
        return servers[-1].wait()

    yield run
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    server = Server(tiny).wait()
    yield server
    server.stop()


def test_chat_says_what_generate_says(server: Server, nibble: Run, tiny: Path) -> None:
    for question in (TURKEY[0]["content"], "What is 47*83?", "Who are you?"):
        messages = [{"role": "user", "content": question}]
        answer = server.client().chat.completions.create(messages=messages, max_completion_tokens=64, **GREEDY)
        expected = json.loads(nibble("generate", tiny, question, "--max-tokens", "64", "--json").stdout)
        assert answer.choices[0].message.content == expected["text"]
        assert answer.choices[0].finish_reason == expected["finish_reason"]
        assert answer.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == expected["usage"]


def test_streams(server: Server) -> None:
    whole = server.client().chat.completions.create(messages=TURKEY, **GREEDY)
    chunks = list(server.client().chat.completions.create(messages=TURKEY, stream=True, stream_options={"include_usage": True}, **GREEDY))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content == "Ankara"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"

    async def ask() -> str:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
        stream = await client.chat.completions.create(messages=TURKEY, stream=True, **GREEDY)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    assert asyncio.run(ask()) == "Ankara"


def test_completions(server: Server) -> None:
    client = server.client()
    prompt = "<|turn>user\nWhat is the capital of Turkey?<turn|>\n<|turn>model\n"
    answer = client.completions.create(prompt=prompt, max_tokens=20, logprobs=2, **GREEDY)
    choice = answer.choices[0]
    assert choice.text == "Ankara" and "".join(choice.logprobs.tokens) == "Ankara"
    assert all(max(top.values()) == value for top, value in zip(choice.logprobs.top_logprobs, choice.logprobs.token_logprobs))
    echoed = client.completions.create(prompt="The capital", max_tokens=1, logprobs=1, echo=True, **GREEDY).choices[0]
    assert echoed.logprobs.tokens[0] == "<bos>" and echoed.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in echoed.logprobs.token_logprobs[1:])
    assert len(client.completions.create(prompt=["a", "b"], n=2, max_tokens=2, **GREEDY).choices) == 4


@pytest.mark.parametrize("streams", [False, True])
def test_tools(server: Server, streams: bool) -> None:
    """Case F9 of the field reports."""
    client = server.client()
    for choice, reason in (("auto", "tool_calls"), ("required", "tool_calls"), ({"type": "function", "function": {"name": "get_weather"}}, "stop")):
        arguments = dict(messages=BERN, tools=[WEATHER], tool_choice=choice, **GREEDY)
        if streams:
            with client.chat.completions.stream(**arguments) as stream:
                answer = stream.get_final_completion()
        else:
            answer = client.chat.completions.create(**arguments)
        call = answer.choices[0].message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Bern"})
        assert answer.choices[0].finish_reason == reason and not answer.choices[0].message.content
    arguments["tool_choice"] = "none"
    assert client.chat.completions.create(max_tokens=5, **arguments).choices[0].message.tool_calls is None


def test_a_tools_result_goes_back(server: Server) -> None:
    client = server.client()
    message = client.chat.completions.create(messages=BERN, tools=[WEATHER], **GREEDY).choices[0].message
    history = [*BERN, message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 degrees"}]
    assert client.chat.completions.create(messages=history, tools=[WEATHER], max_tokens=20, **GREEDY).choices[0].finish_reason


def test_same_answer_alone_in_a_crowd_and_again(server: Server) -> None:
    """Cases I7 and I8 of the field reports."""

    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"What is {number}*37?"}]
        return server.client().chat.completions.create(messages=messages, max_tokens=30, **GREEDY).choices[0].message.content

    numbers = list(range(12, 44))
    alone = [ask(number) for number in numbers]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, numbers)) == alone
    assert [ask(number) for number in numbers] == alone


def test_seed(server: Server) -> None:
    def ask(**options: object) -> list[str]:
        answer = server.client().chat.completions.create(model="tiny", messages=TURKEY, temperature=2, top_p=1, max_tokens=12, **options)
        return [choice.message.content for choice in answer.choices]

    three = ask(n=3, seed=5)
    assert three == ask(n=3, seed=5) and len(set(three)) > 1
    assert three[0] == ask(seed=5)[0] and three[1] == ask(seed=6)[0]


def test_parameters_have_effect(server: Server) -> None:
    def ask(**options: object) -> str:
        return server.client().chat.completions.create(messages=TURKEY, **GREEDY | options).choices[0].message.content

    first = server.post("/tokenize", {"prompt": "A", "add_special_tokens": False})[1]["tokens"][0]
    assert not ask(logit_bias={str(first): -100}, max_tokens=5).startswith("A")
    assert len(ask(extra_body={"min_tokens": 10, "ignore_eos": False}, max_tokens=10)) > len("Ankara")
    assert ask(stop=["kar"]) == "An"


def test_a_second_turn_uses_the_first(start: Start) -> None:
    """Case C12 of the field reports."""

    def second_turn(server: Server) -> tuple[str, int]:
        history = [*TURKEY, {"role": "assistant", "content": "Ankara"}, {"role": "user", "content": "What is 47*83?"}]
        answer = server.client().chat.completions.create(messages=history, max_tokens=20, **GREEDY)
        return answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens

    warm = start()
    warm.client().chat.completions.create(messages=TURKEY, **GREEDY)
    warm_text, n_cached = second_turn(warm)
    fresh_text, n_fresh = second_turn(start())
    assert warm_text == fresh_text and n_cached > 0 == n_fresh


def test_errors(server: Server) -> None:
    """Cases H6, H9 and I4 of the field reports."""
    client = server.client()
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=TURKEY)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=TURKEY, top_p=2, **GREEDY)
    assert caught.value.param == "top_p"
    for streams in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(messages=[{"role": "user", "content": "a " * 3000}], stream=streams, **GREEDY)
        assert caught.value.code == "context_length_exceeded" and "2048" in caught.value.message
    status, answer = server.post("/v1/chat/completions", b"{" * 100_000)
    assert status == 400 and answer["error"]["code"] == "invalid_json"
    assert server.request("POST", "/tokenize", b" " * (40 << 20))[0] == 413
    assert server.get("/health")[0] == 200


def test_ignored_fields_are_named(server: Server) -> None:
    """Case H7 of the field reports."""
    _, headers, _ = server.request("POST", "/v1/chat/completions", {"messages": TURKEY, "user": "u", "max_tokens": 1})
    assert headers["X-Nibble-Ignored"] == "user"


def test_key(start: Start) -> None:
    server = start("--api-key", "secret")
    with pytest.raises(openai.AuthenticationError):
        server.client().models.list()
    assert openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="secret").models.list().data[0].id == "tiny"


def test_sagemaker(tiny: Path) -> None:
    """The container gives nothing but an environment."""
    environment = {"NIBBLE_SERVE_MODEL": str(tiny), "NIBBLE_SERVE_SERVED_MODEL_NAME": "a model,other", "NIBBLE_SERVE_API_KEY": "", "NIBBLE_SERVE_MAX_QUEUE": "3"}
    server = Server(None, env=environment | {"NIBBLE_SERVE_PORT": "0"})
    try:
        server.wait()
        assert server.get("/ping")[0] == 200
        assert [m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]] == ["a model", "other"]
        assert server.post("/invocations", {"messages": TURKEY, "temperature": 0})[1]["choices"][0]["message"]["content"] == "Ankara"
        assert server.post("/invocations", {"prompt": "a", "max_tokens": 1})[1]["object"] == "text_completion"
        assert b"data: [DONE]" in server.request("POST", "/invocations", {"messages": TURKEY, "stream": True})[2]
    finally:
        server.stop()
    for name, value in (("NIBBLE_SERVE_PORTS", "1"), ("NIBBLE_SERVE_MAX_QUEUE", "many")):
        done = subprocess.run([from_environment("NIBBLE_BIN"), "serve"], capture_output=True, text=True, timeout=NEVER_S, env=os.environ | environment | {name: value})
        assert done.returncode == 2 and name.removeprefix("NIBBLE_SERVE_").lower().replace("_", "-") in done.stderr.lower().replace("_", "-")


def long_request() -> dict:
    return {"messages": TURKEY, "ignore_eos": True, "max_tokens": 1500, "stream": True, "temperature": 0}


def test_a_client_that_goes_ends_its_work(server: Server) -> None:
    """Case I1 of the field reports."""
    for streams in (True, False):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/v1/chat/completions", json.dumps(long_request() | {"stream": streams}), {"Content-Type": "application/json"})
        server.until(lambda: server.metric("vllm:num_requests_running") > 0)
        n_before = server.metric("vllm:generation_tokens_total")
        connection.sock.close()
        server.until(lambda: server.metric("vllm:num_requests_running") == 0)
        assert server.metric("vllm:generation_tokens_total") - n_before < 1500
        assert server.metric("nibble_kv_pages{model_name=\"tiny\",kind=\"full\",state=\"used\"") == 0


def test_shutdown(start: Start) -> None:
    """Case I9 of the field reports."""
    server = start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/chat/completions", json.dumps(long_request()), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.readline()
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: server.get("/ready")[0] == 503)
    assert server.post("/v1/chat/completions", {"messages": TURKEY})[0] == 503
    assert response.read().endswith(b"data: [DONE]\n\n")
    assert "shutting down" in server.end()
    assert server.process.returncode == 0


def test_a_second_signal_ends_at_once(start: Start) -> None:
    server = start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/chat/completions", json.dumps(long_request()), {"Content-Type": "application/json"})
    connection.getresponse().readline()
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: server.get("/ready")[0] == 503)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=NEVER_S) == 128 + signal.SIGTERM


def test_a_model_that_does_not_load(nibble: Run, tmp_path: Path) -> None:
    done = nibble("serve", tmp_path, "--port", "0", timeout=NEVER_S)
    assert done.returncode == 2 and str(tmp_path) in done.stderr


def test_damaged_files_are_not_served(start: Start, nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Case D9 of the field reports: a file that is not what SHA256SUMS says."""
    model = tmp_path / "tiny"
    shutil.copytree(tiny, model)
    shards = sorted(model.glob("*.safetensors"))
    (model / "SHA256SUMS").write_text("".join(f"{hashlib.sha256(shard.read_bytes()).hexdigest()}  {shard.name}\n" for shard in shards))
    assert start(model=model).get("/health")[0] == 200
    data = bytearray(shards[1].read_bytes())
    data[-1] ^= 1
    shards[1].write_bytes(data)
    done = nibble("serve", model, "--port", "0", timeout=NEVER_S)
    assert done.returncode == 2 and f"{shards[1].name}: damaged" in done.stderr
    assert start("--no-checksums", model=model).get("/health")[0] == 200


def test_a_log_that_nobody_reads_holds_nothing_up(start: Start) -> None:
    server = start(reads_log=False)
    for _ in range(1500):
        assert server.get("/nothing")[0] == 404
    assert server.client().chat.completions.create(messages=TURKEY, **GREEDY).choices[0].message.content == "Ankara"
    server.process.terminate()
    assert 100 < server.end().count("/nothing") < 1500
    assert server.process.returncode == 0


def test_log(start: Start) -> None:
    server = start("--log-json")
    server.client().chat.completions.create(messages=TURKEY, **GREEDY)
    lines = [json.loads(line) for line in server.stop().splitlines() if line.startswith("{")]
    chat = [line for line in lines if line["path"] == "/v1/chat/completions"]
    assert chat[0]["completion_tokens"] == 5 and chat[0]["status"] == 200 and "Turkey" not in json.dumps(chat)
