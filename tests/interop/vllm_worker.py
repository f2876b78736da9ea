"""Greedy tokens from vLLM on CPU, in a process and an environment of its own.

Reads {"model", "prompts": token ids, "max_tokens"} as JSON on stdin, writes the tokens of each prompt as JSON to the file argv[1]
(vLLM itself prints on stdout). float16: vLLM's CPU kernel for packed weights truncates in bf16.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}

import torch  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors_embedding  # noqa: E402


def dequant_gather(ids: torch.Tensor, weight_packed: torch.Tensor, weight_scale: torch.Tensor, hidden: int, bits: int) -> torch.Tensor:
    """vLLM's Triton kernel for rows of packed embedding tables, which has no CPU version, with the same arithmetic in torch."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = ((weight_packed[ids].unsqueeze(-1) >> shifts) & (2**bits - 1)) - 2 ** (bits - 1)
    scale = weight_scale[ids].float()
    values = codes.flatten(-2).float().unflatten(-1, (scale.shape[-1], -1)) * scale.unsqueeze(-1)
    return values.flatten(-2).to(weight_scale.dtype)


def main() -> None:
    task = json.load(sys.stdin)
    compressed_tensors_embedding._dequant_gather_triton = dequant_gather
    llm = LLM(model=task["model"], dtype="float16", max_model_len=256, max_num_seqs=len(task["prompts"]), enable_prefix_caching=False,
              skip_tokenizer_init=True, enforce_eager=True)
    sampling = SamplingParams(temperature=0, max_tokens=task["max_tokens"], ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": ids} for ids in task["prompts"]], sampling, use_tqdm=False)
    with open(sys.argv[1], "w") as out:
        json.dump([list(answer.outputs[0].token_ids) for answer in answers], out)


if __name__ == "__main__":
    main()
