"""`--suite gsm8k` on fixed answers: the verdicts of lm-eval's task gsm8k_cot_zeroshot (its filter `flexible-extract`, its metric)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import servers
import yaml
from conftest import Run, from_environment
from test_eval import evaluated, records_of

# What a model said, and the right number; in the last ones the two do not agree, or there is no number.
ANSWERED = [
    ("She has 12 left.\nAnswer: 12", "12"), ("So 3 * 4 = 12", "12"), ("It costs $1,250.", "1250"), ("There are 7", "7"), ("Answer: -15", "-15"),
    ("It is 3.5 and then 42.", "42"), ("Answer: $70,000", "70000"), ("Answer: $70,000.", "70,000"), ("2 + 2 = 4\nAnswer: 4.\n", "4"),
    ("**Answer: 18**", "18"), ("Answer: 0.5", "0.5"), ("Answer: 12 eggs", "12"), ("1st, 2nd and 3rd\nAnswer: 1000000", "1,000,000"),
    ("She has 12 left.\nAnswer: 11", "12"), ("Answer: 12\nNo, wait: 13", "14"), ("two", "1"), ("", "0"), ("Answer: -15", "15"), ("Answer: 1,250", "1,25"),
]


@pytest.fixture
def verdict():
    """An answer and a record's "answer" -> whether lm-eval counts it as right."""
    home = Path(from_environment("NIBBLE_LM_EVAL"))
    sys.path.append(str(home))
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    sys.path.remove(str(home))
    task = yaml.safe_load((home / "lm_eval/tasks/gsm8k/gsm8k-cot-zeroshot.yaml").read_text())
    steps = next(f["filter"] for f in task["filter_list"] if f["name"] == "flexible-extract")
    expression = RegexFilter(**{key: value for key, value in steps[0].items() if key != "function"})
    (metric,) = task["metric_list"]
    flags = {key: metric[key] for key in ("ignore_case", "ignore_punctuation", "regexes_to_ignore")}
    return lambda said, answer: exact_match_hf_evaluate(list(*expression.apply([[said]], [{}])), [answer], **flags)["exact_match"]


def test_verdicts(nibble: Run, verdict, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    records = [{"question": f"Question {i}?", "answer": f"steps\n#### {number}"} for i, (_, number) in enumerate(ANSWERED)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))

    def reply(body: dict) -> tuple[int, dict]:
        number = int(re.search(r"Question (\d+)", body["messages"][0]["content"])[1])
        assert body["max_tokens"] == 2048 and "Answer: N" in body["messages"][0]["content"]
        return 200, servers.chat_reply(ANSWERED[number][0])

    with servers.double(reply) as url:
        evaluated(nibble, url, "--suite", "gsm8k", "--data", data, "--out", tmp_path / "run")
    scores = {int(r["id"]): r["score"] for r in records_of(tmp_path / "run")}
    expected = {i: verdict(said, record["answer"]) for i, ((said, _), record) in enumerate(zip(ANSWERED, records))}
    assert scores == expected and sum(expected.values()) == 13
    refused = nibble("eval", "http://127.0.0.1:1", "--suite", "gsm8k")
    assert refused.returncode == 2
