"""Writes tests/formats/golden/*.bin, raw little-endian arrays: packed blocks with gguf-py's values, values with the
blocks that ggml's own rounding makes of them, rows with compressed-tensors' int8 codes.

Run it with the path of llama.cpp's source when a case is added:  python tests/formats/make_golden.py LLAMA_CPP
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize

GOLDEN = Path(__file__).parent / "golden"
Arrays = dict[str, np.ndarray]

# Of the rest of ggml, what the file with the rounding refers to.
NOT_CALLED = ("ggml_abort", "ggml_row_size", "ggml_type_name", "ggml_type_size")


def random_blocks(kind: gguf.GGMLQuantizationType, n_blocks: int, scale_at: int) -> np.ndarray:
    """Any codes, finite fp16 scales of both signs and all sizes, subnormal ones too."""
    rng = np.random.default_rng(kind.value)
    blocks = rng.integers(0, 256, (n_blocks, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    exponents = rng.integers(-24, 4, n_blocks)
    scales = (rng.uniform(1, 2, n_blocks) * 2.0**exponents * rng.choice([-1, 1], n_blocks)).astype(np.float16)
    blocks[:, scale_at : scale_at + 2] = scales.view(np.uint8).reshape(n_blocks, 2)
    return blocks


def unpacked() -> Arrays:
    arrays: Arrays = {}
    for name, kind, n_blocks, scale_at in (
        ("q4_0", gguf.GGMLQuantizationType.Q4_0, 64, 0),
        ("q6_k", gguf.GGMLQuantizationType.Q6_K, 8, 208),
    ):
        blocks = random_blocks(kind, n_blocks, scale_at)
        arrays |= {f"{name}_blocks": blocks, f"{name}_values": gguf.quants.dequantize(blocks, kind)}
    return arrays


def on_the_grid(rng: np.random.Generator, n_blocks: int) -> np.ndarray:
    """bf16 values as quantization-aware training leaves them: groups of 32, codes -8 .. 7 of a Gaussian."""
    weights = rng.normal(0, 0.02, (n_blocks * 8, 32))
    extremes = np.take_along_axis(weights, abs(weights).argmax(1, keepdims=True), 1)
    scales = (extremes / -8).astype(np.float16).astype(np.float32)
    values = scales * np.rint(weights / scales).clip(-8, 7).astype(np.float32)
    bf16 = gguf.GGMLQuantizationType.BF16
    return gguf.quants.dequantize(gguf.quants.quantize(values, bf16), bf16)


def rounded_by_ggml(llama_cpp: Path) -> Arrays:
    rng = np.random.default_rng(6)
    inputs = {
        "gauss": rng.normal(0, 0.02, (8, 256)),
        "grid": on_the_grid(rng, 8),
        "tails": rng.standard_t(2, (8, 256)) * 10.0 ** rng.integers(-6, 3, (8, 1)),
    }
    arrays: Arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        ggml, library = llama_cpp / "ggml", Path(folder) / "quants.so"
        sources = [f"-I{ggml}/include", f"-I{ggml}/src", f"{ggml}/src/ggml-quants.c"]
        missing = [f"-Wl,--defsym={name}=0" for name in NOT_CALLED]
        subprocess.run(["cc", "-O1", "-w", "-shared", "-fPIC", *sources, *missing, "-o", library, "-lm"], check=True)
        round_rows = ctypes.CDLL(str(library)).quantize_row_q6_K_ref
        for name, data in inputs.items():
            values = np.ascontiguousarray(data.reshape(-1, 256), dtype=np.float32)
            blocks = np.zeros((len(values), 210), dtype=np.uint8)
            round_rows(values.ctypes.data_as(ctypes.c_void_p), blocks.ctypes.data_as(ctypes.c_void_p),
                       ctypes.c_int64(values.size))  # fmt: skip
            arrays |= {f"q6_k_{name}_values": values, f"q6_k_{name}_ggml": blocks}
    return arrays


def int8_rows() -> Arrays:
    generator = torch.Generator().manual_seed(8)
    rows = torch.randn(6, 64, generator=generator) * 10.0 ** torch.arange(-4.0, 2.0).unsqueeze(1)
    rows = rows.bfloat16().float()
    arguments = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")
    arrays = {"int8_rows": rows.numpy()}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        scales = (rows.abs().amax(1, keepdim=True) / 127).to(dtype)
        codes = quantize(rows, scales, torch.zeros_like(scales), arguments, dtype=torch.int8)
        values = dequantize(codes, scales.float(), args=arguments)
        arrays |= {f"int8_{name}_scales": scales.float().numpy(), f"int8_{name}_codes": codes.numpy(),
                   f"int8_{name}_values": values.numpy()}  # fmt: skip
    return arrays


def make(llama_cpp: Path) -> Arrays:
    return unpacked() | rounded_by_ggml(llama_cpp) | int8_rows()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file_name, array in make(Path(sys.argv[1])).items():
        (GOLDEN / f"{file_name}.bin").write_bytes(array.tobytes())
