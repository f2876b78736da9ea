"""The README's table of formats and sizes, as Markdown, from runs of `nibble repack` and `nibble verify`.

    python bench/repack_table.py build/nibble WORK e2b=SRC 12b=SRC 26b-a4b=SRC [--formats q4w4a16,gguf] >> table.md

One output at a time stands in WORK and is removed after its verify, so WORK needs the largest of them. Sources come from
make_checkpoint or are real ones; sizes, exactness, seconds and peak memory are what the two commands report and the kernel counts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

FORMATS = ["q4w4a16", "q4w4a16emb4", "gguf", "w8a8", "w8a8emb4"]
HEADER = """| size | format | bytes | of bf16 | exact groups | error of the rest | repack | peak memory | verify | peak memory | loads in |
|---|---|---|---|---|---|---|---|---|---|---|"""


def run(command: list[object]) -> tuple[str, int, float, int]:
    """stdout, exit code, seconds and peak resident bytes."""
    begin = time.perf_counter()
    job = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = job.stdout.read()
    _, status, usage = os.wait4(job.pid, 0)
    return out, os.waitstatus_to_exitcode(status), time.perf_counter() - begin, usage.ru_maxrss * 1024


def mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB"


def exactness(proof: dict) -> tuple[str, str]:
    """Groups of 32 that are read back value by value (zeros may change their sign), and the relative error of what is not proven exact."""
    counts = proof.get("totals") or proof.get("q4_0") or {"groups": 0}
    measured = proof.get("measured", {}).get("int8") or proof.get("q6_k_measured") or {}
    groups = f"{counts['groups_right']:,} of {counts['groups']:,}" if counts["groups"] else "-"
    if counts["groups"] and counts["worst_ulp"] > 0:
        groups += f", {100 * counts['values_bit_identical'] / counts['values']:.2f} % of values"
    error = f"{100 * measured['relative_error']:.2f} %, {measured['snr_db']:.1f} dB" if measured.get("values") else "-"
    return groups, error


def row(nibble: Path, name: str, source: Path, work: Path, form: str, threads: int) -> str:
    out = work / ("OUT.gguf" if form == "gguf" else "OUT")
    flags = ["--threads", threads, "--json"]
    text, code, repack_s, repack_peak = run([nibble, "repack", source, out, "--format", form, *flags])
    if code != 0:
        sys.exit(f"{name} {form}: repack ended with {code}")
    report = json.loads(text)
    files = [out] if form == "gguf" else list(out.iterdir())
    n_bytes = sum(path.stat().st_size for path in files)
    text, code, verify_s, verify_peak = run([nibble, "verify", source, out, *flags])
    proof = json.loads(text)
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    if code != 0:
        sys.exit(f"{name} {form}: verify ended with {code}: {proof['faults'][:1]}")
    source_bytes = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    groups, error = exactness(proof)
    planned = json.loads(run([nibble, "plan", source, "--json"])[0])["formats"]
    (loads_in,) = [planned_row["loads_in"] for planned_row in planned if planned_row["format"] == form]
    rate = source_bytes / 1e9 / report["run"]["seconds"]
    return (f"| {name} | `{form}` | {n_bytes:,} | {n_bytes / source_bytes:.3f} | {groups} | {error} | {repack_s:.1f} s ({rate:.2f} GB/s) | "
            f"{mb(repack_peak)} | {verify_s:.1f} s | {mb(verify_peak)} | {loads_in} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nibble", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("sources", nargs="+", help="NAME=DIRECTORY")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print(HEADER)
    for name, source in (pair.split("=", 1) for pair in args.sources):
        for form in args.formats.split(","):
            print(row(args.nibble, name, Path(source), args.work, form, args.threads), flush=True)


if __name__ == "__main__":
    main()
