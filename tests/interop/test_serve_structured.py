"""Structured output of `nibble serve` through the openai client, judged by jsonschema, pydantic and re."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from test_grammar import SCHEMAS
from test_serve import BERN, TURKEY, WEATHER, Server


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    server = Server(tiny).wait()
    yield server
    server.stop()


def response_format(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def ask(server: Server, seed: int = 1, **options: object) -> openai.types.chat.ChatCompletion:
    """Temperature 2: what the model would rather say does not matter."""
    return server.client().chat.completions.create(**{"model": "tiny", "messages": TURKEY, "temperature": 2, "top_p": 1, "seed": seed, "max_tokens": 300} | options)


class Kind(Enum):
    CITY = "city"
    RIVER = "river"


class Place(BaseModel):
    name: str = Field(min_length=1, max_length=20)
    kind: Kind
    people: int | None
    near: list[str] = Field(max_length=2)


def test_parse_with_pydantic(server: Server) -> None:
    parsed = 0
    for seed in range(3):
        try:
            answer = server.client().chat.completions.parse(model="tiny", messages=TURKEY, response_format=Place, temperature=2, seed=seed, max_tokens=300)
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(answer.choices[0].message.parsed, Place) and answer.choices[0].finish_reason == "stop"
        parsed += 1
    assert parsed > 0


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid(server: Server, name: str) -> None:
    """Whole, in a stream and as one of several: valid, or cut and said so."""
    choices = list(ask(server, n=4, response_format=response_format(SCHEMAS[name])).choices)
    with server.client().chat.completions.stream(
        model="tiny", messages=TURKEY, temperature=2, seed=9, max_tokens=300, response_format=response_format(SCHEMAS[name])
    ) as stream:
        choices += [event.snapshot.choices[0] for event in stream if event.type == "chunk"][-1:]
    assert any(choice.finish_reason == "stop" for choice in choices)
    for choice in choices:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMAS[name], format_checker=jsonschema.FormatChecker())


def test_vllms_fields(server: Server) -> None:
    client = server.client()
    for body in ({"guided_choice": ["red", "blue"]}, {"structured_outputs": {"choice": ["red", "blue"]}}):
        assert ask(server, extra_body=body).choices[0].message.content in ("red", "blue")
        answer = client.completions.create(model="tiny", prompt="The sky is", temperature=2, extra_body=body)
        assert answer.choices[0].text in ("red", "blue") and answer.choices[0].finish_reason == "stop"
    for body in ({"guided_regex": r"\d{3}-[a-f]+z"}, {"structured_outputs": {"regex": r"\d{3}-[a-f]+z"}}):
        choice = ask(server, extra_body=body).choices[0]
        assert choice.finish_reason == "length" or re.fullmatch(r"\d{3}-[a-f]+z", choice.message.content)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for body in ({"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"structured_outputs": {"json": schema}}):
        jsonschema.validate(json.loads(ask(server, extra_body=body).choices[0].message.content), schema)


def test_any_object_and_the_limit(server: Server) -> None:
    choice = ask(server, response_format={"type": "json_object"}, max_tokens=3).choices[0]
    assert choice.finish_reason == "length" and choice.message.content.startswith("{")
    whole = ask(server, extra_body={"guided_choice": ["Ankara"]}, max_tokens=50, temperature=0).choices[0]
    assert (whole.message.content, whole.finish_reason) == ("Ankara", "stop")


def test_with_tools(server: Server) -> None:
    """A call, or content of the shape; which, the model says."""
    shape = response_format({"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"], "additionalProperties": False})
    call = ask(server, messages=BERN, tools=[WEATHER], response_format=shape, temperature=0).choices[0]
    assert call.finish_reason == "tool_calls" and json.loads(call.message.tool_calls[0].function.arguments) == {"city": "Bern"}
    content = ask(server, tools=[WEATHER], tool_choice="none", response_format=shape, temperature=0).choices[0]
    assert set(json.loads(content.message.content)) == {"city"}


def test_same_in_a_batch_and_again(server: Server) -> None:
    """The second time the grammar and what it allows are known already."""
    body = {"response_format": response_format(SCHEMAS["person"]), "n": 3, "seed": 3}
    first = [choice.message.content for choice in ask(server, **body).choices]
    assert first == [choice.message.content for choice in ask(server, **body).choices]
    assert first[1] == ask(server, **body | {"n": 1, "seed": 4}).choices[0].message.content


def test_refused_by_name(server: Server) -> None:
    """Cases H5 and H6 of the field reports."""
    for schema, name in (({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"type": "integer", "multipleOf": 3}, "multipleOf")):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(server, response_format=response_format(schema))
        assert name in caught.value.message and caught.value.param == "response_format.json_schema.schema"
    deep: list = []
    for _ in range(40):
        deep = [deep]
    hostile = ({"guided_regex": "(" * 50_000}, {"guided_regex": "^+a"}, {"guided_regex": "((a{999}){999}){999}"}, {"guided_json": deep})
    for body in hostile:
        with pytest.raises(openai.BadRequestError):
            ask(server, extra_body=body)
    assert server.get("/health")[0] == 200
    long = response_format({"type": "object", "properties": {"s": {"type": "string", "minLength": 20, "maxLength": 1000}}, "required": ["s"]})
    choice = ask(server, response_format=long, max_tokens=1500).choices[0]
    assert choice.finish_reason == "length" or 20 <= len(json.loads(choice.message.content)["s"]) <= 1000
