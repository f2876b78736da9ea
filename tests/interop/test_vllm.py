"""Real vLLM loads what `nibble repack` writes and gives the greedy tokens of the float32 reference.

The reference of a packed model is transformers in float32 on the values that the reader makes of the file: int4 code x scale in the
run's dtype; int8 code x scale in float32, with each token's inputs rounded to int8 as that reader rounds them. Codes are unpacked here
by compressed-tensors. vLLM's int4 kernel for CPUs has no float32; models with int8 alone run in it, as rounding inputs magnifies
float16's errors. Starting vLLM is slow, so one process serves all the models.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import random_models
import servers
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from conftest import REFERENCE, Run, from_environment
from safetensors.torch import load_file
from synthetic import make_member
from tokenizers import Tokenizer
from transformers import AutoConfig, Gemma4ForCausalLM

QUESTIONS = ["What is the capital of Turkey?", "What is the capital of Australia?", "Name the capital of Morocco.", "What is 23*47?",
             "What is 68*91?", "What is 512+389-204?", "What is 700+101-650?", "Who are you?", "Hello", "What can you do?"]
MAX_TOKENS = 12
RUNS = [("tiny", "q4w4a16"), ("tiny", "q4w4a16emb4"), ("tiny", "w8a8"), ("tiny", "w8a8emb4"),
        ("k_eq_v", "q4w4a16"), ("k_eq_v", "q4w4a16emb4"), ("k_eq_v", "w8a8")]
TOWERS = [("e2b", "q4w4a16"), ("12b", "w8a8")]  # toys of members with everything that is not text kept


def load(packed: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(packed.glob("*.safetensors")):
        tensors |= load_file(shard)
    return tensors


def dtype_of(form: str) -> torch.dtype:
    return torch.float32 if form == "w8a8" else torch.float16


def reader_values(packed: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Name -> float32 weight as a run of the reader in `dtype` sees it."""
    tensors = load(packed)
    weights = {}
    for name, tensor in tensors.items():
        base, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            scale = tensors[f"{base}.weight_scale"].to(dtype).unsqueeze(-1)
            codes = unpack_from_int32(tensor, 4, torch.Size(tensors[f"{base}.weight_shape"].tolist()))
            weights[f"{base}.weight"] = (codes.to(dtype).unflatten(-1, (scale.shape[1], -1)) * scale).flatten(-2).float()
        elif tensor.dtype == torch.int8:
            weights[name] = tensor.float() * tensors[f"{base}.weight_scale"]
        elif kind not in ("weight_scale", "weight_shape"):
            weights[name] = tensor.to(dtype).float()
    return weights


def reference(packed: Path, dtype: torch.dtype) -> Gemma4ForCausalLM:
    config = AutoConfig.from_pretrained(packed)
    del config.quantization_config
    model = Gemma4ForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(reader_values(packed, dtype), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    model.int8_modules = random_models.int8_modules(packed)
    return model


@torch.no_grad()
def gaps(model: Gemma4ForCausalLM, prompts: list[list[int]], tokens: list[list[int]]) -> torch.Tensor:
    """[prompts, MAX_TOKENS]: how far below the reference's best logit each token's is; 0 where it is the reference's greedy token."""
    rows = []
    with random_models.int8_inputs(model):
        for ids, answer in zip(prompts, tokens, strict=True):
            logits = model(torch.tensor([ids + answer[:-1]])).logits[0, -len(answer):]
            rows.append(logits.amax(-1) - logits.gather(-1, torch.tensor(answer)[:, None])[:, 0])
    return torch.stack(rows)


def prompts_of(kind: str, tiny: Path) -> list[list[int]]:
    if kind == "tiny":
        tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
        return [tokenizer.encode(f"<bos><|turn>user\n{q}<turn|>\n<|turn>model\n", add_special_tokens=False).ids for q in QUESTIONS]
    generator = torch.Generator().manual_seed(1)
    if kind in dict(TOWERS):
        return [[2] + torch.randint(3, 90, (length,), generator=generator).tolist() for length in (5, 20)]  # below the ids of images
    return [[2] + torch.randint(3, random_models.VOCAB, (length,), generator=generator).tolist() for length in (5, 20, 40)]


@pytest.fixture(scope="module")
def sources(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trained model, and random ones of the other kinds on the grid."""
    folder = tmp_path_factory.mktemp("sources")
    for kind in ("k_eq_v", "moe"):
        random_models.build(kind, folder / f"{kind}-plain")
        random_models.as_qat(folder / f"{kind}-plain", folder / kind)
    models = {"tiny": tiny, "k_eq_v": folder / "k_eq_v", "moe": folder / "moe"}
    for member, _ in TOWERS:
        checkpoint = make_member(member)
        checkpoint.files = {}
        models[member] = checkpoint.write(folder / member)
    return models


@pytest.fixture(scope="module")
def packed(nibble: Run, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("packed")
    models = {}
    for kind, form in [*RUNS, *TOWERS, ("moe", "q4w4a16"), ("moe", "w8a8")]:
        models[kind, form] = folder / f"{kind}-{form}"
        towers = ["--keep-towers"] if (kind, form) in TOWERS else []
        done = nibble("repack", sources[kind], models[kind, form], "--format", form, *towers)
        assert done.returncode == 0, done.stderr
    return models


@pytest.fixture(scope="module")
def results(packed: dict[tuple[str, str], Path], tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict]:
    """What vLLM made of each model; of the experts, which it does not run on CPU, what it says and what its loader holds."""
    folder = tmp_path_factory.mktemp("vllm")
    tasks: list[dict] = [{"model": str(path), "dtype": str(dtype_of(form)).removeprefix("torch."), "prompts": prompts_of(kind, tiny),
                          "max_tokens": MAX_TOKENS} for (kind, form), path in packed.items()]
    moe = [path for (kind, _), path in packed.items() if kind == "moe"]
    tasks += [{"model": str(path), "experts": str(folder / path.name)} for path in moe]
    out = folder / "results.json"
    run = subprocess.run([from_environment("NIBBLE_VLLM_PYTHON"), Path(__file__).with_name("vllm_worker.py"), out], input=json.dumps(tasks),
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    answers = dict(zip(packed, json.loads(out.read_text()), strict=False))
    for (kind, form), answer in answers.items():
        if kind == "moe":
            answer["experts"] = folder / packed[kind, form].name
    return answers


@pytest.mark.parametrize(("kind", "form"), RUNS)
def test_greedy_tokens(packed: dict[tuple[str, str], Path], results: dict[tuple[str, str], dict], tiny: Path, kind: str, form: str) -> None:
    assert "error" not in results[kind, form], results[kind, form]["error"]
    tokens = results[kind, form]["tokens"]
    found = gaps(reference(packed[kind, form], dtype_of(form)), prompts_of(kind, tiny), tokens)
    assert found.shape == (len(tokens), MAX_TOKENS)
    if form.startswith("w8a8"):
        # An input on the edge between two int8 codes moves what follows by some tenths of a logit; only near ties may turn.
        assert found.max() < 0.5 and (found == 0).float().mean() > 0.95
    else:
        assert (found == 0).all()
    if kind == "tiny":
        assert Tokenizer.from_file(str(tiny / "tokenizer.json")).decode(tokens[0]).startswith("Ankara")


@pytest.mark.parametrize(("kind", "form"), TOWERS)
def test_a_model_with_its_towers_answers_like_its_text_alone(nibble: Run, sources: dict[str, Path], results: dict[tuple[str, str], dict],
                                                             tiny: Path, tmp_path: Path, kind: str, form: str) -> None:
    assert "error" not in results[kind, form], results[kind, form]["error"]
    assert nibble("repack", sources[kind], tmp_path / "text", "--format", form).returncode == 0
    found = gaps(reference(tmp_path / "text", dtype_of(form)), prompts_of(kind, tiny), results[kind, form]["tokens"])
    print(f"{kind} {form}: largest gap {found.max():.3g}, greedy {(found == 0).float().mean():.3f}")
    assert found.max() < (0.5 if form == "w8a8" else 0.02) and (found == 0).float().mean() > 0.95


@pytest.mark.parametrize(("form", "message"), [("q4w4a16", "No WNA16 MoE backend supports the deployment configuration"), ("w8a8", "No Int8 MoE backend")])
def test_vllm_on_cpu_refuses_quantised_experts(results: dict[tuple[str, str], dict], form: str, message: str) -> None:
    assert message in results["moe", form]["error"]


@pytest.mark.parametrize("form", ["q4w4a16", "w8a8"])
def test_the_loader_puts_every_expert_in_its_place(packed: dict[tuple[str, str], Path], results: dict[tuple[str, str], dict], form: str) -> None:
    """vLLM's fused parameters: w13 holds each expert's gate rows and then its up rows, w2 its down rows."""
    written, loaded = load(packed["moe", form]), load_file(results["moe", form]["experts"])
    facts = random_models.KINDS["moe"]
    parts = ["weight_packed", "weight_scale"] if form == "q4w4a16" else ["weight", "weight_scale"]
    for layer in range(len(facts["layer_types"])):
        for expert in range(facts["num_experts"]):
            name = f"model.layers.{layer}.experts.{expert}.%s_proj.{{}}"
            for part in parts:
                gate, up, down = (written[(name % which).format(part)] for which in ("gate", "up", "down"))
                w13, w2 = loaded[f"{layer}.w13_{part}"][expert], loaded[f"{layer}.w2_{part}"][expert]
                assert torch.equal(w13, torch.cat([gate, up]).to(w13.dtype)), name
                assert torch.equal(w2, down.to(w2.dtype)), name


def test_eval_and_bench_of_its_server(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Beside our engine on the same files, in one start. vLLM computes in float16, so a near tie may turn: at most one answer, and likelihoods
    nearly the same."""
    packed = tmp_path / "q4w4a16"
    assert nibble("repack", tiny, packed, "--format", "q4w4a16").returncode == 0
    servers.ask_all(nibble, packed, tmp_path / "engine", *REFERENCE)
    log = tmp_path / "vllm.log"
    with servers.vllm(packed, log) as url:
        servers.ask_all(nibble, url, tmp_path / "vllm")
        bench = json.loads(nibble("bench", url, *servers.BENCH, "--server-log", log, "--json").stdout)
    found = servers.compared(nibble, tmp_path / "engine", tmp_path / "vllm")
    assert found["forty"]["identical"] >= 39 and found["bfcl-simple"]["identical"] >= 9 and found["choice"]["identical"] == 10
    assert found["identity"]["identical answers"]["value"] >= 0.9
    assert found["choice"]["Brier score"]["difference"] == pytest.approx(0, abs=1e-3)
    assert found["kl"]["KL divergence from the reference, nats"]["value"] < 1e-3 and found["kl"]["same best token"]["value"] > 0.98
    assert (bench["failed"], bench["stopped_early"]) == (0, 0) and bench["cached_share"] < 0.02
    facts = bench["facts"]
    assert facts["server"] == "vllm" and facts["version"].startswith("0.") and facts["context_tokens"] == 2048 and facts["kv_tokens"] > 10_000
