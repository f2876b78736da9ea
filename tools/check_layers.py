#!/usr/bin/env python3
"""Checks the rooms of src/ against the table of docs/ARCHITECTURE.md, and a few habits that a compiler does not see.

The table is the law: a room includes itself and what its row names, CMake links the same arrows, and the tests of a room see no more
than the room does. verify is to be independent of what it judges, so in repack/ it includes only its own files. Besides: no source
over 500 lines, no path of somebody's machine, no test named that does not exist. Prints each violation as FILE:LINE: what; exit 1 if there is one.
Tested by tests/interop/test_layers.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 500
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:root|work|home|Users)/")
TEST_NAME = re.compile(r"\b(\w+_test\.cc|test_\w+\.py|\w+_fuzz\.cc)\b")
SOURCES = {".cc", ".h", ".cu", ".py"}
FOLDERS = ("src", "tests", "fuzz", "bench", "tools", "scripts", "docs", "integrations", ".ci")
Rooms = dict[str, set[str]]


def read_rooms(root: Path) -> Rooms:
    """Room -> rooms that it may include, from the table whose rows start with a room's folder."""
    rows = re.findall(r"^\| `(\w+)/` \| ([^|]+) \|", (root / "docs/ARCHITECTURE.md").read_text(), re.MULTILINE)
    rooms = {room: set(may.split()) for room, may in rows}
    for room, may in rooms.items():
        rooms[room] = set(rooms) if may == {"everything"} else may - {"nothing"}
    return rooms


def files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (p for p in sorted((root / folder).rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
    yield from sorted(root.glob("*.md"))
    yield from sorted(root.glob("CMake*"))


def include_violation(file: Path, included: str, rooms: Rooms) -> str | None:
    """`file` is relative to the checkout; sources outside the rooms (fuzz/, bench/) may include any."""
    top, room = file.parts[0], file.parts[1]
    in_tests = top == "tests"
    if top != "src" and not in_tests:
        return None
    if in_tests and "/" not in included:
        return None  # a fixture beside the test
    if in_tests and included.startswith("../"):
        included = included.removeprefix("../")  # a fixture of another room's tests
    target = included.split("/")[0]
    if room not in rooms:
        return f"{room}/ has no row in docs/ARCHITECTURE.md"
    if target not in rooms:
        return f'"{included}" names no room'
    if target != room and target not in rooms[room]:
        return f"{room}/ may include {' '.join(sorted(rooms[room])) or 'nothing'}, not {included}"
    if top == "src" and file.stem.startswith("verify") and room == "repack":
        if target == room and not included.startswith("repack/verify"):
            return f"verify shares no code with repack, but includes {included}"
    return None


def check_file(root: Path, path: Path, rooms: Rooms) -> Iterator[str]:
    file = path.relative_to(root)
    lines = path.read_text(errors="replace").splitlines()
    if path.suffix in SOURCES and len(lines) > MAX_LINES:
        yield f"{file}:{len(lines)}: over {MAX_LINES} lines"
    for number, line in enumerate(lines, 1):
        include = INCLUDE.match(line) if path.suffix in (".cc", ".h") else None
        if include and (what := include_violation(file, include[1], rooms)):
            yield f"{file}:{number}: {what}"
        if MACHINE_PATH.search(line):
            yield f"{file}:{number}: a path of one machine: {line.strip()}"


def check_named_tests(root: Path) -> Iterator[str]:
    """A header of src/ says by which files it is tested."""
    existing = {p.name for folder in ("tests", "fuzz") for p in (root / folder).rglob("*")}
    for path in sorted((root / "src").rglob("*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in TEST_NAME.findall(line):
                if name not in existing:
                    yield f"{path.relative_to(root)}:{number}: there is no {name}"


def check_cmake(root: Path, rooms: Rooms) -> Iterator[str]:
    """A room links what it may include, or less."""
    text = (root / "CMakeLists.txt").read_text()
    for room, linked in re.findall(r"^nibble_room\((\w+)([^)]*)\)", text, re.MULTILINE):
        for extra in sorted(set(linked.split()) - rooms.get(room, set())):
            yield f"CMakeLists.txt:1: {room} links {extra}, which its row in docs/ARCHITECTURE.md does not name"


def check(root: Path) -> list[str]:
    rooms = read_rooms(root)
    violations = [f"docs/ARCHITECTURE.md:1: no row for src/{p.name}/" for p in (root / "src").iterdir() if p.name not in rooms]
    for path in files(root):
        violations += check_file(root, path, rooms)
    return violations + list(check_named_tests(root)) + list(check_cmake(root, rooms))


def main() -> int:
    violations = check(Path(__file__).resolve().parent.parent)
    print("\n".join(violations) if violations else "rooms: no arrow upward")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
