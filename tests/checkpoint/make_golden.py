"""Writes tests/checkpoint/golden: GGUF files made by gguf-py, with every kind of metadata value and several types of
tensors, and gguf-py's table of the tensor types.

gguf_test.cc reads them and writes them again. When a kind is added:  python tests/checkpoint/make_golden.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter

GOLDEN = Path(__file__).parent / "golden"

SCALARS = {
    "UINT8": 200,
    "INT8": -100,
    "UINT16": 60_000,
    "INT16": -30_000,
    "UINT32": 4_000_000_000,
    "INT32": -2_000_000_000,
    "FLOAT32": 0.15625,
    "BOOL": True,
    "STRING": "<|turn>\u2581\u00e9\n",
    "UINT64": 10_000_000_000_000_000_000,
    "INT64": -9_000_000_000_000_000_000,
    "FLOAT64": 0.1,
}
ARRAYS = {
    name: [value, type(value)(), value] for name, value in SCALARS.items()
}  # e.g. [200, 0, 200], ["...", "", "..."]
NESTED = [[1, -2], [3], [4, 5, 6]]


def pattern(n_bytes: int) -> np.ndarray:
    return (np.arange(n_bytes) * 7 + 3).astype(np.uint8)


def tensors() -> dict[str, tuple[np.ndarray, GGMLQuantizationType]]:
    """Row-major; packed types as bytes."""
    kind = GGMLQuantizationType
    return {
        "f32": (np.arange(6, dtype=np.float32).reshape(2, 3) / 4, kind.F32),
        "f16": (np.arange(5, dtype=np.float16) - 2, kind.F16),
        "bf16": (pattern(3 * 4 * 2).reshape(3, 8), kind.BF16),
        "blk.0.ffn_down.weight": (pattern(2 * 3 * 18).reshape(2, 54), kind.Q4_0),
        "q8_0": (pattern(34).reshape(1, 34), kind.Q8_0),
        "token_embd.weight": (pattern(2 * 210).reshape(2, 210), kind.Q6_K),
        "i32": (np.arange(24, dtype=np.int32).reshape(2, 1, 3, 4), kind.I32),
        "i8": (np.array([-128, 127, 0], dtype=np.int8), kind.I8),
        "f64": (np.array([0.1], dtype=np.float64), kind.F64),
    }


def write_all_types(path: Path) -> None:
    writer = GGUFWriter(path, "gemma4")
    for name, value in SCALARS.items():
        writer.add_key_value(f"scalar.{name}", value, GGUFValueType[name])
    for name, values in ARRAYS.items():
        writer.add_key_value(f"array.{name}", values, GGUFValueType.ARRAY, sub_type=GGUFValueType[name])
    writer.add_array("array.nested", NESTED)
    finish(writer)


def write_aligned(path: Path) -> None:
    writer = GGUFWriter(path, "gemma4")
    writer.add_custom_alignment(128)
    finish(writer)


def finish(writer: GGUFWriter) -> None:
    for name, (values, kind) in tensors().items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_type_table(path: Path) -> None:
    lines = [f"{kind.value}\t{kind.name}\t{block}\t{n_bytes}\n" for kind, (block, n_bytes) in GGML_QUANT_SIZES.items()]
    path.write_text("".join(lines))


MAKERS = {"all_types.gguf": write_all_types, "aligned.gguf": write_aligned, "ggml_types.tsv": write_type_table}

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file_name, make in MAKERS.items():
        make(GOLDEN / file_name)
