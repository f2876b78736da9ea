"""The grid recovery of `nibble repack` in numpy, as the baseline that nibble's speed is told against.

The same interval method (docs/GRID.md) on whole arrays of groups at a time: the same codes and
scales, byte for byte, which is checked against nibble's own output. Left out is what no trained
checkpoint has: all-zero groups, magnitudes below 2^-122, values off the grid; such groups are
counted and not compared.

    python bench/baseline_numpy.py SRC OUT --values 500e6     # OUT: nibble repack SRC OUT
"""

import argparse
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

GROUP = 32
CHUNK_GROUPS = 8192  # arrays of 1 MiB stay in the second-level cache
INFINITY = np.int32(0x7F800000)


def as_float(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float32)


def bf16_to_float(bits: np.ndarray) -> np.ndarray:
    return as_float(bits.astype(np.uint32) << 16)


def float_to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(bits: np.ndarray, is_fp16: bool) -> np.ndarray:
    return bits.view(np.float16).astype(np.float32) if is_fp16 else bf16_to_float(bits)


def store(values: np.ndarray, is_fp16: bool) -> np.ndarray:
    return values.astype(np.float16).view(np.uint16) if is_fp16 else float_to_bf16(values)


def scale_inside(low: np.ndarray, high: np.ndarray, is_fp16: bool) -> tuple[np.ndarray, np.ndarray]:
    """A scale of the dtype between the ends (float bits), near the middle, and whether there is one."""
    nearest = store(as_float(low) * np.float32(0.5) + as_float(high) * np.float32(0.5), is_fp16)
    scale = nearest.copy()
    found = np.zeros(len(low), bool)
    for step in (0, 0xFFFF, 1):
        candidate = nearest + np.uint16(step)
        bits = widen(candidate, is_fp16).view(np.int32)
        fits = (bits >= low) & (bits <= high) & ~found
        scale[fits] = candidate[fits]
        found |= fits
    return scale, found


def exact_scale(low: np.ndarray, high: np.ndarray, is_fp16: bool) -> tuple[np.ndarray, np.ndarray]:
    """The same, but one that bf16 holds too, if possible."""
    scale, found = scale_inside(low, high, is_fp16)
    if is_fp16:
        bf16, is_inside = scale_inside(low, high, False)
        value = bf16_to_float(bf16)
        narrow = store(value, True)
        is_inside &= widen(narrow, True) == value
        scale[is_inside] = narrow[is_inside]
        found |= is_inside
    return scale, found


class Groups:
    """What all supposed peak codes need of the groups, [n, 32]."""

    def __init__(self, bits: np.ndarray) -> None:
        self.is_negative = bits >= 0x8000
        magnitude = bits & 0x7FFF
        wide = magnitude.astype(np.int32) << 16
        is_zero = magnitude == 0
        self.size = as_float(wide)
        self.lower = as_float(np.where(is_zero, 0, wide - 0x8000).astype(np.int32))
        self.upper = as_float(np.where(is_zero, INFINITY, wide + 0x8000).astype(np.int32))
        self.is_open = (magnitude & 1).astype(np.int32)
        rows = np.arange(len(bits))
        peak_at = magnitude.argmax(1)
        self.peak = self.size[rows, peak_at]
        self.peak_is_negative = self.is_negative[rows, peak_at]
        smallest = np.where(is_zero, 0x7FFF, magnitude).min(1)
        self.is_usual = (self.peak > 0) & (self.peak < np.inf) & (smallest >= 5 << 7)
        n_negative_zeros = (is_zero & self.is_negative).sum(1)
        self.zeros_are_negative = 2 * n_negative_zeros > is_zero.sum(1)

    def explain(self, rows: np.ndarray, peak_code: int) -> tuple[np.ndarray, ...]:
        """Sizes of codes, ends of the scales' interval, and whether it holds anything."""
        codes = (
            self.size[rows] * (np.float32(peak_code) / self.peak[rows])[:, None] + np.float32(0.5)
        ).astype(np.int32)
        divisor = np.maximum(codes, 1).astype(np.float32)
        is_open = self.is_open[rows]
        low = ((self.lower[rows] / divisor).view(np.int32) + is_open).max(1)
        high = ((self.upper[rows] / divisor).view(np.int32) - is_open).min(1)
        ok = low <= high
        if peak_code == 8:
            other_sign = self.is_negative[rows] != self.peak_is_negative[rows][:, None]
            ok &= ~((codes == 8) & other_sign).any(1)
        return codes, low, high, ok


def recover(bits: np.ndarray, is_fp16: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packed nibbles [n, 16], scale bits [n] and which groups were solved, of bf16 bits [n, 32]."""
    groups = Groups(bits)
    n = len(bits)
    sizes = np.zeros((n, GROUP), np.int8)
    scales = np.zeros(n, np.uint16)
    solved = np.zeros(n, bool)  # exactly, or with the nearest scale
    open_rows = np.flatnonzero(groups.is_usual)
    for peak_code in range(8, 0, -1):
        if len(open_rows) == 0:
            break
        codes, low, high, ok = groups.explain(open_rows, peak_code)
        rows, low, high = open_rows[ok], low[ok], high[ok]
        scale, is_exact = exact_scale(low, high, is_fp16)
        middle = as_float(low) * np.float32(0.5) + as_float(high) * np.float32(0.5)
        scale = np.where(is_exact, scale, store(middle, is_fp16))
        taken = is_exact | ~solved[rows]
        sizes[rows[taken]] = codes[ok][taken]
        scales[rows[taken]] = scale[taken]
        solved[rows] = True
        open_rows = np.setdiff1d(open_rows, rows[is_exact], assume_unique=True)
    has_eight = (sizes == 8).any(1)
    negative = np.where(has_eight, ~groups.peak_is_negative, groups.zeros_are_negative)
    codes = np.where(groups.is_negative == negative[:, None], sizes, -sizes) + 8
    packed = (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
    return packed, scales | (negative.astype(np.uint16) << 15), solved


def tensors(directory: Path) -> dict[str, tuple[np.memmap, str, list[int]]]:
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        data = np.memmap(path, np.uint8, "r")[8 + size :]
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (data[begin:end], entry["dtype"], entry["shape"])
    return found


def packed_pairs(source: Path, output: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray, bool]]:
    """Name, source bits, packed bytes, scale bits and whether scales are fp16, of packed matrices."""
    out = tensors(output)
    for name, (data, _, shape) in tensors(source).items():
        module = name.removesuffix(".weight")
        for candidate in (module, module.replace("model.language_model.", "model.", 1)):
            if len(shape) == 2 and candidate + ".weight_packed" in out:
                scales, dtype, _ = out[candidate + ".weight_scale"]
                packed = out[candidate + ".weight_packed"][0].reshape(-1, GROUP // 2)
                bits = data.view(np.uint16).reshape(-1, GROUP)
                yield name, bits, packed, scales.view(np.uint16), dtype == "F16"
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path, help="made by nibble repack, int4")
    parser.add_argument("--values", type=float, default=500e6, help="stop after so many")
    args = parser.parse_args()
    seconds, n_groups, n_left_out, n_different = 0.0, 0, 0, 0
    for _, bits, packed, scales, is_fp16 in packed_pairs(args.source, args.output):
        for first in range(0, len(bits), CHUNK_GROUPS):
            if n_groups * GROUP >= args.values:
                break
            chunk = slice(first, first + CHUNK_GROUPS)
            begin = time.perf_counter()
            found, found_scales, solved = recover(np.array(bits[chunk]), is_fp16)
            seconds += time.perf_counter() - begin
            same = (found == packed[chunk]).all(1) & (found_scales == scales[chunk])
            n_groups += len(found)
            n_left_out += int((~solved).sum())
            n_different += int((solved & ~same).sum())
    result = {
        "values": n_groups * GROUP,
        "seconds": round(seconds, 3),
        "values_per_second": round(n_groups * GROUP / max(seconds, 1e-9)),
        "groups_left_out": n_left_out,
        "groups_that_differ": n_different,
    }
    print(json.dumps(result))
    raise SystemExit(0 if n_different == 0 and n_groups > 0 else 1)


if __name__ == "__main__":
    main()
