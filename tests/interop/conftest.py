"""What the interop tests share: the binary, the peers' files, the trained model. scripts/test sets the environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
# The engine's most precise settings: what is compared with transformers in float32.
REFERENCE = ("--activations", "f32", "--kv", "f32")


def from_environment(name: str) -> str:
    """A missing peer is a failure, not a skip: nothing is to pass untested."""
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"{name} is not set; run this through scripts/test interop")
    return value


@pytest.fixture(scope="session")
def nibble() -> Run:
    """nibble(*arguments, **options of subprocess.run): runs the binary; whether it may fail is the test's to say."""
    binary = from_environment("NIBBLE_BIN")

    def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, **options)

    return run


@pytest.fixture(scope="session")
def sdist() -> Path:
    """llama.cpp's source."""
    return Path(from_environment("NIBBLE_SDIST"))


@pytest.fixture(scope="session")
def tiny() -> Path:
    return ROOT / "models/tiny"
