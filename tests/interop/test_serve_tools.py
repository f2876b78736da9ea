"""Calls that `nibble serve` must make, through the openai client: the tool that was asked for, with arguments that its schema allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import openai
import pytest
from test_serve import BERN, TURKEY, WEATHER, Server

ORDER = {"type": "function", "function": {"name": "place_order", "description": "Orders things.", "strict": True, "parameters": {
    "type": "object",
    "properties": {
        "items": {"type": "array", "minItems": 1, "maxItems": 2, "items": {
            "type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"}, "Count": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["sku", "Count"], "additionalProperties": False}},
        "when": {"type": ["string", "null"], "maxLength": 8},
        "express": {"type": "boolean"},
        "size": {"enum": ["small", "large", 7]},
    },
    "required": ["items", "when", "express", "size"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
TOOLS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, ORDER, NOW)}


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    server = Server(tiny).wait()
    yield server
    server.stop()


def ask(server: Server, streams: bool = False, **options: object) -> openai.types.chat.chat_completion.Choice:
    """Temperature 2: what the model would rather say does not matter."""
    arguments = {"model": "tiny", "messages": TURKEY, "temperature": 2, "top_p": 1, "max_tokens": 300, "tools": [WEATHER, ORDER, NOW]} | options
    if not streams:
        return server.client().chat.completions.create(**arguments).choices[0]
    with server.client().chat.completions.stream(**arguments) as stream:
        return [event.snapshot.choices[0] for event in stream if event.type == "chunk"][-1]


def calls_of(choice: openai.types.chat.chat_completion.Choice) -> list[tuple[str, dict]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]


@pytest.mark.parametrize("streams", [False, True])
def test_a_call_that_must_be_made(server: Server, streams: bool) -> None:
    """Case F9 of the field reports: whatever the model would say, a call or several, as OpenAI's table has the reason."""
    whole = 0
    for seed in range(6):
        choice = ask(server, streams, tool_choice="required", seed=seed)
        assert not choice.message.content or choice.finish_reason == "length"
        for name, arguments in calls_of(choice):
            jsonschema.validate(arguments, TOOLS[name])
        if choice.finish_reason != "length":
            assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
            whole += 1
    assert whole > 0


@pytest.mark.parametrize("name", TOOLS)
def test_a_named_call(server: Server, name: str) -> None:
    whole = 0
    for seed in range(3):
        choice = ask(server, tool_choice=named(name), seed=seed)
        streamed = ask(server, True, tool_choice=named(name), seed=seed)
        assert (calls_of(choice), choice.finish_reason) == (calls_of(streamed), streamed.finish_reason)
        if choice.finish_reason != "length":
            [(called, arguments)] = calls_of(choice)
            assert called == name and choice.finish_reason == "stop" and not choice.message.content
            jsonschema.validate(arguments, TOOLS[name])
            whole += 1
    assert whole > 0


def test_what_the_model_wants_is_kept(server: Server) -> None:
    for choice in ("required", named("get_weather")):
        assert calls_of(ask(server, messages=BERN, tools=[WEATHER], tool_choice=choice, temperature=0)) == [("get_weather", {"city": "Bern"})]


def test_strict_tools(server: Server) -> None:
    """With `auto`, a call of a strict tool is held to its schema; an answer without a call stays what it is."""
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    city = {"type": "object", "properties": {"city": {"enum": ["Berne", "Basel"]}}, "required": ["city"], "additionalProperties": False}
    narrow = {"type": "function", "function": strict["function"] | {"parameters": city}}
    assert calls_of(ask(server, messages=BERN, tools=[strict], temperature=0)) == [("get_weather", {"city": "Bern"})]
    assert calls_of(ask(server, messages=BERN, tools=[narrow], temperature=0)) == [("get_weather", {"city": "Berne"})]
    assert ask(server, tools=[], temperature=0).message.content == "Ankara"
    assert ask(server, tools=[strict], temperature=0).message.content == ask(server, tools=[WEATHER], temperature=0).message.content


def test_refused_by_name(server: Server) -> None:
    unique = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, tools=[unique], tool_choice="required")
    assert caught.value.param == "tools" and all(part in caught.value.message for part in ("uniqueItems", '"f"', "#/properties/a"))
    assert ask(server, tools=[unique], max_tokens=1).finish_reason
