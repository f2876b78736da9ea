"""ik_llama.cpp's wheel in the manner of llama-batched-bench: a JSON line for each number of sequences.

Weights are repacked for this machine at load, as its own option -rtr does.
"""

from __future__ import annotations

import argparse
import json
import time

import ik_llama_cpp._ctypes_api as C


def decode(context: object, tokens: list[tuple[int, int, int]], last_only: bool) -> None:
    """(token, position, sequence) each."""
    batch = C.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, (token, position, sequence) in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, sequence
        batch.logits[i] = not last_only or i == len(tokens) - 1
    if C.llama_decode(context, batch) != 0:
        raise RuntimeError("llama_decode failed")
    C.llama_get_logits_ith(context, len(tokens) - 1)
    C.llama_batch_free(batch)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="model")
    parser.add_argument("-t", dest="threads", type=int)
    parser.add_argument("-tb", dest="threads_batch", type=int)
    parser.add_argument("-fa", dest="flash_attention", choices=["on", "off"])
    parser.add_argument("-npp", dest="n_prompt", type=int)
    parser.add_argument("-ntg", dest="n_decode", type=int)
    parser.add_argument("-npl", dest="batches")
    arguments, _ = parser.parse_known_args()  # the rest of llama-batched-bench's flags says what is fixed here
    batches = [int(n) for n in arguments.batches.split(",")]
    C.llama_backend_init()
    model_params = C.llama_model_default_params()
    model_params.use_mmap = False
    model_params.repack_tensors = True
    model = C.llama_model_load_from_file(arguments.model.encode(), model_params)
    params = C.llama_context_default_params()
    params.n_ctx = max(batches) * (arguments.n_prompt + arguments.n_decode)
    params.n_batch, params.n_ubatch, params.n_seq_max = 2048, 512, max(batches)
    params.n_threads, params.n_threads_batch = arguments.threads, arguments.threads_batch
    params.flash_attn = arguments.flash_attention == "on"
    context = C.llama_init_from_model(model, params)
    decode(context, [(5, 0, 0)], last_only=True)  # touches the weights
    for n in batches:
        C.llama_kv_cache_clear(context)
        start = time.perf_counter()
        for sequence in range(n):
            decode(context, [(100 + (7 * i + sequence) % 5000, i, sequence) for i in range(arguments.n_prompt)], last_only=True)
        middle = time.perf_counter()
        for i in range(arguments.n_decode):
            decode(context, [(100 + i, arguments.n_prompt + i, sequence) for sequence in range(n)], last_only=False)
        end = time.perf_counter()
        speeds = {"speed_pp": n * arguments.n_prompt / (middle - start), "speed_tg": n * arguments.n_decode / (end - middle)}
        print(json.dumps({"pl": n} | speeds), flush=True)


if __name__ == "__main__":
    main()
