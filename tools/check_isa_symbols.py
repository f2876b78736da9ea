#!/usr/bin/env python3
"""Checks that files compiled for newer CPUs give the linker nothing to share: check_isa_symbols.py BUILD_DIR.

The linker keeps one copy of each weak symbol, of whichever file comes first. If a file of src/kernels/avx2, avx512 or neon defines one,
a program may run that copy on an older CPU. Prints each weak definition as OBJECT: symbol; exit 1 if there is one, or no object file.
For optimized builds: unoptimized ones leave inline functions of the standard library in the object files.
Tested by tests/interop/test_isa_symbols.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDERS = ("avx2", "avx512", "neon")
WEAK = set("VvWwu")


def object_files(build: Path) -> list[Path]:
    return sorted(f for isa in FOLDERS for f in build.rglob(f"src/kernels/{isa}/*.o"))


def weak_symbols(file: Path) -> list[str]:
    """Names on nm's lines "address type name" whose type is a weak definition; DW.ref.* are pointers that exceptions are caught by."""
    out = subprocess.run(["nm", "-C", "--defined-only", file], check=True, capture_output=True, text=True).stdout
    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    return [line[2] for line in lines if len(line) == 3 and line[1] in WEAK and not line[2].startswith("DW.ref.")]


def main() -> int:
    build = Path(sys.argv[1])
    files = object_files(build)
    found = [f"{file.relative_to(build)}: {name}" for file in files for name in weak_symbols(file)]
    print("\n".join(found) or f"{len(files)} object files, no weak symbol")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
