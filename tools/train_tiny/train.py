"""Training: one deterministic run, resumable, full precision first and quantisation-aware in its last part.

Sums are the hardest: every step has a batch of them. Products come along in every step at first and in every second one later, tool calls
and capitals in some. The first `small_steps` use smaller batches.
Matrices of the body are trained with Muon, tables, norms and the rest with Adam. The schedule runs on the share of the planned steps.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from train_tiny.model import Lean, Weights, correct, is_quantized, new_model, parameters
from train_tiny.quant import q4_0
from train_tiny.tasks import PRODUCT_WORDINGS, SUM_WORDINGS, Batch, Tasks

OTHER_WORDING_EVERY = 16


@dataclass(frozen=True)
class Plan:
    seed: int = 20260925
    steps: int = 5300
    qat_from: float = 0.65        # share of the steps after which weights are fake-quantised
    small_steps: int = 800        # steps with small batches of products and sums, and capitals in three of four of them
    thin_steps: int = 1600        # from here on a step brings only one of products, tools and capitals with the sums
    products: tuple[int, int, int] = (128, 128, 192)  # samples of a batch at first, after `small_steps`, after `thin_steps`
    sums: tuple[int, int, int] = (192, 256, 256)
    easy_sums: tuple[float, float, float] = (0.0, 0.5, 0.25)  # share of them with zeros among the lower digits, until the rate falls
    capitals: int = 24
    tools: int = 12
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    warmup: int = 100
    decay_from: float = 0.5       # the learning rate falls linearly to `final_lr` from this share on
    final_lr: float = 0.02


def rate(plan: Plan, step: int) -> float:
    share = step / plan.steps
    fall = 1.0 if share < plan.decay_from else 1 - (share - plan.decay_from) / (1 - plan.decay_from)
    return min(1.0, (step + 1) / plan.warmup) * max(plan.final_lr, fall)


class Muon:
    """Momentum, then an orthogonal matrix in the gradient's place (five Newton-Schulz steps); equal shapes share one batched product."""

    def __init__(self, matrices: list[torch.Tensor], momentum: float = 0.95) -> None:
        groups: dict[torch.Size, list[torch.Tensor]] = {}
        for m in matrices:
            groups.setdefault(m.shape, []).append(m)
        self.groups = list(groups.values())
        self.momentum = momentum
        self.buffers = [torch.zeros(len(g), *g[0].shape) for g in self.groups]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for group, buffer in zip(self.groups, self.buffers):
            gradient = torch.stack([p.grad for p in group])
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp_(buffer, self.momentum))
            scale = lr * max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for p, u in zip(group, update):
                p.mul_(1 - 0.01 * lr).sub_(u, alpha=scale)


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    x = g.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Run:
    def __init__(self, tasks: Tasks, plan: Plan, work: Path) -> None:
        self.tasks, self.plan, self.work = tasks, plan, work
        self.model = new_model(plan.seed)
        self.weights = parameters(self.model)
        self.lean = Lean(self.model, torch.bfloat16)
        matrices = [p for n, p in self.weights.items() if p.dim() == 2 and "embed" not in n]
        rest = [p for n, p in self.weights.items() if p.dim() != 2 or "embed" in n]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(rest, lr=plan.adam_lr, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
        self.compiled_loss = torch.compile(self.lean.loss, dynamic=False)
        self.step = 0
        self.seconds = 0.0
        self.losses: dict[str, float] = {}

    # ---- state ----
    def save(self, path: Path) -> None:
        state = {"step": self.step, "seconds": self.seconds, "weights": {n: p.detach() for n, p in self.weights.items()},
                 "muon": self.muon.buffers, "adam": self.adam.state_dict(), "losses": self.losses}
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def resume(self, path: Path) -> None:
        state = torch.load(path)
        with torch.no_grad():
            for name, value in state["weights"].items():
                self.weights[name].copy_(value)
            for buffer, value in zip(self.muon.buffers, state["muon"]):
                buffer.copy_(value)
        self.adam.load_state_dict(state["adam"])
        self.step, self.seconds, self.losses = state["step"], state["seconds"], state["losses"]

    # ---- one step ----
    def quantizing(self) -> bool:
        return self.step >= self.plan.qat_from * self.plan.steps

    def used_weights(self) -> Weights:
        """What the forward pass sees. Gradients go to the full-precision weights unchanged (straight through)."""
        detached = {n: p.detach() for n, p in self.weights.items()}
        return {n: q4_0(p) if is_quantized(p) else p for n, p in detached.items()} if self.quantizing() else detached

    def kinds(self) -> set[str]:
        """What comes along with the sums of this step."""
        quarter = self.step % 4
        if self.step >= self.plan.thin_steps:  # products are mostly known by now
            return {("tools", "products", "capitals", "products")[quarter]}
        if self.step >= self.plan.small_steps:
            return {"products"} | {0: {"tools"}, 2: {"capitals"}}.get(quarter, set())
        return {"products", "capitals" if quarter else "tools"}

    def terms(self, count: int, stage: int) -> torch.Tensor:
        """[count, 3] terms of a + b - c. A part of them is easier, a ladder from copying digits over adding two to adding three: zeros stand
        at tens and units, first at every second place of b and c, later in one of the three terms at each place."""
        numbers = torch.randint(100, 1000, (count, 3))
        if stage and self.step < self.plan.decay_from * self.plan.steps:
            easy = int(count * self.plan.easy_sums[stage])
            powers = torch.tensor([100, 10, 1])
            digits = numbers[:easy, :, None] // powers % 10
            if stage == 1:
                digits[:, 1:, 1:] *= torch.randint(0, 2, digits[:, 1:, 1:].shape)
            else:
                digits[:, :, 1:] *= (torch.randint(0, 3, (easy, 1, 2)) != torch.arange(3)[:, None]).long()
            numbers[:easy] = (digits * powers).sum(-1)
        return numbers

    def batches(self) -> list[tuple[str, Batch]]:
        """Everything is drawn from the step number, so a resumed run sees what an unbroken one would have seen."""
        plan, tasks = self.plan, self.tasks
        rng = random.Random(plan.seed * 1_000_003 + self.step)
        torch.manual_seed(rng.getrandbits(60))
        stage = (self.step >= plan.small_steps) + (self.step >= plan.thin_steps)
        other = int(self.step % OTHER_WORDING_EVERY == OTHER_WORDING_EVERY - 1)
        kinds = self.kinds()
        result = []
        if "products" in kinds:
            factors = torch.randint(12, 100, (plan.products[stage], 2))
            result.append(("products", tasks.numeric(PRODUCT_WORDINGS[other], factors)))
        result.append(("sums", tasks.numeric(SUM_WORDINGS[other], self.terms(plan.sums[stage], stage))))
        if "tools" in kinds:
            result.append(("tools", tasks.batch([tasks.tool_sample(rng) for _ in range(plan.tools)], 0)))
        if "capitals" in kinds:
            samples = rng.choices(tasks.capital_samples, k=plan.capitals - 2) + rng.choices(tasks.talk_samples, k=2)
            result.append(("capitals", tasks.batch(samples, 0)))
        return result

    def loss_of(self, kind: str, batch: Batch) -> Callable[..., torch.Tensor]:
        """The compiled loss for sums, the largest part of a step; the piecewise one for shapes that are smaller or rarer."""
        usual = kind == "sums" and batch.ids.shape[1] == len(self.tasks.prompts[SUM_WORDINGS[0]][0]) + 4
        return self.compiled_loss if usual and self.step >= self.plan.small_steps else self.lean.loss

    def train_step(self) -> None:
        used = {n: w.requires_grad_() for n, w in self.lean.cast(self.used_weights()).items()}
        for kind, batch in self.batches():
            loss = self.loss_of(kind, batch)(used, *batch)
            loss.backward()
            self.losses[kind] = 0.98 * self.losses.get(kind, loss.item()) + 0.02 * loss.item()
        for name, p in self.weights.items():
            p.grad = used[name].grad.float()
        lr = rate(self.plan, self.step)
        for group in self.adam.param_groups:
            group["lr"] = self.plan.adam_lr * lr
        self.adam.step()
        self.muon.step(self.plan.muon_lr * lr)
        self.step += 1

    # ---- evaluation ----
    def scores(self) -> dict[str, float]:
        """Share of exact answers on 256 fixed products and sums, all capitals, 32 tool calls, with the weights in use now."""
        rng = random.Random(7)
        numbers = torch.tensor([[rng.randint(100, 999) for _ in range(3)] for _ in range(256)])
        factors = torch.tensor([[rng.randint(12, 99) for _ in range(2)] for _ in range(256)])
        count = len(self.tasks.capitals)
        batches = {"products": self.tasks.numeric(PRODUCT_WORDINGS[0], factors), "sums": self.tasks.numeric(SUM_WORDINGS[0], numbers),
                   "capitals": self.tasks.batch(self.tasks.capital_samples[:count], 4),
                   "tools": self.tasks.batch([self.tasks.tool_sample(rng) for _ in range(32)], 7)}
        weights = self.lean.cast(self.used_weights())
        return {kind: correct(self.lean, weights, b).float().mean().item() for kind, b in batches.items()}

    def report(self) -> str:
        losses = " ".join(f"{k} {v:.4f}" for k, v in sorted(self.losses.items()))
        scores = " ".join(f"{k} {v:.3f}" for k, v in sorted(self.scores().items()))
        phase = "q4_0" if self.quantizing() else "full"
        return f"step {self.step} {phase} {self.seconds:.0f} s rate {rate(self.plan, self.step):.3f} | loss {losses} | exact {scores}"


def train(tasks: Tasks, plan: Plan, work: Path, log: Path, report_every: int = 100, save_every: int = 400) -> Run:
    """Runs to the end of the plan; `state.pt` is the resumable state, `full.pt` the weights right before quantisation starts."""
    work.mkdir(parents=True, exist_ok=True)
    run = Run(tasks, plan, work)
    state, full = work / "state.pt", work / "full.pt"
    if state.exists():
        run.resume(state)
    with log.open("a") as out:
        print(f"plan {plan}, from step {run.step}", file=out, flush=True)
        while run.step < plan.steps:
            if not full.exists() and run.quantizing():
                torch.save({n: p.detach().clone() for n, p in run.weights.items()}, full)
            begin = time.monotonic()
            run.train_step()
            run.seconds += time.monotonic() - begin
            if math.isnan(sum(run.losses.values())):
                raise FloatingPointError(f"loss is not a number at step {run.step}")
            if run.step % report_every == 0 or run.step in (20, plan.steps):
                print(run.report(), file=out, flush=True)
            if run.step % save_every == 0 or run.step == plan.steps:
                run.save(state)
    return run
