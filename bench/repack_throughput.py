"""Seconds of `nibble repack` and `nibble verify` beside what the machine needs to move the same bytes.

One round: `cat SRC/* > /dev/null` and a plain write (with fsync) of as many bytes as the output has,
then the repack, then the verify. Rounds alternate, so that a noisy machine is noisy for all; medians
are reported. Once at the end: the same recovery in numpy (baseline_numpy.py), on one core, beside a
repack's and a verify's values per second of CPU time.

    python bench/repack_throughput.py build/nibble SRC WORK --rounds 3 --threads 2
    taskset -c 1 python bench/repack_throughput.py build/nibble SRC WORK --threads 1    # per core

SRC should fit in the page cache together with the output; an untimed repack warms it. The ratio by the
wall means something on an idle machine alone: a repack needs both cores, cat and write one.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = os.urandom(8 << 20)


def cat(source: Path) -> None:
    subprocess.run(["sh", "-c", 'cat "$0"/* > /dev/null', source], check=True)


def write(path: Path, n_bytes: int) -> None:
    with path.open("wb", buffering=0) as file:
        for begin in range(0, n_bytes, len(BLOCK)):
            file.write(BLOCK[: n_bytes - begin])
        os.fsync(file.fileno())


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def timed(action: Callable[[], object]) -> dict[str, float]:
    """Seconds by the wall and of CPU time, children's included."""
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time()
    begin = time.perf_counter()
    action()
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu + time.process_time() - own}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("nibble", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path, help="where the output goes; a directory OUT is made in it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--format", default="q4w4a16emb4")
    parser.add_argument("--baseline-values", type=float, default=500e6, help="0: no numpy baseline")
    args = parser.parse_args()
    out = args.work / "OUT"
    plain = args.work / "plain"
    args.work.mkdir(parents=True, exist_ok=True)

    def repack() -> None:
        options = ["--format", args.format, "--threads", str(args.threads)]
        run([str(args.nibble), "repack", str(args.source), str(out), *options])

    def verify() -> None:
        run([str(args.nibble), "verify", str(args.source), str(out), "--threads", str(args.threads)])

    shutil.rmtree(out, ignore_errors=True)
    repack()  # warms the page cache and tells the output's size
    out_bytes = sum(path.stat().st_size for path in out.iterdir())
    rounds: dict[str, list[dict[str, float]]] = {"cat": [], "write": [], "repack": [], "verify": []}
    for _ in range(args.rounds):
        rounds["cat"].append(timed(lambda: cat(args.source)))
        rounds["write"].append(timed(lambda: write(plain, out_bytes)))
        plain.unlink()
        shutil.rmtree(out)
        rounds["repack"].append(timed(repack))
        rounds["verify"].append(timed(verify))
        print({name: round(times[-1]["wall"], 2) for name, times in rounds.items()}, file=sys.stderr)

    median = {
        name: {kind: statistics.median(each[kind] for each in times) for kind in ("wall", "cpu")}
        for name, times in rounds.items()
    }
    grid = json.loads((out / "nibble-report.json").read_text())["totals"]
    n_values = grid.get("values", grid.get("grid", {}).get("values"))
    plain_seconds = median["cat"]["wall"] + median["write"]["wall"]
    result = {
        "source_bytes": sum(path.stat().st_size for path in args.source.iterdir()),
        "output_bytes": out_bytes,
        "values": n_values,
        "seconds": median,
        "repack_rate_of_cat_and_write": plain_seconds / median["repack"]["wall"],
        "verify_rate_of_repack": median["repack"]["wall"] / median["verify"]["wall"],
        "values_per_cpu_second": {
            name: n_values / median[name]["cpu"] for name in ("repack", "verify")
        },
    }
    if args.baseline_values > 0:
        baseline = run(
            [sys.executable, str(HERE / "baseline_numpy.py"), str(args.source), str(out),
             "--values", str(args.baseline_values)]
        )
        result["numpy"] = json.loads(baseline)
        numpy_rate = result["numpy"]["values_per_second"]
        result["repack_rate_of_numpy"] = n_values / median["repack"]["wall"] / numpy_rate
        result["repack_cpu_rate_of_numpy"] = result["values_per_cpu_second"]["repack"] / numpy_rate
    shutil.rmtree(out)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
