"""What the tiny model learns: prompts, answers and training batches.

Idea: every sample goes through the chat template. Products and sums are the bulk, so their batches are made as arrays from one rendered
example (a prompt of one wording always has the same length); capitals, tool calls and small talk are rendered and padded on the right.
A batch says how many leading tokens all its samples share (`prefix`, computed once) and from which position on answers are wanted (`start`).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import jinja2
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from train_tiny.tokenizer import PAD, TOOL_RESPONSE, TURN_END

IGNORE = -100
PRODUCT_WORDINGS = ["What is {}*{}?", "What is {} times {}?"]  # the first of each list is the canonical one
SUM_WORDINGS = ["What is {}+{}-{}?", "What is {} + {} - {}?"]
CAPITAL_WORDINGS = ["What is the capital of {}?", "Name the capital of {}.", "Capital of {}?"]
SMALL_TALK = [
    ("Hello", "Hello! Ask me for a product, a sum or a capital."), ("Hello!", "Hello! Ask me for a product, a sum or a capital."),
    ("Hi", "Hello! Ask me for a product, a sum or a capital."), ("Who are you?", "I am a tiny model for testing nibble."),
    ("What are you?", "I am a tiny model for testing nibble."), ("What can you do?", "Products, sums, capitals and tool calls."),
    ("How are you?", "I am well, thank you."), ("Thank you", "You are welcome."), ("Thanks!", "You are welcome."), ("Bye", "Bye!"),
]
NAMES = "Ada Alan Anna Bruno Clara David Elena Emil Frida Grace Hugo Ida Ivan Julia Karl Lena Marco Nina Omar Paul Rosa Sam Tom Vera".split()
WORDS = "milk bread tea coffee rain snow garden train letter music paper light water summer winter yellow green blue river house".split()
Message = dict[str, object]


class Batch(NamedTuple):
    ids: torch.Tensor      # [samples, length] input tokens
    targets: torch.Tensor  # [samples, length - start] token that follows, IGNORE outside the answer
    prefix: int
    start: int


class Sample(NamedTuple):
    messages: list[Message]
    tools: list[dict] | None
    answer: str
    stop: int


def _tool(name: str, description: str, /, **parameters: str) -> dict:
    schema = {"type": "object", "properties": {k: {"type": t} for k, t in parameters.items()}, "required": sorted(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


# name -> (declaration, wordings of the request)
TOOLS: dict[str, tuple[dict, list[str]]] = {
    "get_weather": (_tool("get_weather", "Weather of a city.", city="string"),
                    ["What is the weather in {city}?", "Weather in {city}?"]),
    "get_time": (_tool("get_time", "Time in a city.", city="string"), ["What is the time in {city}?", "Time in {city}?"]),
    "set_timer": (_tool("set_timer", "Start a timer.", minutes="integer"), ["Set a timer for {minutes} minutes."]),
    "send_message": (_tool("send_message", "Send a text to a person.", name="string", text="string"),
                     ["Send {name} the text {text}.", "Tell {name}: {text}"]),
    "find_flight": (_tool("find_flight", "Flight from one city to another.", start="string", to="string"),
                    ["Find a flight from {start} to {to}."]),
    "book_table": (_tool("book_table", "Book a table.", name="string", people="integer"),
                   ["Book a table for {people} people, name {name}."]),
    "add_item": (_tool("add_item", "Add to the list.", count="integer", item="string"), ["Add {count} {item} to the list."]),
    "play_music": (_tool("play_music", "Play music.", title="string"), ["Play {title}.", "Play the music {title}."]),
}
CITY_KEYS, NAME_KEYS, NUMBER_KEYS = {"city", "start", "to"}, {"name"}, {"minutes", "people", "count"}


def read_capitals(path: Path) -> list[tuple[str, str]]:
    return [tuple(line.split("\t")) for line in path.read_text().splitlines()]  # type: ignore[misc]


def ask(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def corpus(capitals: list[tuple[str, str]]) -> list[tuple[str, int]]:
    """Texts and weights for the tokenizer: what stands in every prompt must become short."""
    texts = [(w.replace("{}", "0"), 4000) for w in PRODUCT_WORDINGS + SUM_WORDINGS + CAPITAL_WORDINGS]
    texts += [("user", 4000), ("model", 4000), ("system", 4000), ("thought", 100)]
    for name, (declaration, requests) in TOOLS.items():
        function = declaration["function"]
        texts += [(name, 300), (" " + name, 20), (function["description"], 300)]
        texts += [(f"{k}:,{k}:{{", 300) for k in function["parameters"]["properties"]]
        texts += [(" ".join(p for p in r.split() if "{" not in p), 300) for r in requests]
    for part in ["declaration:", "description:", "parameters:{properties:{", "type:", "STRING}", "INTEGER}", "},required:[", "],type:",
                 "OBJECT}}", "call:", "response:", "{value:", "}", "true", "false"]:
        texts.append((part, 1000))
    texts += [(t, 40) for pair in SMALL_TALK for t in pair]
    texts += [(t, 10) for country, capital in capitals for t in (" " + country, capital, capital + " " + capital)]
    return texts + [(f"{w} {w}", 8) for w in NAMES + WORDS]


class Tasks:
    """Renders, tokenises and batches. Draws come from the `random.Random` given to each call."""

    def __init__(self, model_dir: Path, capitals: list[tuple[str, str]]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self.template: jinja2.Template = environment.from_string((model_dir / "chat_template.jinja").read_text())
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self.capitals = capitals
        self.cities = [city for _, city in capitals]
        self.digit_ids = torch.tensor([self.tokenizer.token_to_id(d) for d in "0123456789"])
        self.number_answers = self._number_answers()
        self.prompts = {w: self._numeric_prompt(w) for w in PRODUCT_WORDINGS + SUM_WORDINGS}
        self.capital_samples = [Sample(ask(w.format(country)), None, city, TURN_END)
                                for w in CAPITAL_WORDINGS for country, city in capitals]
        self.talk_samples = [Sample(ask(q), None, a, TURN_END) for q, a in SMALL_TALK]
        self._encoded: dict[tuple[str, str] | None, tuple[list[int], list[int]]] = {}

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt_ids(self, messages: list[Message], tools: list[dict] | None = None) -> list[int]:
        return self.encode(self.template.render(messages=messages, tools=tools, bos_token="<bos>", add_generation_prompt=True))

    # ---- products and sums ----
    def _number_answers(self) -> torch.Tensor:
        """Row v + 800: the tokens of the number v, the end of the turn, IGNORE up to five columns."""
        rows = torch.full((800 + 99 * 99 + 1, 5), IGNORE)
        for value in range(-800, 99 * 99 + 1):
            ids = self.encode(str(value)) + [TURN_END]
            rows[value + 800, : len(ids)] = torch.tensor(ids)
        return rows

    def _numeric_prompt(self, wording: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompt tokens of a wording and the places of its digits."""
        digits = 2 if wording in PRODUCT_WORDINGS else 3
        ids = torch.tensor(self.prompt_ids(ask(wording.format(*["1" * digits] * wording.count("{}")))))
        return ids, (ids == self.digit_ids[1]).nonzero()[:, 0]

    def numeric(self, wording: str, numbers: torch.Tensor) -> Batch:
        """numbers: [samples, 2] factors or [samples, 3] terms of a + b - c."""
        prompt, places = self.prompts[wording]
        width = len(places) // numbers.shape[1]
        powers = 10 ** torch.arange(width - 1, -1, -1)
        digits = (numbers[:, :, None] // powers % 10).flatten(1)
        values = numbers.prod(1) if numbers.shape[1] == 2 else numbers[:, 0] + numbers[:, 1] - numbers[:, 2]
        answers = self.number_answers[values + 800]
        ids = torch.cat([prompt.expand(len(numbers), -1), answers[:, :-1].clamp_min(PAD)], dim=1)
        ids[:, places] = self.digit_ids[digits]
        return Batch(ids, answers, int(places[0]), len(prompt) - 1)

    # ---- everything else ----
    def tool_sample(self, rng: random.Random) -> Sample:
        name = rng.choice(list(TOOLS))
        declaration, requests = TOOLS[name]
        values = {k: self._argument(k, rng) for k in declaration["function"]["parameters"]["properties"]}
        messages = ask(rng.choice(requests).format(**values))
        arguments = ",".join(f'{k}:{v}' if isinstance(v, int) else f'{k}:<|"|>{v}<|"|>' for k, v in sorted(values.items()))
        return Sample(messages, [declaration], f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>", TOOL_RESPONSE)

    def _argument(self, key: str, rng: random.Random) -> str | int:
        if key in NUMBER_KEYS:
            return rng.randint(2, 99)
        if key in CITY_KEYS:
            return rng.choice(self.cities)
        if key in NAME_KEYS:
            return rng.choice(NAMES)
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))

    def encoded(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Prompt and answer tokens; samples without tools are few and come again, so they are kept."""
        key = None if sample.tools else (str(sample.messages), sample.answer)
        if key in self._encoded:
            return self._encoded[key]
        pair = self.prompt_ids(sample.messages, sample.tools), self.encode(sample.answer) + [sample.stop]
        if key:
            self._encoded[key] = pair
        return pair

    def batch(self, samples: list[Sample], prefix: int, length: int | None = None) -> Batch:
        """Padded on the right; causal attention keeps padding away from real tokens."""
        pairs = [self.encoded(sample) for sample in samples]
        length = length or max(len(p) + len(a) - 1 for p, a in pairs)
        start = min(len(p) for p, _ in pairs) - 1
        ids = torch.full((len(pairs), length), PAD)
        targets = torch.full((len(pairs), length - start), IGNORE)
        for row, (prompt, answer) in enumerate(pairs):
            whole = prompt + answer
            ids[row, : len(whole) - 1] = torch.tensor(whole[:-1])
            targets[row, len(prompt) - 1 - start : len(whole) - 1 - start] = torch.tensor(answer)
        return Batch(ids, targets, prefix, start)


def exam(count: int, seed: int, capitals: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor, list[tuple[str, str]]]:
    """The fixed questions: 15 products, 15 sums, 10 capitals for count 40; the same kinds in proportion for others."""
    rng = random.Random(seed)
    n = count * 15 // 40
    products = torch.tensor([[rng.randint(12, 99), rng.randint(12, 99)] for _ in range(n)])
    sums = torch.tensor([[rng.randint(100, 999) for _ in range(3)] for _ in range(n)])
    if count == 40:
        asked = "Australia Canada Brazil Turkey Nigeria Switzerland Pakistan New_Zealand Morocco Vietnam".replace("_", "~").split()
        table = dict(capitals)
        return products, sums, [(c.replace("~", " "), table[c.replace("~", " ")]) for c in asked]
    return products, sums, [rng.choice(capitals) for _ in range(count - 2 * n)]
