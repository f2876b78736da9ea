"""Real vLLM loads what `nibble repack` writes and gives the greedy tokens of the float32 reference.

The reference of a packed model is transformers in float32 on the values that the reader makes of the file: code x scale in float16,
the dtype of the run. Codes are unpacked here by compressed-tensors.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from conftest import Run, from_environment
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, Gemma4ForCausalLM

QUESTIONS = ["What is the capital of Turkey?", "What is the capital of Australia?", "Name the capital of Morocco.", "What is 23*47?",
             "What is 68*91?", "What is 512+389-204?", "What is 700+101-650?", "Who are you?", "Hello", "What can you do?"]
MAX_TOKENS = 12


def reader_values(packed: Path) -> dict[str, torch.Tensor]:
    """Name -> float32 weight as a float16 run of the reader sees it."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(packed.glob("*.safetensors")):
        tensors |= load_file(shard)
    weights = {}
    for name, tensor in tensors.items():
        base, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            scale = tensors[f"{base}.weight_scale"].half().unsqueeze(-1)
            codes = unpack_from_int32(tensor, 4, torch.Size(tensors[f"{base}.weight_shape"].tolist()))
            weights[f"{base}.weight"] = (codes.half().unflatten(-1, (scale.shape[1], -1)) * scale).flatten(-2).float()
        elif kind not in ("weight_scale", "weight_shape"):
            weights[name] = tensor.half().float()
    return weights


def reference_tokens(packed: Path, prompts: list[list[int]]) -> list[list[int]]:
    config = AutoConfig.from_pretrained(packed)
    del config.quantization_config
    model = Gemma4ForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(reader_values(packed), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    answers = []
    for ids in prompts:
        output = model.generate(torch.tensor([ids]), max_new_tokens=MAX_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
        answers.append(output[0, len(ids):].tolist())
    return answers


def vllm_tokens(packed: Path, prompts: list[list[int]], scratch: Path) -> list[list[int]]:
    worker = Path(__file__).with_name("vllm_worker.py")
    task = json.dumps({"model": str(packed), "prompts": prompts, "max_tokens": MAX_TOKENS})
    out = scratch / "tokens.json"
    run = subprocess.run([from_environment("NIBBLE_VLLM_PYTHON"), worker, out], input=task, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("format_name", ["q4w4a16", "q4w4a16emb4"])
def test_greedy_tokens(nibble: Run, tiny: Path, tmp_path: Path, format_name: str) -> None:
    packed = tmp_path / format_name
    repack = nibble("repack", tiny, packed, "--format", format_name)
    assert repack.returncode == 0, repack.stderr
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    prompts = [tokenizer.encode(f"<bos><|turn>user\n{q}<turn|>\n<|turn>model\n", add_special_tokens=False).ids for q in QUESTIONS]
    tokens = vllm_tokens(packed, prompts, tmp_path)
    assert tokens == reference_tokens(packed, prompts)
    assert tokenizer.decode(tokens[0]).startswith("Ankara")
