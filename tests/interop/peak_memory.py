"""The kernel's count of a process's peak memory. Not wait4's, which begins with what the parent had when it started the process."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from threading import Thread

from conftest import from_environment


def watch(job: subprocess.Popen[str], peaks: list[int]) -> None:
    """Appends the peak so far, asked for until the process is gone."""
    while job.returncode is None:
        try:
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{job.pid}/status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            return
        peaks.append(int(fields.get("VmHWM", "0 kB").split()[0]) << 10)
        time.sleep(0.005)


def run_watched(*arguments: str | Path) -> tuple[str, str, int]:
    """stdout, stderr and peak memory in bytes of a command of nibble's that succeeds."""
    job = subprocess.Popen([from_environment("NIBBLE_BIN"), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peaks: list[int] = []
    watcher = Thread(target=watch, args=(job, peaks))
    watcher.start()
    out, err = job.communicate()
    watcher.join()
    assert job.returncode == 0, err
    return out, err, max(peaks)
