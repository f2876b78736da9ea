"""tools/check_isa_symbols.py finds an inline function in an object file of an instruction set, and passes files without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/check_isa_symbols.py"


def check(build: Path, folder: str, source: str) -> subprocess.CompletedProcess[str]:
    file = build / folder / "matmul.cc.o"
    file.parent.mkdir(parents=True)
    subprocess.run(["g++", "-x", "c++", "-c", "-o", file, "-"], input=source, text=True, check=True)
    return subprocess.run([sys.executable, TOOL, build], capture_output=True, text=True)


@pytest.mark.parametrize("isa", ["avx2", "avx512", "neon"])
def test_finds_a_weak_symbol(tmp_path: Path, isa: str) -> None:
    result = check(tmp_path, f"src/kernels/{isa}", "inline int Leaks() { return 1; }\nint (*user)() = Leaks;\n")
    assert result.returncode == 1
    assert f"src/kernels/{isa}/matmul.cc.o: Leaks()" in result.stdout


def test_passes_what_is_local(tmp_path: Path) -> None:
    result = check(tmp_path, "src/kernels/avx2", "namespace { inline int Stays() { return 1; } }\nint (*user)() = Stays;\n")
    assert result.returncode == 0, result.stdout


def test_fails_without_object_files(tmp_path: Path) -> None:
    assert check(tmp_path, "src/kernels/scalar", "int x;\n").returncode == 1
