"""nibble's container against the safetensors library: it reads what the library writes, and accepts nothing that the library refuses."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import Run
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int32: "I32", torch.int64: "I64",
         torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.float64: "F64", torch.int16: "I16"}  # fmt: skip


def library_accepts(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                file.get_tensor(name)
    except (SafetensorError, OSError):
        return False
    return True


def with_header(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def test_reads_what_the_library_writes(nibble: Run, tmp_path: Path) -> None:
    shapes = [(), (0,), (3,), (5, 7), (2, 0, 4), (1, 2, 3, 4)]
    tensors = {f"model.layers.{i}.layer_scalar_{j}": torch.ones(shape).to(dtype)
               for i, dtype in enumerate(NAMES) for j, shape in enumerate(shapes)}  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "note": 'line\n"quoted" é'})
    expected = Counter[str]()
    for tensor in tensors.values():
        expected[NAMES[tensor.dtype]] += tensor.nbytes
    result = nibble("inspect", tmp_path / "model.safetensors", "--json")
    assert result.returncode == 0, result.stderr
    anatomy = json.loads(result.stdout)
    found = Counter[str]()
    for part in anatomy["parts"]:
        found.update(part["bytes_by_dtype"])
    assert found == expected
    assert anatomy["bytes"] == sum(expected.values())


HEADERS = {
    "overlap": {"a": ("F32", [2], [0, 8]), "b": ("F32", [2], [4, 12])},
    "gap": {"a": ("F32", [2], [0, 8]), "b": ("F32", [1], [12, 16])},
    "reversed": {"a": ("F32", [2], [8, 0])},
    "past_the_end": {"a": ("F32", [1000, 1000], [0, 4_000_000])},
    "wrong_size": {"a": ("F32", [3], [0, 16])},
    "product_overflows": {"a": ("F32", [1 << 32, 1 << 32], [0, 16])},
    "unknown_dtype": {"a": ("F7", [16], [0, 16])},
    "negative": {"a": ("U8", [-16], [0, 16])},
    "trailing": {"a": ("U8", [15], [0, 15])},
}


@pytest.mark.parametrize("case", HEADERS)
def test_refuses_with_the_library(nibble: Run, tmp_path: Path, case: str) -> None:
    header = {n: dict(zip(("dtype", "shape", "data_offsets"), t)) for n, t in HEADERS[case].items()}
    path = tmp_path / "bad.safetensors"
    path.write_bytes(with_header(json.dumps(header).encode(), b"x" * 16))
    assert not library_accepts(path)
    result = nibble("inspect", path)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and "bad.safetensors" in result.stderr
    assert result.stdout == ""


def test_accepts_nothing_that_the_library_refuses(nibble: Run, tmp_path: Path) -> None:
    """100 files with one byte of the header changed, removed or doubled."""
    path = tmp_path / "mutant.safetensors"
    save_file({"a": torch.ones(4, 3), "b": torch.ones(5, dtype=torch.int8), "c": torch.ones(())}, path)
    whole = path.read_bytes()
    rng = random.Random(7)
    verdicts = Counter[tuple[bool, bool]]()
    for _ in range(100):
        place = rng.randrange(8, 8 + struct.unpack("<Q", whole[:8])[0])
        change = rng.choice([bytes([rng.choice(b'0123456789[]{},:"-x ')]), b"", whole[place : place + 1] * 2])
        mutant = whole[:place] + change + whole[place + 1 :]
        header_bytes = struct.unpack("<Q", whole[:8])[0] + len(change) - 1
        path.write_bytes(struct.pack("<Q", header_bytes) + mutant[8:])
        result = nibble("inspect", path)
        assert result.returncode in (0, 2), (result.returncode, mutant)
        verdict = result.returncode == 0, library_accepts(path)
        assert verdict != (True, False), mutant
        verdicts[verdict] += 1
    assert verdicts[True, True] and verdicts[False, False], verdicts
