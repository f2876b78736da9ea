"""Log-probabilities and token ids from llama.cpp (the xllamacpp wheel) on a GGUF file, in a process and an environment of its own.

Reads {"model", "n_vocab", "prompts", "continuations", "texts"} as JSON on stdin; writes to the file argv[1] the log-probabilities of all
tokens after each prompt and each beginning of its continuation, all given as token ids, and the token ids of each text (llama.cpp itself
prints on stdout and stderr).
"""

from __future__ import annotations

import json
import sys
import urllib.request

import xllamacpp

F32_CACHE = xllamacpp.ggml_type.GGML_TYPE_F32  # K and V as nibble keeps them


def main() -> None:
    task = json.load(sys.stdin)
    params = xllamacpp.CommonParams()
    params.model.path = task["model"]
    params.n_ctx = 512
    params.n_parallel = 1
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = F32_CACHE
    server = xllamacpp.Server(params)

    def post(path: str, body: dict) -> dict:
        request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    # The server does not report steps whose text is no whole UTF-8, so it is made to draw <eos>, which has none; what it reports is not biased.
    eos = post("/tokenize", {"content": "<eos>", "parse_special": True})["tokens"][-1]
    logprobs = []
    for prompt, continuation in zip(task["prompts"], task["continuations"], strict=True):
        steps = []
        for n in range(len(continuation) + 1):
            answer = post("/completion", {"prompt": prompt + continuation[:n], "n_predict": 1, "n_probs": task["n_vocab"],
                                          "logit_bias": [[eos, 1000]], "cache_prompt": True})
            step = {entry["id"]: entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]}
            steps.append([step[token] for token in range(task["n_vocab"])])
        logprobs.append(steps)
    tokenized = [post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"] for text in task["texts"]]
    with open(sys.argv[1], "w") as out:
        json.dump({"logprobs": logprobs, "texts": tokenized}, out)


if __name__ == "__main__":
    main()
