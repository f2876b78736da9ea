"""llama.cpp's server (the xllamacpp wheel) on a GGUF file, in a process and an environment of its own.

`python llama_server.py MODEL.gguf [MMPROJ.gguf]` prints its address on a line that begins with "address:" and runs until stdin ends.
"""

from __future__ import annotations

import sys

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    if len(sys.argv) > 2:
        params.mmproj.path = sys.argv[2]
    params.n_ctx = 8192
    params.n_parallel = 4
    params.warmup = False
    params.use_jinja = True
    params.endpoint_metrics = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(f"\naddress: {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
