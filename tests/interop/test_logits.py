"""Log-probabilities of `nibble generate` against transformers, for every kind of model and every way of cutting a prompt.

Tolerance: the float64 run of the reference is the truth. The reference's own float32 run differs from it by `e`, the largest of many
differences that come from the same roundings in the same places as nibble's; only the order of sums differs (nibble's are in blocks of
32). Two such maxima are of one size, so 4 e is demanded, and e itself must be small enough (1e-4) that 4 e can fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

import random_models
from conftest import REFERENCE

Nibble = Callable[..., CompletedProcess]
SHORT, LONG = 5, 53  # tokens, below and above three windows
STEPS = 200


@pytest.fixture(scope="module", params=list(random_models.KINDS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / request.param
    random_models.build(request.param, path)
    return path


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return [2] + torch.randint(3, random_models.VOCAB, (length - 1,), generator=generator).tolist()


def generate(nibble: Nibble, path: Path, ids: list[int], *flags: str, steps: int = STEPS) -> dict:
    done = nibble("generate", path, "--prompt-ids", ",".join(map(str, ids)), "--max-tokens", steps, "--ignore-eos", "--json",
                  "--top-logprobs", 10**6, *REFERENCE, *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def dense(answer: dict) -> torch.Tensor:
    """[steps, V] from the lists of [id, logprob]."""
    table = torch.tensor(answer["top_logprobs"], dtype=torch.float64)
    rows = torch.empty(table.shape[:2], dtype=torch.float64)
    return rows.scatter_(1, table[..., 0].long(), table[..., 1])


def check(path: Path, answer: dict) -> None:
    """Demands the tolerance above and the same greedy token at each step."""
    ids = answer["prompt_ids"] + answer["token_ids"][:-1]
    ours = dense(answer)
    exact, reference = (random_models.logprobs(random_models.load_oracle(path, dtype), ids)[-len(ours):]
                        for dtype in (torch.float64, torch.float32))
    assert exact.std(-1).min() > 1  # logits are spread
    e = (reference - exact).abs().max().item()
    assert 0 < e < 1e-4
    error = (ours - exact).abs().max().item()
    print(f"largest error: {error:.2e}, transformers in float32: {e:.2e}")
    assert error <= 4 * e
    assert reference.argmax(-1).tolist() == answer["token_ids"]


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_logprobs_and_greedy_tokens(nibble: Nibble, model: Path, length: int) -> None:
    answer = generate(nibble, model, prompt(length))
    check(model, answer)
    assert len(set(answer["token_ids"])) > 10  # no trivial loop


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_pieces_and_threads_change_nothing(nibble: Nibble, model: Path, length: int) -> None:
    whole = generate(nibble, model, prompt(length), "--threads", "1", steps=8)
    for piece in (1, 7, 16, 40):
        assert generate(nibble, model, prompt(length), "--prefill-chunk", str(piece), "--threads", "2", steps=8) == whole


@pytest.mark.parametrize(("scale_dtype", "with_tables"), [(torch.bfloat16, False), (torch.float16, True), (torch.float32, True)])
def test_packed(nibble: Nibble, model: Path, tmp_path: Path, scale_dtype: torch.dtype, with_tables: bool) -> None:
    """Against transformers on code x scale, unrounded: what nibble's engine reads."""
    random_models.as_packed(model, tmp_path / "packed", scale_dtype, with_tables)
    check(tmp_path / "packed", generate(nibble, tmp_path / "packed", prompt(LONG), steps=40))


def test_prompt_logprobs(nibble: Nibble, model: Path) -> None:
    """Perplexity of a text is that of the probabilities which generation reports for the same tokens."""
    answer = generate(nibble, model, prompt(SHORT), steps=20)
    scored = generate(nibble, model, answer["prompt_ids"] + answer["token_ids"], "--prompt-logprobs", "--prefill-chunk", "7", steps=1)
    assert scored["prompt_logprobs"][0] is None
    assert scored["prompt_logprobs"][SHORT:] == [step[0][1] for step in answer["top_logprobs"]]


def test_multimodal_layout_and_left_over_kv(nibble: Nibble, tmp_path: Path) -> None:
    random_models.build("e", tmp_path / "text")
    random_models.as_multimodal(tmp_path / "text", tmp_path / "multimodal")
    assert generate(nibble, tmp_path / "multimodal", prompt(SHORT), steps=8) == generate(nibble, tmp_path / "text", prompt(SHORT), steps=8)


def test_large_activations(nibble: Nibble, tmp_path: Path) -> None:
    """Activations of 1e5, beyond fp16, stay finite and right."""
    random_models.build("e", tmp_path / "plain")
    config, tensors = random_models.read(tmp_path / "plain")
    tensors["model.layers.1.post_attention_layernorm.weight"].fill_(1e5)
    random_models.write(tmp_path / "large", config, tensors)
    check(tmp_path / "large", generate(nibble, tmp_path / "large", prompt(LONG), steps=20))
