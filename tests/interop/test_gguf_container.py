"""The golden files of the GGUF container and of the packed formats are what gguf-py, ggml and compressed-tensors make of
them today, and gguf-py reads from its own what make_golden.py put in.

gguf_test.cc reads the same files and writes them again byte for byte, so gguf-py reads from nibble's files what it reads here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import ROOT
from gguf import GGUFReader


def maker(room: str) -> ModuleType:
    path = ROOT / "tests" / room / "make_golden.py"
    spec = importlib.util.spec_from_file_location(f"make_golden_{room}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTAINERS = maker("checkpoint")


@pytest.mark.parametrize("file_name", CONTAINERS.MAKERS)
def test_golden_containers_are_current(tmp_path: Path, file_name: str) -> None:
    CONTAINERS.MAKERS[file_name](tmp_path / file_name)
    assert (tmp_path / file_name).read_bytes() == (CONTAINERS.GOLDEN / file_name).read_bytes()


@pytest.mark.parametrize("file_name", ["all_types.gguf", "aligned.gguf"])
def test_gguf_py_reads_tensors(file_name: str) -> None:
    read = {tensor.name: tensor for tensor in GGUFReader(CONTAINERS.GOLDEN / file_name).tensors}
    expected = CONTAINERS.tensors()
    assert list(read) == list(expected)
    for name, (values, kind) in expected.items():
        assert read[name].tensor_type == kind
        np.testing.assert_array_equal(read[name].data.view(values.dtype), values)


def test_gguf_py_reads_metadata() -> None:
    fields = GGUFReader(CONTAINERS.GOLDEN / "all_types.gguf").fields
    for name, value in CONTAINERS.SCALARS.items():
        assert fields[f"scalar.{name}"].types[0].name == name
        assert fields[f"scalar.{name}"].contents() == pytest.approx(value, rel=0, abs=0)
    for name, values in CONTAINERS.ARRAYS.items():
        assert fields[f"array.{name}"].contents() == values


def test_golden_formats_are_current(sdist: Path) -> None:
    formats = maker("formats")
    arrays = formats.make(sdist)
    assert {path.stem for path in formats.GOLDEN.iterdir()} == set(arrays)
    for name, array in arrays.items():
        assert (formats.GOLDEN / f"{name}.bin").read_bytes() == array.tobytes(), name
