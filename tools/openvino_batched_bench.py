"""OpenVINO GenAI in the manner of llama-batched-bench: a JSON line for each number of sequences.

-m is a directory that tools/openvino_export.py made. All sequences are requests to one pipeline with
continuous batching: a step takes up to 2048 prompt tokens, or one token of each sequence.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

STEP_TOKENS = 2048


def run(pipeline: genai.ContinuousBatchingPipeline, n: int, n_prompt: int, n_decode: int) -> dict[str, float]:
    # The last token of a prompt gives the first of an answer, so that n_decode steps follow.
    config = genai.GenerationConfig(max_new_tokens=n_decode + 1, ignore_eos=True, do_sample=False)
    handles = []
    for sequence in range(n):
        prompt = np.array([[100 + (7 * i + sequence) % 800 for i in range(n_prompt)]])
        handles.append(pipeline.add_request(sequence, ov.Tensor(prompt), config))
    start = time.perf_counter()
    while not all(handle.can_read() for handle in handles):
        pipeline.step()
    middle = time.perf_counter()
    n_steps = 0
    while pipeline.has_non_finished_requests():
        pipeline.step()
        n_steps += 1
    end = time.perf_counter()
    lengths = {sum(len(output.generated_ids) for output in handle.read_all()) for handle in handles}
    if n_steps != n_decode or lengths != {n_decode + 1}:
        raise RuntimeError(f"{n} sequences: {n_steps} steps gave answers of {lengths} tokens, expected {n_decode} and {n_decode + 1}")
    return {"pl": n, "speed_pp": n * n_prompt / (middle - start), "speed_tg": n * n_decode / (end - middle)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="model")
    parser.add_argument("-t", "-tb", dest="threads", type=int)  # -tb: for prompts; -t alone would take it for "-t b"
    parser.add_argument("-npp", dest="n_prompt", type=int)
    parser.add_argument("-ntg", dest="n_decode", type=int)
    parser.add_argument("-npl", dest="batches")
    arguments, _ = parser.parse_known_args()  # the rest of llama-batched-bench's flags says what is fixed here
    batches = [int(n) for n in arguments.batches.split(",")]
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.max_num_seqs = max(batches)
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": arguments.threads}
    pipeline = genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", properties)
    run(pipeline, 1, 16, 2)  # touches the weights
    for n in batches:
        print(json.dumps(run(pipeline, n, arguments.n_prompt, arguments.n_decode)), flush=True)


if __name__ == "__main__":
    main()
