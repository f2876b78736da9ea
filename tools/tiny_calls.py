#!/usr/bin/env python3
"""Tool calls that models/tiny can answer, in the record format of BFCL's simple category: `python tools/tiny_calls.py OUT`.

`nibble eval MODEL --suite bfcl-simple --data tools/tiny_calls` asks them; tools/tiny_calls/ was written by this command. Tools, wordings and
the lists of arguments are those of the training tasks, drawn with a seed of their own: most combinations are new to the model, single words
are not (it cannot copy words that are in no list). Needs torch and tokenizers, as the training tasks do.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from train_tiny.tasks import CITY_KEYS, NAME_KEYS, NAMES, NUMBER_KEYS, TOOLS, WORDS, read_capitals  # noqa: E402

SEED, RECORDS = 7, 400
FILE = "BFCL_v4_simple_python.json"


def argument(key: str, cities: list[str], rng: random.Random) -> str | int:
    if key in NUMBER_KEYS:
        return rng.randint(2, 99)
    if key in CITY_KEYS | NAME_KEYS:
        return rng.choice(cities if key in CITY_KEYS else NAMES)
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))


def main() -> None:
    out = Path(sys.argv[1])
    rng = random.Random(SEED)
    cities = [city for _, city in read_capitals(Path(__file__).with_name("capitals.tsv"))]
    questions, answers = [], []
    for i in range(RECORDS):
        name = rng.choice(list(TOOLS))
        declaration, wordings = TOOLS[name]
        function = declaration["function"]
        parameters = function["parameters"] | {"type": "dict"}
        values = {key: argument(key, cities, rng) for key in parameters["properties"]}
        question = [[{"role": "user", "content": rng.choice(wordings).format(**values)}]]
        questions.append({"id": f"call-{i}", "question": question, "function": [function | {"parameters": parameters}]})
        answers.append({"id": f"call-{i}", "ground_truth": [{name: {k: [v] for k, v in values.items()}}]})
    (out / "possible_answer").mkdir(parents=True, exist_ok=True)
    for folder, records in ((out, questions), (out / "possible_answer", answers)):
        (folder / FILE).write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
