#!/usr/bin/env python3
"""Writes tests/engine/golden/sampler.json: what requests with given logits, tokens so far and sampling parameters draw.

The distributions come from transformers' logits processors, presence and frequency penalties (which it does not have) from
OpenAI's formula, in vLLM's order. A draw takes the first token, by id, at which the sum of probabilities exceeds a number
of the SplitMix64 generator. Run with an environment that has transformers; sampler_test.cc reads the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper
from transformers import TopPLogitsWarper

VOCAB = 200
DRAWS = 40
CASES = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.7, "top_k": 7},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 1.2, "top_k": 64, "top_p": 0.95},
    {"temperature": 2.0, "min_p": 0.05, "top_k": 30, "top_p": 0.7},
    {"temperature": 0.9, "repetition_penalty": 1.4},
    {"temperature": 0.9, "repetition_penalty": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": -0.5, "top_p": 0.9},
    {"temperature": 1.0, "logit_bias": {"3": 4.0, "17": -100.0, "150": 2.5}, "repetition_penalty": 1.3, "top_k": 12},
    {"temperature": 0.0, "logit_bias": {"9": 1.0}, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
]


def uniform(seed: int, index: int) -> float:
    mask = (1 << 64) - 1
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def adjusted(logits: torch.Tensor, prompt: list[int], answer: list[int], case: dict) -> torch.Tensor:
    scores = logits.clone()[None]
    for token, bias in case.get("logit_bias", {}).items():
        scores[0, int(token)] += bias
    ids = torch.tensor([prompt + answer])
    if (penalty := case.get("repetition_penalty", 1.0)) != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
    counts = torch.bincount(torch.tensor(answer), minlength=VOCAB)
    scores = scores - case.get("frequency_penalty", 0.0) * counts
    return scores - case.get("presence_penalty", 0.0) * (counts > 0)


def draws(scores: torch.Tensor, case: dict) -> list[int]:
    if case["temperature"] == 0:
        return [int(scores.argmax())] * DRAWS
    scores = TemperatureLogitsWarper(case["temperature"])(None, scores)
    if "min_p" in case:
        scores = MinPLogitsWarper(case["min_p"])(None, scores)
    if "top_k" in case:
        scores = TopKLogitsWarper(case["top_k"])(None, scores)
    if "top_p" in case:
        scores = TopPLogitsWarper(case["top_p"])(None, scores)
    sums = scores[0].double().softmax(-1).cumsum(-1)
    return [int((sums > uniform(case["seed"], i)).nonzero()[0]) for i in range(DRAWS)]


def main() -> None:
    torch.manual_seed(1)
    cases = []
    for seed, case in enumerate(CASES):
        case = {**case, "seed": seed * 1000003}
        logits = (torch.randn(VOCAB) * 2.5).mul(64).round().div(64)
        prompt = torch.randint(VOCAB, (30,)).tolist()
        answer = torch.topk(logits, 3).indices.tolist() + torch.randint(VOCAB, (20,)).tolist() + [5, 5, 5]
        tokens = draws(adjusted(logits, prompt, answer, case), case)
        cases.append({"sampling": case, "logits": logits.tolist(), "prompt": prompt, "answer": answer, "draws": tokens})
    path = Path(__file__).parent / "golden/sampler.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
