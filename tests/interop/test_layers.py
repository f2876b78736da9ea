"""tools/check_layers.py finds each kind of violation in a small checkout made for it, and none in a clean one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("check_layers", Path(__file__).parents[2] / "tools/check_layers.py")
assert SPEC and SPEC.loader
check_layers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_layers)

CLEAN = {
    "docs/ARCHITECTURE.md": "| room | may include | holds |\n|---|---|---|\n| `base/` | nothing | x |\n| `repack/` | base | x |\n"
    "| `model/` | base | x |\n| `cli/` | everything | x |\n",
    "CMakeLists.txt": "nibble_room(base)\nnibble_room(repack base)\n",
    "src/base/a.h": "#include <vector>\n",
    "src/repack/grid.h": '#include "base/a.h"\n',
    "src/repack/verify.cc": '#include "repack/verify.h"\n#include "base/a.h"\n',
    "src/cli/main.cc": '#include "repack/grid.h"\n#include "model/b.h"\n',
    "tests/repack/grid_test.cc": '#include "repack/grid.h"\n#include "fixture.h"\n',
    "tests/repack/verify_test.cc": '#include "repack/grid.h"\n#include "repack/verify.h"\n#include "../base/fixture.h"\n',
}


def check(root: Path, changed: dict[str, str]) -> list[str]:
    for name, text in (CLEAN | changed).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return check_layers.check(root)


def test_clean(tmp_path: Path) -> None:
    assert check(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("src/base/a.h", '#include "repack/grid.h"\n', "src/base/a.h:1: base/ may include nothing, not repack/grid.h"),
        ("src/model/b.h", '\n#include "repack/grid.h"\n', "src/model/b.h:2: model/ may include base, not repack/grid.h"),
        ("tests/base/a_test.cc", '#include "repack/grid.h"\n', "tests/base/a_test.cc:1: base/ may include nothing, not repack/grid.h"),
        ("tests/base/a_test.cc", '#include "../repack/fixture.h"\n', "base/ may include nothing, not repack/fixture.h"),
        ("src/base/a.h", '#include "b.h"\n', 'src/base/a.h:1: "b.h" names no room'),
        ("src/repack/verify.cc", '#include "repack/grid.h"\n', "verify shares no code with repack, but includes repack/grid.h"),
        ("src/other/x.h", "\n", "no row for src/other/"),
        ("CMakeLists.txt", "nibble_room(base model)\n", "base links model"),
        ("src/base/a.h", "// Tested by grid_test.cc and a_test.cc.\n", "src/base/a.h:1: there is no a_test.cc"),
        ("src/base/long.cc", "\n" * 501, "src/base/long.cc:501: over 500 lines"),
        ("scripts/demo", "cd /" + "home/somebody/nibble\n", "scripts/demo:1: a path of one machine"),
    ],
)
def test_violation(tmp_path: Path, file: str, text: str, expected: str) -> None:
    (found,) = check(tmp_path, {file: text})
    assert expected in found
