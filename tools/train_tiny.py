#!/usr/bin/env python3
"""Makes models/tiny: a small trained model in the layout of Google's `*-it-qat-q4_0-unquantized` checkpoints.

    python tools/train_tiny.py train       # tokenizer, training, export, measurement: all of it, about an hour on one core
    python tools/train_tiny.py export      # checkpoint -> models/tiny (bf16 values on the Q4_0 grid, two shards)
    python tools/train_tiny.py twin OUT    # the same model right before quantisation-aware training: OUT/bf16 and OUT/q4_0
    python tools/train_tiny.py measure DIR # scores of an export, read by transformers
    python tools/train_tiny.py check       # the lean training forward against transformers' own, float32

Needs: torch 2.13, transformers 5.23, tokenizers, safetensors, jinja2 (and a C++ compiler for torch.compile). The parts are in tools/train_tiny/.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from train_tiny import tasks as task_module  # noqa: E402
from train_tiny import export, tokenizer  # noqa: E402
from train_tiny.measure import Reader, scores  # noqa: E402
from train_tiny.model import max_difference, new_model  # noqa: E402
from train_tiny.quant import amax_7_5, q4_0  # noqa: E402
from train_tiny.tasks import Tasks  # noqa: E402
from train_tiny.train import Plan, train  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["tokenizer", "train", "export", "twin", "measure", "check"])
    parser.add_argument("directory", nargs="?", type=Path, help="where `twin` writes, what `measure` reads")
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "tiny")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "train_tiny", help="checkpoints; a run found there is continued")
    parser.add_argument("--capitals", type=Path, default=ROOT / "tools" / "capitals.tsv")
    parser.add_argument("--log", type=Path, default=None, help="default: training.log beside the model")
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--train-only", action="store_true", help="stop before export and measurement")
    return parser.parse_args()


def checkpoint(work: Path, name: str) -> dict[str, torch.Tensor]:
    """`state`: the newest training state; `full`: the weights right before quantisation-aware training."""
    loaded = torch.load(work / f"{name}.pt", map_location="cpu")
    return loaded["weights"] if name == "state" else loaded


def measured(directory: Path, tasks: Tasks, log: Path) -> None:
    """Scores of an export as it is and rounded a second time both ways, written to the log."""
    for name, rounding in (("as exported", None), ("rounded again, Q4_0 rule", q4_0), ("rounded again, amax/7.5", amax_7_5)):
        for kind, score in scores(Reader(directory, rounding), tasks).items():
            with log.open("a") as out:
                print(f"{directory.name}, {name}: {kind}: {score}", file=out)


def lean_difference(tasks: Tasks) -> float:
    """Largest difference of any logit over a batch of each kind, on fresh random weights."""
    rng = random.Random(3)
    model = new_model(3)
    batches = [tasks.numeric(task_module.SUM_WORDINGS[0], torch.randint(100, 1000, (16, 3))),
               tasks.numeric(task_module.PRODUCT_WORDINGS[1], torch.randint(12, 100, (16, 2))),
               tasks.batch(rng.sample(tasks.capital_samples, 16), 4), tasks.batch([tasks.tool_sample(rng) for _ in range(4)], 7)]
    return max(max_difference(model, b) for b in batches)


def main() -> int:
    args = arguments()
    torch.set_num_threads(args.threads)
    capitals = task_module.read_capitals(args.capitals)
    log = args.log or args.out / "training.log"
    if args.command in ("tokenizer", "train"):
        tokenizer.write(task_module.corpus(capitals), args.out)
    if args.command == "train":
        train(Tasks(args.out, capitals), Plan(steps=args.steps), args.work, log)
    if args.command == "export" or (args.command == "train" and not args.train_only):
        export.write(checkpoint(args.work, "state"), q4_0, args.out, args.out)
    if args.command == "twin":
        full = checkpoint(args.work, "full")
        export.write(full, lambda w: w, args.directory / "bf16", args.out)
        export.write(full, q4_0, args.directory / "q4_0", args.out)
    if args.command == "measure" or (args.command == "train" and not args.train_only):
        measured(args.directory or args.out, Tasks(args.out, capitals), log)
    if args.command == "check":
        difference = lean_difference(Tasks(args.out, capitals))
        print(f"largest difference of a logit: {difference:.1e}")
        return 0 if difference < 1e-4 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
