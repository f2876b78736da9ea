"""Conversations rendered by nibble equal, byte for byte, what jinja2 makes of a chat template, set up as `transformers` sets it
up: the official template of the larger Gemma 4 models, and the trained model's own one, which follows the smaller models."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from conftest import Run
from transformers.utils.chat_template_utils import _compile_jinja_template

Conversation = dict[str, Any]

USER = {"role": "user", "content": "What is the weather in Paris and in Rome?"}


def call(name: str, arguments: Any, call_id: str | None = None) -> dict[str, Any]:
    given = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return given if call_id is None else {"id": call_id, **given}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": f"Does {name}.", **more}
    return {"type": "function", "function": function if parameters is None else {**function, "parameters": parameters}}


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Which city"},
        "Unit": {"type": "string", "enum": ["c", "f"], "description": ""},
        "days": {"type": "integer", "nullable": True},
        "limit": {"type": ["integer", "null"], "description": "At most"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"], "default": None}, "description": "Labels"},
        "grid": {"type": "array", "items": {"type": ["number", "null"], "minimum": 0.5, "Limits": {"b": 1, "A": [True, None, 1e20]}}},
        "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}, "y": {}}, "required": ["x", "y"]}},
        "where": {"type": "object", "properties": {"street": {"type": "string"}, "more": {"type": "object"}}, "required": ["street"]},
        "free": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Anything", "strict": False},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "type": {"type": "string"},
        "empty": {"type": "array", "items": {}},
        "Ülke": {"type": "string"}, "ülke2": {"type": "string"},
    },
    "required": ["city", "days"],
}
TOOLS = [
    tool("get_weather", PARAMETERS),
    tool("now"),
    tool("none", {"type": "object", "properties": {}}),
    tool("answering", {"type": "object"}, response={"type": "object", "description": "What comes back"}),
    tool("loose", {"properties": {"a": {"type": "string"}}}, response={"type": "string"}),
    {"type": "function", "function": {"name": "bare", "parameters": {"required": ["a"], "type": "OBJECT"}}},
    {"type": "function", "function": {"name": "null", "description": None}},
]
ARGUMENTS = {
    "city": "Paris", "n": 42, "f": -1.5e3, "tiny": 1e-7, "huge": 1e16, "third": 1 / 3, "ok": True, "no": None, "text": "null",
    "command": "echo \"a,{b}\" > 'c'\n", "q": {"$and": [{"a": {"$gt": 1}}, {"b": [1, 2.0]}]}, "list": ["x", [], {}, False], "": "",
}


def hand_made() -> list[Conversation]:
    calling = {"role": "assistant", "tool_calls": [call("get_weather", {"city": "Paris"}, "c1")]}
    two_calls = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Paris"}, "c1"), call("now", {}, "c2")]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"}
    second = {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "12"}, {"type": "text", "text": ":30"}]}
    answer = {"role": "assistant", "content": "  It is 18 degrees. "}
    histories = [
        [USER],
        [{"role": "system", "content": "  Be brief. \n"}, USER],
        [{"role": "developer", "content": "Be brief."}, USER, answer, USER],
        [{"role": "system", "content": "Alone"}],
        [USER, {"role": "system", "content": "In the middle"}, USER],
        [USER, USER, answer, answer, USER],
        [{"role": "user", "content": "\u00a0 spaces of all kinds \u3000\x1f\u2028"}],
        [{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": " two "}]}],
        [{"role": "user", "content": []}, {"role": "assistant", "content": ""}, {"role": "user", "content": None}],
        [USER, {"role": "assistant", "content": "<|channel>thought\nhm\n<channel|> yes <channel|>no<|channel>cut"}, USER],
        [USER, {"role": "assistant", "content": [{"type": "text", "text": "<|channel>thought\nhm\n<channel|>a "}, {"type": "text", "text": " b"}]}, USER],
        [USER, {**calling, "content": None}],
        [USER, {**calling, "content": None}, result],
        [USER, {**calling, "content": ""}, result],
        [USER, {**calling, "content": []}, result],
        [USER, {**calling, "content": "   "}, result],
        [USER, {**calling, "content": " Let me look. "}, result],
        [USER, {**calling, "content": "Let me look."}],
        [USER, calling, result, answer],
        [USER, calling, result, USER],
        [USER, two_calls, result, second],
        [USER, two_calls, second, result, answer, USER],
        [USER, two_calls, result, second, calling, result, answer],
        [USER, {"role": "assistant", "tool_calls": [call("f", ARGUMENTS)]}, {"role": "tool", "content": "done"}],
        [USER, {"role": "assistant", "tool_calls": [call("f", "a:1"), call("g", ""), call("h", None)]}],
        [USER, calling, {"role": "tool", "tool_call_id": "other", "name": "own_name", "content": "x"}],
        *([USER, calling, {"role": "tool", "tool_call_id": "c1", "content": body}] for body in (None, 42, 1.5, True, "", [])),
        [USER, {**calling, "tool_responses": [{"name": "f", "response": {"b": {"C": 1, "a": "x"}, "A": [1, "y"]}}, {"response": "plain"}, {"response": None}]}],
        [USER, {**calling, "tool_responses": [{"name": "f", "response": {}}], "content": "So."}, USER],
        [USER, {**calling, "reasoning": "I must look."}, result],
        [USER, {**calling, "reasoning": "", "reasoning_content": "I must look.\n"}, result, answer],
        [USER, {**calling, "reasoning": "Past."}, result, answer, USER, {**calling, "reasoning": "Now."}, result],
        [USER, {**answer, "reasoning": "Not shown without a call"}],
    ]
    return [{"messages": m, "tools": t} for m in histories for t in (None, TOOLS)]


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "STRING", "array", "object"][: 5 if depth > 2 else 7]
    schema: dict[str, Any] = {"type": rng.choice(kinds)}
    extras = {"description": "Text", "nullable": rng.random() < 0.5, "enum": ["a", "b"], "minimum": rng.randrange(9), "default": None}
    schema |= {k: v for k, v in extras.items() if rng.random() < 0.3}
    if schema["type"] == "array" and rng.random() < 0.8:
        schema["items"] = random_schema(rng, depth + 1)
    if schema["type"] == "object" and rng.random() < 0.8:
        names = rng.sample(["b", "A", "c", "Dd", "e_f", "g", "type", "required"], k=rng.randrange(5))
        schema["properties"] = {name: random_schema(rng, depth + 1) for name in names}
        if rng.random() < 0.5:
            schema["required"] = names[:2]
    return schema


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(6 if depth > 2 else 8)
    if kind < 6:
        return [rng.choice(["", "x y", "a\nb", '"q"', "é🙂"]), rng.randrange(-(10**6), 10**6), rng.gauss(0, 1) * 10.0 ** rng.randrange(-20, 25), True, False, None][kind]
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {k: random_value(rng, depth + 1) for k in rng.sample(["b", "A", "c", "Dd", "e_f", "é"], k=rng.randrange(4))}


def random_conversation(rng: random.Random) -> Conversation:
    def text() -> Any:
        plain = rng.choice(["Hello", "  padded\n", "", "two\nlines", "émoji 🙂", "<|turn>user", "a<channel|>b<|channel>c"])
        return [{"type": "text", "text": plain}, {"type": "text", "text": " more "}] if rng.random() < 0.2 else plain

    def arguments() -> dict[str, Any]:
        return {k: random_value(rng) for k in rng.sample(["city", "B", "a", "n", "Zone"], k=rng.randrange(4))}

    messages: list[dict[str, Any]] = [{"role": rng.choice(["system", "developer"]), "content": " Rules. "}] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 7)):
        if rng.random() < 0.5:
            messages.append({"role": "user", "content": text()})
            continue
        message: dict[str, Any] = {"role": "assistant", "content": rng.choice([None, "", text()])}
        if rng.random() < 0.3:
            message[rng.choice(["reasoning", "reasoning_content"])] = rng.choice(["Hm.", "", "Long\nthought"])
        if rng.random() < 0.6:
            message["tool_calls"] = [call(f"f{k}", arguments(), f"id{k}") for k in range(rng.randrange(1, 4))]
            if rng.random() < 0.2:
                message["tool_responses"] = [{"name": "f0", "response": random_value(rng)}]
        messages.append(message)
        if "tool_calls" in message and "tool_responses" not in message:
            for k in rng.sample(range(len(message["tool_calls"])), k=rng.randrange(len(message["tool_calls"]) + 1)):
                messages.append({"role": "tool", "tool_call_id": f"id{k}", "content": text()})
    conversation: Conversation = {"messages": messages or [USER]}
    if rng.random() < 0.5:
        conversation["tools"] = [tool(f"f{k}", {**random_schema(rng), "type": "object"}) for k in range(rng.randrange(3))]
    return conversation


def rendered(template: str, conversation: Conversation) -> str:
    settings = {"tools": None, "add_generation_prompt": True, **conversation}
    return str(_compile_jinja_template(template).render(bos_token="<bos>", **settings))


@pytest.fixture(params=["official", "tiny"])
def model(request: pytest.FixtureRequest, tiny: Path, tmp_path: Path) -> Path:
    """A directory with the template to compare with; the vocabulary plays no part in it."""
    if request.param == "tiny":
        return tiny
    sdist: Path = request.getfixturevalue("sdist")
    (tmp_path / "tokenizer.json").symlink_to(tiny / "tokenizer.json")
    (tmp_path / "chat_template.jinja").symlink_to(sdist / "models/templates/google-gemma-4-31B-it.jinja")
    return tmp_path


def assert_same(nibble: Run, model: Path, conversations: list[Conversation]) -> None:
    template = (model / "chat_template.jinja").read_text()
    oracle = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    variants = [
        {**c, "enable_thinking": thinking, "add_generation_prompt": prompt}
        for c in conversations for thinking in (False, True) for prompt in (False, True)
    ]
    result = nibble("tokenize", model, "--chat", "--jsonl", input="".join(json.dumps(v) + "\n" for v in variants))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.split("\n")[:-1]  # splitlines() knows more kinds of line ends
    assert len(lines) == len(variants)
    for variant, line in zip(variants, map(json.loads, lines)):
        assert line["text"] == rendered(template, variant), json.dumps(variant)
        assert line["ids"] == oracle.encode(line["text"], add_special_tokens=False).ids


def test_hand_made(nibble: Run, model: Path) -> None:
    """Case F6 of the field reports."""
    assert_same(nibble, model, hand_made())


def test_random(nibble: Run, model: Path) -> None:
    rng = random.Random(4)
    assert_same(nibble, model, [random_conversation(rng) for _ in range(500)])


def test_arguments_as_json_text_are_rendered_as_objects(nibble: Run, model: Path) -> None:
    """OpenAI's clients send the arguments back as a string; servers hand the template an object."""
    as_text = {"messages": [USER, {"role": "assistant", "tool_calls": [call("f", json.dumps(ARGUMENTS))]}]}
    as_object = copy.deepcopy(as_text)
    as_object["messages"][1]["tool_calls"][0]["function"]["arguments"] = ARGUMENTS
    result = nibble("tokenize", model, "--chat", input=json.dumps(as_text), check=True)
    assert json.loads(result.stdout)["text"] == rendered((model / "chat_template.jinja").read_text(), as_object)


def test_a_system_message_in_parts_is_their_text(nibble: Run, model: Path) -> None:
    parts = {"messages": [{"role": "system", "content": [{"type": "text", "text": " Be brief. "}]}, USER]}
    plain = {"messages": [{"role": "system", "content": "Be brief."}, USER]}
    result = nibble("tokenize", model, "--chat", input=json.dumps(parts), check=True)
    assert json.loads(result.stdout)["text"] == rendered((model / "chat_template.jinja").read_text(), plain)


@pytest.mark.parametrize(
    ("conversation", "complaint"),
    [
        ({"messages": []}, "messages: expected a list"),
        ({"messages": [USER, {"role": "narrator", "content": "x"}]}, 'messages[1]: unknown role "narrator"'),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]}, 'messages[0].content[1]: content of type "image_url"'),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1]: a tool message without a tool call"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls[0]"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [call("f", [1])]}]}, "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [call("f", {}, "a")]}, {"role": "tool", "tool_call_id": "b", "content": ""}]}, "messages[2]: tool_call_id"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": [USER], "tools": [tool("f"), tool("g", {"properties": {"a": {"type": 3}}})]}, "tools[1].function.parameters.properties.a.type"),
        ({"messages": [USER], "toolz": []}, "unknown key toolz"),
    ],
)
def test_refusals_name_the_place(nibble: Run, tiny: Path, conversation: Conversation, complaint: str) -> None:
    result = nibble("tokenize", tiny, "--chat", input=json.dumps(conversation))
    assert result.returncode == 2
    assert complaint in result.stderr
