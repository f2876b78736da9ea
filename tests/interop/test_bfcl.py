"""`--suite bfcl-simple` against the official checker of the package bfcl-eval: the same verdict on right, wrong and malformed calls of
every record. A double gives the calls, so what is tested is the whole way from a server's reply to the score."""

from __future__ import annotations

import json
import random
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import servers
from conftest import Run, from_environment
from test_eval import evaluated, records_of

Call = dict[str, object]
Mutation = Callable[[Call, dict, random.Random], object]


@pytest.fixture(scope="module")
def data() -> Path:
    return Path(from_environment("NIBBLE_BFCL")) / "bfcl_eval/data"


@pytest.fixture(scope="module")
def check() -> Callable[[dict, object, dict], bool]:
    sys.path.insert(0, from_environment("NIBBLE_BFCL"))
    # The table of all models that it can call, with their clients; the checker reads one flag of it.
    table = types.ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=True))
    sys.modules[table.__name__] = table
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    def valid(function: dict, calls: object, answer: dict) -> bool:
        try:
            return ast_checker([function], calls, [answer], Language.PYTHON, "simple_python", "model")["valid"]
        except (TypeError, AttributeError, KeyError, IndexError):
            return False  # what it cannot read is no right answer

    return valid


def right_call(answer: dict, rng: random.Random) -> Call:
    """One accepted value of each parameter; optional ones sometimes left out."""
    call: Call = {}
    for key, accepted in next(iter(answer.values())).items():
        value = rng.choice(accepted)
        if value == "" and ("" in accepted):
            continue
        if isinstance(value, dict):
            value = {k: rng.choice([v for v in vs if v != ""] or [""]) for k, vs in value.items()}
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            value = [{k: rng.choice(vs) for k, vs in element.items()} for element in value]
        call[key] = value
    return call


def change(value: object, rng: random.Random) -> object:
    if isinstance(value, bool):
        return rng.choice([not value, int(value), str(value)])
    if isinstance(value, int):
        return rng.choice([value + 1, float(value), str(value), [value], True, None])
    if isinstance(value, float):
        return rng.choice([value + 0.5, int(value), str(value), {}])
    if isinstance(value, str):
        return rng.choice([value.upper(), value.replace(" ", "_") + ".", value + "x", 5, "", f"'{value}'", value.replace(",", " ,")])
    if isinstance(value, list):
        return rng.choice([value[::-1], value + value[:1], [], [str(v) for v in value], [float(v) if isinstance(v, int) else v for v in value], {}, ""])
    if isinstance(value, dict):
        return rng.choice([dict(list(value.items())[1:]), value | {"extra": 1}, {k: change(v, rng) for k, v in value.items()}, [], "x"])
    return 1


def changed_value(call: Call, function: dict, rng: random.Random) -> Call:
    key = rng.choice(sorted(call) or ["none"])
    return call | {key: change(call.get(key), rng)}


def other_parameters(call: Call, function: dict, rng: random.Random) -> Call:
    key = rng.choice(sorted(call) or ["none"])
    return rng.choice([{k: v for k, v in call.items() if k != key}, call | {"surplus": 1}, {}])


KINDS: dict[str, Mutation] = {"right": lambda call, function, rng: call, "value": changed_value, "value again": changed_value,
                              "parameters": other_parameters}


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts(nibble: Run, data: Path, check: Callable, tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    lines = [json.loads(line) for line in (data / "BFCL_v4_simple_python.json").read_text().splitlines()]
    answers = [json.loads(line)["ground_truth"][0] for line in (data / "possible_answer/BFCL_v4_simple_python.json").read_text().splitlines()]
    replies, expected = {}, {}
    for record, answer in zip(lines, answers, strict=True):
        function = record["function"][0]
        call = KINDS[kind](right_call(answer, rng), function, rng)
        name = function["name"].replace(".", "_")
        replies[record["question"][0][0]["content"], name] = {"name": name, "arguments": json.dumps(call)}
        expected[record["id"]] = check(function, [{name: call}], answer)

    def reply(body: dict) -> tuple[int, dict]:
        tool = body["tools"][0]["function"]
        return 200, servers.chat_reply(tool_calls=[{"type": "function", "function": replies[body["messages"][-1]["content"], tool["name"]]}])

    with servers.double(reply) as url:
        evaluated(nibble, url, "--suite", "bfcl-simple", "--data", data, "--out", tmp_path / "run")
    found = {r["id"]: bool(r["score"]) for r in records_of(tmp_path / "run")}
    differ = {i: (expected[i], next(r["fault"] for r in records_of(tmp_path / "run") if r["id"] == i)) for i in expected if expected[i] != found[i]}
    assert len(found) == 400 and not differ
    assert kind != "right" or sum(expected.values()) > 390
    assert kind == "right" or 0.3 < sum(not v for v in expected.values()) / 400


def test_malformed_calls_and_schemas(nibble: Run, data: Path, tmp_path: Path) -> None:
    odd = [[], [{"name": "x", "arguments": "{}"}], [{"name": "x", "arguments": "{"}], [{"name": "x", "arguments": "[1]"}]]
    bodies: list[dict] = []

    def reply(body: dict) -> tuple[int, dict]:
        bodies.append(body)
        name = body["tools"][0]["function"]["name"]
        calls = [call | {"name": name} for call in odd[len(bodies) % 4]] * (2 if len(bodies) % 5 == 0 else 1)
        return 200, servers.chat_reply("no", tool_calls=[{"type": "function", "function": call} for call in calls])

    with servers.double(reply) as url:
        done = nibble("eval", url, "--suite", "bfcl-simple", "--data", data, "--n", "60", "--json")
    summary = json.loads(done.stdout)
    assert done.returncode == 0 and summary["correct"] == 0 and "no answer is right: check the setup" in summary["flags"]
    for body in bodies:
        text = json.dumps(body["tools"])
        assert body["tool_choice"] == "auto" and body["max_tokens"] == 512 and len(body["tools"]) == 1
        assert "." not in body["tools"][0]["function"]["name"]
        assert not any(f'"type": "{word}"' in text for word in ("dict", "float", "tuple", "any"))


def test_the_engine_calls(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Without a server: what the trained model writes in Gemma's format is read as calls."""
    asked = {
        "weather": ("What is the weather in Ankara?", "get_weather", "Weather of a city.", {"city": "string"}, {"city": ["Ankara"]}),
        "timer": ("Set a timer for 25 minutes.", "set_timer", "Start a timer.", {"minutes": "integer"}, {"minutes": [25]}),
    }
    (tmp_path / "possible_answer").mkdir()
    questions, answers = [], []
    for key, (question, name, description, types_of, right) in asked.items():
        parameters = {"type": "dict", "properties": {k: {"type": t} for k, t in types_of.items()}, "required": list(types_of)}
        function = {"name": name, "description": description, "parameters": parameters}
        questions.append({"id": key, "question": [[{"role": "user", "content": question}]], "function": [function]})
        answers.append({"id": key, "ground_truth": [{name: right}]})
    for path, records in ((".", questions), ("possible_answer", answers)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / path / "BFCL_v4_simple_python.json").write_text(text)
    done = nibble("eval", tiny, "--suite", "bfcl-simple", "--data", tmp_path, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["correct"] == 2, done.stdout + done.stderr
