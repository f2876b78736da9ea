"""`nibble repack --format gguf` against gguf-py (names, values) and real llama.cpp (tokens, log-probabilities, tokenizer).

llama.cpp rounds the inputs of its 4-bit products to 8 bits, in blocks of 32 with a scale of amax / 127, and nibble does not. What that
moves is measured on the oracle: transformers on the file's own values, run once as it is and once with every linear's input rounded so.
Its root mean square r and its largest e over all prompts, steps and tokens are the tolerance: llama.cpp's rounding is of the same size but differs in
detail (fp16 scales, other sums), so that its change is another draw of the same kind. nibble is within 1.5 r (rms) and 3 e (largest).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import pytest
import random_models
import torch
from conftest import REFERENCE, Run, from_environment
from random_models import VOCAB
from synthetic import FAMILY, Checkpoint, make, make_member
from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

BLOCK = 32
STEPS = 12
QUESTIONS = ["What is the capital of Turkey?", "Name the capital of Morocco.", "What is 23*47?", "Who are you?"]
TEXTS = ["Hello, world", "  two  spaces\n\n\nlines\t", "23*47=1081", "<|turn>user\nHi<turn|>\n", "naïve façade ﬁ 東京 🙂", "", "a<bos>b<|tool_call>c"]
TABLES = ["q4_0", "q6_k", "bf16"]


def export(nibble: Run, source: Path, out: Path, *flags: str) -> dict:
    done = nibble("repack", source, out, "--format", "gguf", "--json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def on_grid(source: Path, path: Path) -> Path:
    """The random model with every matrix that is quantised on a 4-bit grid with fp16 scales of both signs, and a small tokenizer."""
    config, tensors = random_models.read(source)
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or "router" in name:
            continue
        groups = tensor.float().unflatten(-1, (-1, BLOCK))
        extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        scale = (extreme / -8).half().float()
        codes = (groups / scale).round().clamp(-8, 7)
        tensors[name] = (codes * scale).flatten(-2).bfloat16()
    random_models.write(path, config, tensors)
    (path / "tokenizer.json").write_text(json.dumps(small_tokenizer()))
    return path


def small_tokenizer() -> dict:
    """A tokenizer of VOCAB tokens, as Gemma's file spells one."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁"] + [chr(code) for code in range(ord("!"), ord("!") + VOCAB - 261)]
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, token in enumerate(special)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                         {"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True,
                      "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}}


@pytest.fixture(scope="module", params=["tiny", *random_models.KINDS])
def model(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "tiny":
        return tiny
    folder = tmp_path_factory.mktemp("gguf")
    random_models.build(request.param, folder / "plain")
    return on_grid(folder / "plain", folder / request.param)


def text_config(path: Path) -> dict:
    config = json.loads((path / "config.json").read_text())
    return config.get("text_config", config)


def gguf_name(names: gguf.TensorNameMap, name: str) -> str:
    """As gguf-py and the converter of llama.cpp spell it."""
    block = name.split(".")[2] if ".layers." in name else None
    if name.endswith("router.scale"):
        return f"blk.{block}.ffn_gate_inp.scale"
    if name.endswith("per_expert_scale"):
        return f"blk.{block}.ffn_down_exps.scale"
    if not name.endswith(".weight"):
        name += ".weight"
    mapped = names.get_name(name, try_suffixes=(".weight",))
    assert mapped is not None, name
    return mapped


def file_values(path: Path, source: Path) -> dict[str, tuple[gguf.GGMLQuantizationType, torch.Tensor]]:
    """Name in the source -> type and float32 values in the file, found by gguf-py's names."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, text_config(source)["num_hidden_layers"])
    values = {}
    for name, expected in random_models.read_values(source).items():
        tensor = tensors.pop(gguf_name(names, name))
        assert tensor.tensor_type in (0, 2, 14, 30)
        dequantised = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values[name] = (tensor.tensor_type, torch.from_numpy(np.array(dequantised, dtype=np.float32)).reshape(expected.shape))
    assert set(tensors) == {"rope_freqs.weight"}
    return values


@pytest.mark.parametrize("tables", TABLES)
def test_gguf_py_reads_the_source_back(nibble: Run, model: Path, tmp_path: Path, tables: str) -> None:
    """All but Q6_K tables round to the source's bf16 bit for bit; the table of sizes adds up to the file."""
    out = tmp_path / "model.gguf"
    report = export(nibble, model, out, "--embeddings", tables)
    source = random_models.read_values(model)
    for name, (kind, values) in file_values(out, model).items():
        if kind == gguf.GGMLQuantizationType.Q6_K:
            assert tables == "q6_k" and "embed_tokens" in name
            assert (values - source[name]).norm() < 0.03 * source[name].norm()
        else:
            assert torch.equal(values.bfloat16(), source[name].bfloat16()), name
            assert kind != gguf.GGMLQuantizationType.BF16 or "embed_tokens" in name
    assert sum(group["bytes"] for group in report["groups"]) + report["padding_bytes"] + report["header_bytes"] == out.stat().st_size
    table = report["groups"][[group["part"] for group in report["groups"]].index("vocabulary")]
    assert table["type"] == {"q4_0": "Q4_0", "bf16": "BF16"}.get(tables, table["type"])
    verified = nibble("verify", model, out)
    assert verified.returncode == 0, verified.stdout
    assert "VERIFIED" in verified.stdout


def oracle(path: Path, source: Path) -> Gemma4ForCausalLM:
    """transformers in float32 on the values that the file holds."""
    values = {name: tensor for name, (_, tensor) in file_values(path, source).items()}
    with mock.patch.object(random_models, "read_values", lambda _: values):
        return random_models.load_oracle(source, torch.float32)


def rounded_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, BLOCK))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return PLAIN_LINEAR((groups / scale).round().mul(scale).flatten(-2), weight, bias)


PLAIN_LINEAR = torch.nn.functional.linear


def ask_llama(scratch: Path, **task: object) -> dict:
    worker = Path(__file__).with_name("llama_worker.py")
    out = scratch / "llama.json"
    run = subprocess.run([from_environment("NIBBLE_LLAMA_PYTHON"), worker, out], input=json.dumps(task), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(out.read_text())


def ask_nibble(nibble: Run, path: Path, ids: list[int]) -> dict:
    done = nibble("generate", path, "--prompt-ids", ",".join(map(str, ids)), "--max-tokens", STEPS, "--json", "--top-logprobs", 10**6,
                  *REFERENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def dense(answer: dict) -> torch.Tensor:
    """[steps, V] from the lists of [id, logprob]."""
    table = torch.tensor(answer["top_logprobs"], dtype=torch.float64)
    return torch.empty(table.shape[:2], dtype=torch.float64).scatter_(1, table[..., 0].long(), table[..., 1])


def prompts_for(model: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    if (model / "chat_template.jinja").exists():
        return [tokenizer.encode(f"<bos><|turn>user\n{q}<turn|>\n<|turn>model\n", add_special_tokens=False).ids for q in QUESTIONS]
    generator = torch.Generator().manual_seed(1)
    return [[2] + torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in (5, 40)]


@pytest.mark.parametrize("tables", ["q4_0", "q6_k"])
def test_llama_cpp_gives_the_same(nibble: Run, model: Path, tmp_path: Path, tables: str) -> None:
    """Case E5 of the field reports for token ids. The greedy tokens on the trained model; on the others, whose choices are often near ties, as far as the difference allows."""
    path = tmp_path / "model.gguf"
    export(nibble, model, path, "--embeddings", tables)
    prompts = prompts_for(model)
    answers = [ask_nibble(nibble, path, ids) for ids in prompts]
    texts = TEXTS if model.name == "tiny" else TEXTS[:3]
    llama = ask_llama(tmp_path, model=str(path), n_vocab=text_config(model)["vocab_size"], prompts=prompts, texts=texts,
                      continuations=[answer["token_ids"][:-1] for answer in answers])
    reference = oracle(path, model)
    differences, changes = [], []
    for ids, answer, logprobs in zip(prompts, answers, llama["logprobs"], strict=True):
        ours, theirs, tokens = dense(answer), torch.tensor(logprobs, dtype=torch.float64), torch.tensor(answer["token_ids"])
        context = ids + answer["token_ids"][:-1]
        exact = random_models.logprobs(reference, context)[-len(tokens):]
        assert (ours - exact).abs().max() < 1e-3  # nibble does not round activations
        with mock.patch.object(torch.nn.functional, "linear", rounded_linear):
            changes.append(random_models.logprobs(reference, context)[-len(tokens):] - exact)
        differences.append(theirs - ours)
        choices = theirs.argmax(-1)
        margins = ours.gather(1, tokens[:, None]) - ours.gather(1, choices[:, None])
        assert margins.max() <= 2 * differences[-1].abs().max()
        assert model.name != "tiny" or torch.equal(choices, tokens)
    (rms, largest), (r, e) = ((x.square().mean().sqrt().item(), x.abs().max().item()) for x in map(torch.cat, (differences, changes)))
    print(f"{model.name} {tables}: rms {rms:.3f}, r {r:.3f}, largest {largest:.3f}, e {e:.3f}")
    assert rms <= 1.5 * r and largest <= 3 * e
    for text, ids in zip(texts, llama["texts"], strict=True):
        assert json.loads(nibble("tokenize", path, text).stdout) == ids == json.loads(nibble("tokenize", model, text).stdout), text


def test_a_file_runs_like_its_directory(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Prompt, template, stop tokens and text are those of the directory, and so are the tokens of its own exact packing."""
    path, packed = tmp_path / "tiny.gguf", tmp_path / "packed"
    export(nibble, tiny, path)
    assert nibble("repack", tiny, packed, "--format", "q4w4a16emb4").returncode == 0
    for question in QUESTIONS[:3]:
        answers = [json.loads(nibble("generate", model, question, "--max-tokens", "40", "--json").stdout) for model in (path, packed)]
        assert answers[0] == answers[1]
    scores = [json.loads(nibble("eval", model, "--suite", "forty", "--json").stdout)["correct"] for model in (path, packed)]
    assert scores[0] == scores[1]
    ids = nibble("tokenize", path, "What is 23*47?").stdout
    assert nibble("detokenize", path, ids.strip().strip("[]")).stdout == nibble("detokenize", tiny, ids.strip().strip("[]")).stdout


def test_metadata(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Cases E5 and E6 of the field reports."""
    path = tmp_path / "tiny.gguf"
    export(nibble, tiny, path)
    fields = gguf.GGUFReader(path).fields
    generation = json.loads((tiny / "generation_config.json").read_text())
    assert fields[gguf.Keys.Tokenizer.CHAT_TEMPLATE].contents() == (tiny / "chat_template.jinja").read_text()
    assert fields[gguf.Keys.General.FILE_TYPE].contents() == gguf.LlamaFileType.MOSTLY_Q4_0
    assert fields[gguf.Keys.General.SAMPLING_TOP_K].contents() == generation["top_k"]
    assert fields[gguf.Keys.General.SAMPLING_TOP_P].contents() == pytest.approx(generation["top_p"])
    assert fields[gguf.Keys.General.SAMPLING_TEMP].contents() == generation["temperature"]
    assert fields[gguf.Keys.Tokenizer.BOS_ID].contents() == generation["bos_token_id"]
    assert fields[gguf.Keys.Tokenizer.EOS_ID].contents() in generation["eos_token_id"]
    assert fields[gguf.Keys.Tokenizer.ADD_BOS].contents() is True
    assert fields[gguf.Keys.Tokenizer.MODEL].contents() == "gemma4" and fields[gguf.Keys.Tokenizer.MERGES].contents()
    types = fields[gguf.Keys.Tokenizer.TOKEN_TYPE].contents()
    special = [token["id"] for token in json.loads((tiny / "tokenizer.json").read_text())["added_tokens"] if token["special"]]
    assert special and all(types[token_id] == gguf.TokenType.CONTROL for token_id in special)


def test_a_table_of_another_type_is_named(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    """Q4_0 and Q6_K tables run (above); F64 cannot."""
    writer = gguf.GGUFWriter(tmp_path / "f64.gguf", "gemma4")
    path = tmp_path / "tiny.gguf"
    export(nibble, tiny, path)
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if key.startswith("gemma4."):
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = nibble("generate", tmp_path / "f64.gguf", "--prompt-ids", "2", "--json")
    assert done.returncode == 2
    assert "token_embd.weight: expected Q4_0 or Q6_K or BF16 or F16 or F32" in done.stderr and "found F64" in done.stderr


def test_off_the_grid_is_refused_and_leaves_nothing(nibble: Run, tmp_path: Path) -> None:
    random_models.build("e", tmp_path / "plain")
    done = nibble("repack", tmp_path / "plain", tmp_path / "out.gguf", "--format", "gguf")
    assert done.returncode == 2 and "off the 4-bit grid" in done.stderr
    assert not list(tmp_path.glob("out.gguf*"))
    assert export(nibble, tmp_path / "plain", tmp_path / "out.gguf", "--allow-offgrid")["grid"]["groups_off_grid"] > 0


def write(checkpoint: Checkpoint, path: Path) -> Path:
    checkpoint.files = {}
    return checkpoint.write(path)


def same_tokens(nibble: Run, *models: Path) -> bool:
    answers = [nibble("generate", model, "--prompt-ids", "2,17,90,5", "--max-tokens", 6, "--ignore-eos", "--json") for model in models]
    assert not any(answer.returncode for answer in answers), [answer.stderr for answer in answers]
    return len({tuple(json.loads(answer.stdout)["token_ids"]) for answer in answers}) == 1


@pytest.mark.parametrize("member", FAMILY)
def test_every_member_of_the_family(nibble: Run, tmp_path: Path, member: str) -> None:
    """From Google's layout, towers included; without a tokenizer there is no vocabulary, which does not keep token ids from running."""
    source, path, packed = write(make_member(member), tmp_path / member), tmp_path / "out.gguf", tmp_path / "packed"
    report = export(nibble, source, path)
    assert {note.split(": ", 1)[1] for note in report["dropped"]} == {"dropped: tower"}
    assert gguf.GGUFReader(path).fields[gguf.Keys.Tokenizer.MODEL].contents() == "none"
    for name, (_, values) in file_values(path, source).items():
        assert torch.equal(values.bfloat16(), random_models.read_values(source)[name].bfloat16()), name
    assert nibble("verify", source, path).returncode == 0
    assert nibble("repack", source, packed, "--format", "q4w4a16emb4").returncode == 0
    assert same_tokens(nibble, path, packed)


def test_rows_that_do_not_divide_stay_bf16_and_are_named(nibble: Run, tmp_path: Path) -> None:
    source, path = write(make(intermediate_size=48, use_double_wide_mlp=False), tmp_path / "odd"), tmp_path / "odd.gguf"
    named = {tensor["name"]: tensor["type"] for tensor in export(nibble, source, path)["tensors"] if "why" in tensor}
    assert named == {f"blk.{layer}.ffn_down.weight": "BF16" for layer in range(4)}
    assert nibble("verify", source, path).returncode == 0
    assert same_tokens(nibble, path, path)


def test_left_over_kv_is_dropped_and_counted(nibble: Run, tmp_path: Path) -> None:
    source, path = write(make(leftovers=True), tmp_path / "old"), tmp_path / "old.gguf"
    dropped = export(nibble, source, path)["dropped"]
    assert sum("KV-shared" in note for note in dropped) == 3
    verified = nibble("verify", source, path)
    assert verified.returncode == 0 and "3 left out: K/V of a KV-shared layer" in verified.stdout


def test_inspect(nibble: Run, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    report = export(nibble, tiny, path)
    anatomy = json.loads(nibble("inspect", path, "--json").stdout)
    assert anatomy["format"] == "gguf" and anatomy["architecture"] == "gemma4"
    assert anatomy["bytes"] == sum(tensor["bytes"] for tensor in report["tensors"])
    assert {part["part"] for part in anatomy["parts"]} == {"body", "ple", "vocabulary", "other"}
