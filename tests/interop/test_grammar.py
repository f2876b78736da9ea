"""Structured output against independent judges: what is generated under a schema, expression or choice is valid by `jsonschema` and
`re`, whatever tokens chance picks; and the corpus of tests/grammar is judged by jsonschema as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from conftest import ROOT, Run

CORPUS = json.loads((ROOT / "tests/grammar/corpus.json").read_text())
SEEDS = range(3)
SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["person", "robot", None]},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "minItems": 1, "maxItems": 3},
            "born": {"type": "string", "format": "date"},
            "share": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        },
        "required": ["name", "kind", "tags"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"anyOf": [{"type": "boolean"}, {"type": "integer", "maximum": 99, "minimum": -99}]},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "others": {
        "type": "object",
        "properties": {"key": {"const": 1}},
        "required": ["key"],
        "additionalProperties": {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False},
    },
}
EXPRESSIONS = [r"[A-Z][a-z]{1,9}( [a-z]{1,6}){1,4}[.!?]", r"\d{3}-\d{4}|none", r"(é|日本|[^a-z\s]){2,5}x+", r"\w{2,8}@\w{2,8}\.(com|org)"]


def answer(nibble: Run, model: Path, seed: int, *shape: str | Path) -> tuple[str, str]:
    """Text and finish reason of an answer at a temperature that knows no grammar."""
    result = nibble(
        "generate", model, "Say something.", *shape, "--temperature", "4", "--seed", str(seed), "--max-tokens", "300", "--json", check=True
    )
    parsed = json.loads(result.stdout)
    return parsed["text"], parsed["finish_reason"]


def test_corpus_is_judged_as_jsonschema_does() -> None:
    for entry in CORPUS:
        validator = jsonschema.Draft202012Validator(entry["schema"], format_checker=jsonschema.FormatChecker())
        for text in entry["valid"]:
            assert validator.is_valid(json.loads(text)), (entry["schema"], text)
        for text in entry["invalid"]:
            try:
                document = json.loads(text)
            except json.JSONDecodeError:
                continue
            assert not validator.is_valid(document), (entry["schema"], text)


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid(nibble: Run, tiny: Path, tmp_path: Path, name: str) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMAS[name]))
    ended = 0
    for seed in SEEDS:
        text, reason = answer(nibble, tiny, seed, "--json-schema", schema)
        if reason == "stop":
            jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker())
            ended += 1
    assert ended > 0


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_answers_match_expressions(nibble: Run, tiny: Path, expression: str) -> None:
    texts = {answer(nibble, tiny, seed, "--regex", expression) for seed in SEEDS}
    assert any(reason == "stop" for _, reason in texts)
    for text, reason in texts:
        assert reason != "stop" or re.fullmatch(expression, text), text


def test_choices_and_objects(nibble: Run, tiny: Path) -> None:
    choices = ["Paris", "Parma", "a \"quoted\" one"]
    for seed in SEEDS:
        text, reason = answer(nibble, tiny, seed, *(part for choice in choices for part in ("--choice", choice)))
        assert (text in choices) and reason == "stop"
    text, reason = answer(nibble, tiny, 1, "--json-object")
    assert text.startswith("{")
    assert reason != "stop" or isinstance(json.loads(text), dict)


def test_refusals_are_one_line(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "array", "items": {"type": "string"}, "uniqueItems": True}))
    result = nibble("generate", tiny, "x", "--json-schema", schema)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and '"uniqueItems" is not supported' in result.stderr
