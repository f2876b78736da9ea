"""vLLM on CPU, in a process and an environment of its own: greedy tokens of several models, one after the other.

Reads a list of {"model", "dtype", "prompts": token ids, "max_tokens"} or {"model", "experts": file} as JSON on stdin and writes, as JSON
to the file argv[1] (vLLM itself prints on stdout), for each {"tokens": those of each prompt} or {"error": vLLM's message}. Multimodal
models are given no images or sounds, and so no processor for them. With
"experts" vLLM's choice of a backend for quantised experts, of which its CPU build has none, is skipped: its own loader then fills the
experts' parameters, which go to that safetensors file, and nothing is run.
"""

from __future__ import annotations

import gc
import json
import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402
from vllm.model_executor.kernels.linear.scaled_mm import cpu as cpu_int8  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors_embedding  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (  # noqa: E402
    compressed_tensors_moe_w8a8_int8, compressed_tensors_moe_wna16)


def dequant_gather(ids: torch.Tensor, weight_packed: torch.Tensor, weight_scale: torch.Tensor, hidden: int, bits: int) -> torch.Tensor:
    """vLLM's Triton kernel for rows of packed embedding tables, which has no CPU version, with the same arithmetic in torch."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = ((weight_packed[ids].unsqueeze(-1) >> shifts) & (2**bits - 1)) - 2 ** (bits - 1)
    scale = weight_scale[ids].float()
    values = codes.flatten(-2).float().unflatten(-1, (scale.shape[-1], -1)) * scale.unsqueeze(-1)
    return values.flatten(-2).to(weight_scale.dtype)


def load_experts(model: str, path: str) -> None:
    """vLLM's loader up to the point where a backend would take the experts over."""
    experts: dict[str, torch.Tensor] = {}

    def take(self: object, layer: torch.nn.Module) -> None:
        prefix = f"{len([n for n in experts if n.endswith('w2_weight_scale')])}."
        experts.update({prefix + n: p.detach().clone() for n, p in layer.named_parameters() if n.startswith(("w13_", "w2_"))})

    wna16, int8 = compressed_tensors_moe_wna16, compressed_tensors_moe_w8a8_int8
    wna16.select_wna16_moe_backend = lambda **facts: (wna16.WNA16MoEBackend.TRITON, None)
    int8.select_int8_moe_backend = lambda **facts: (None, None)
    wna16.CompressedTensorsWNA16MoEMethod.process_weights_after_loading = take
    int8.CompressedTensorsW8A8Int8MoEMethod.process_weights_after_loading = take
    try:
        LLM(model=model, dtype="float16", max_model_len=64, max_num_seqs=1, skip_tokenizer_init=True, enforce_eager=True)
    finally:
        save_file(experts, path)


def generate(run: dict) -> list[list[int]]:
    llm = LLM(model=run["model"], dtype=run["dtype"], max_model_len=256, max_num_seqs=len(run["prompts"]), enable_prefix_caching=False,
              skip_tokenizer_init=True, enforce_eager=True, limit_mm_per_prompt={"image": 0, "audio": 0, "video": 0})
    sampling = SamplingParams(temperature=0, max_tokens=run["max_tokens"], ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": ids} for ids in run["prompts"]], sampling, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def main() -> None:
    compressed_tensors_embedding._dequant_gather_triton = dequant_gather
    cpu_int8.check_cpu_sgl_kernel = lambda *facts: False  # its float16 kernel, for CPUs with AMX, ends the process: "scalar path not implemented"
    results: list[dict] = []
    for run in json.load(sys.stdin):
        try:
            if run.get("experts"):
                load_experts(run["model"], run["experts"])
            results.append({"tokens": generate(run)} if not run.get("experts") else {})
        except Exception as error:  # noqa: BLE001, a test compares the message
            results.append({"error": str(error)})
        gc.collect()
        cleanup_dist_env_and_memory()
    with open(sys.argv[1], "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    main()
