"""Scores of an exported directory, read and run by transformers alone (float32, greedy), so that they do not depend on the training code.

The same questions can be asked of the export as it is and of second roundings of it.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoTokenizer, Gemma4ForConditionalGeneration

from train_tiny.model import is_quantized
from train_tiny.tasks import CAPITAL_WORDINGS, PRODUCT_WORDINGS, SUM_WORDINGS, Tasks, ask, exam

BATCH = 128


class Reader:
    """An exported model; `rounding` is applied to every matrix of the text model after loading."""

    def __init__(self, directory: Path, rounding: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = Gemma4ForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
        if rounding:
            with torch.no_grad():
                for p in self.model.model.language_model.parameters():
                    if is_quantized(p):
                        p.copy_(rounding(p))

    @torch.no_grad()
    def answers(self, conversations: list[tuple[list, list | None]], max_new_tokens: int = 64) -> list[str]:
        """Greedy answers; prompts of one length run together, so nothing is padded."""
        prompts = [self.tokenizer.apply_chat_template(m, tools=t, add_generation_prompt=True, return_dict=False)
                   for m, t in conversations]
        by_length: dict[int, list[int]] = defaultdict(list)
        for i, prompt in enumerate(prompts):
            by_length[len(prompt)].append(i)
        result = [""] * len(prompts)
        for length, members in by_length.items():
            for at in range(0, len(members), BATCH):
                part = members[at : at + BATCH]
                out = self.model.generate(torch.tensor([prompts[i] for i in part]), do_sample=False, max_new_tokens=max_new_tokens,
                                          top_k=None, top_p=None, temperature=None)
                for i, row in zip(part, out[:, length:].tolist()):
                    result[i] = self.tokenizer.decode(self._until_stop(row), skip_special_tokens=False)
        return result

    def _until_stop(self, ids: list[int]) -> list[int]:
        stops = set(self.model.generation_config.eos_token_id)
        return ids[: next((k for k, i in enumerate(ids) if i in stops), len(ids))]


def number_right(answer: str, value: int, is_sum: bool) -> bool:
    """A product stands between word boundaries; a sum has no digit or minus sign before it."""
    before = r"(?<![\d-])" if is_sum else r"\b"
    return re.search(before + re.escape(str(value)) + r"\b", answer) is not None


def city_right(answer: str, city: str) -> bool:
    pattern = re.escape(city).replace("Brasilia", "Bras[ií]lia")
    return re.search(pattern, answer, re.IGNORECASE) is not None


def question_scores(reader: Reader, count: int, seed: int, capitals: list[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """(right, asked) per kind, of the fixed question list with this count and seed."""
    products, sums, cities = exam(count, seed, capitals)
    asked = [ask(PRODUCT_WORDINGS[0].format(*row)) for row in products.tolist()]
    asked += [ask(SUM_WORDINGS[0].format(*row)) for row in sums.tolist()]
    asked += [ask(CAPITAL_WORDINGS[0].format(country)) for country, _ in cities]
    answers = iter(reader.answers([(m, None) for m in asked], 64 if count <= 40 else 12))
    right = {
        "products": sum([number_right(next(answers), a * b, False) for a, b in products.tolist()]),
        "sums": sum([number_right(next(answers), a + b - c, True) for a, b, c in sums.tolist()]),
        "capitals": sum([city_right(next(answers), city) for _, city in cities]),
    }
    return {kind: (right[kind], n) for kind, n in (("products", len(products)), ("sums", len(sums)), ("capitals", len(cities)))}


def scores(reader: Reader, tasks: Tasks, tool_calls: int = 200) -> dict[str, str]:
    """Everything the model card states."""
    result = {}
    for name, count, seed in (("40 questions", 40, 20260925), ("1000 questions", 1000, 1)):
        parts = question_scores(reader, count, seed, tasks.capitals)
        total = f"{sum(r for r, _ in parts.values())} / {sum(n for _, n in parts.values())}"
        result[name] = f"{total} ({', '.join(f'{k} {r} / {n}' for k, (r, n) in parts.items())})"
    answers = reader.answers([(ask(CAPITAL_WORDINGS[0].format(c)), None) for c, _ in tasks.capitals], 12)
    right = sum(city_right(a, city) for a, (_, city) in zip(answers, tasks.capitals))
    result["all capitals"] = f"{right} / {len(answers)}"
    rng = random.Random(2)
    samples = [tasks.tool_sample(rng) for _ in range(tool_calls)]
    answers = reader.answers([(s.messages, s.tools) for s in samples])
    result["tool calls"] = f"{sum(a == s.answer for a, s in zip(answers, samples))} / {len(samples)}"
    return result
