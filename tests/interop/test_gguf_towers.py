"""`nibble repack --format gguf --keep-towers` against llama.cpp: its own converter writes the same file of towers, and its server sees and hears.

The converter is run from llama.cpp's source, in its recommended type for such a file, bf16.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import struct
import subprocess
import sys
import urllib.request
import wave
import zlib
from pathlib import Path

import gguf
import numpy as np
import pytest
import servers
import torch
from conftest import Run
from synthetic import FAMILY, Checkpoint, make_member
from test_gguf import VOCAB, export, small_tokenizer

# general.*: what the converter takes from a directory's name and a model card.
NAMES = {"general.name", "general.size_label", "general.finetune", "general.basename", "GGUF.kv_count"}
SIZES = dict(vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def member(name: str) -> Checkpoint:
    """With a vocabulary, and with what the public processor says of pixels."""
    checkpoint = make_member(name, **SIZES)
    checkpoint.files = {"tokenizer.json": json.dumps(small_tokenizer()), "chat_template.jinja": TEMPLATE,
                        "processor_config.json": json.dumps({"image_processor": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]}})}
    return checkpoint


def clipped() -> Checkpoint:
    """E2B with a vision tower that clips and standardises too, and a processor that moves pixels."""
    checkpoint = member("e2b")
    config = checkpoint.config["vision_config"]
    config["standardize"] = config["use_clipped_linears"] = True
    tensors = checkpoint.tensors
    linears = [n.removesuffix(".linear.weight") for n in tensors if n.startswith("model.vision_tower.") and n.endswith(".linear.weight")]
    bounds = {"input_min": -1.25, "input_max": 1.5, "output_min": -2.75, "output_max": 2}
    tensors |= {f"{linear}.{name}": torch.tensor(bound).bfloat16() for linear in linears for name, bound in bounds.items()}
    tensors |= {f"model.vision_tower.{name}": torch.rand(64).bfloat16() for name in ("std_bias", "std_scale")}
    checkpoint.files["processor_config.json"] = checkpoint.files["processor_config.json"].replace("0.0", "0.5")
    return checkpoint


def repack(nibble: Run, source: Path, folder: Path) -> tuple[Path, Path, dict]:
    text = folder / "model-Q4_0.gguf"
    report = export(nibble, source, text, "--keep-towers")
    towers = folder / "mmproj-model-BF16.gguf"
    assert Path(report["towers"]["file"]) == towers
    return text, towers, report["towers"]


# One process, as imports take most of the time.
CONVERT = """
import runpy, sys
script, *sources = sys.argv[1:]
for source in sources:
    sys.argv = [script, source, "--mmproj", "--outtype", "bf16", "--outfile", source + ".gguf"]
    runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def sources(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Checkpoint, Path, Path]]:
    """Kind -> checkpoint, its directory, and the file that the converter makes of it."""
    folder = tmp_path_factory.mktemp("sources")
    checkpoints = {name: member(name) for name in FAMILY} | {"clipped": clipped()}
    directories = [checkpoint.write(folder / name) for name, checkpoint in checkpoints.items()]
    script = [sys.executable, "-c", CONVERT, sdist / "convert_hf_to_gguf.py", *directories]
    done = subprocess.run(list(map(str, script)), capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(sdist)})
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: (checkpoint, folder / name, folder / f"{name}.gguf") for name, checkpoint in checkpoints.items()}


def metadata(reader: gguf.GGUFReader) -> dict[str, tuple]:
    return {key: (field.types, field.contents()) for key, field in reader.fields.items() if key not in NAMES}


def check_same(ours: Path, theirs: Path) -> None:
    """Metadata, names, types, shapes and bytes; but the last float32 step of log(1 + e^x), which torch computes in float32."""
    mine, other = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)
    assert metadata(mine) == metadata(other)
    tensors = {tensor.name: tensor for tensor in other.tensors}
    assert {tensor.name for tensor in mine.tensors} == set(tensors)
    for tensor in mine.tensors:
        expected = tensors[tensor.name]
        assert tensor.tensor_type == expected.tensor_type and list(tensor.shape) == list(expected.shape), tensor.name
        if tensor.name.endswith("per_dim_scale.weight"):
            np.testing.assert_array_max_ulp(tensor.data, expected.data, maxulp=2)
        else:
            assert tensor.data.tobytes() == expected.data.tobytes(), tensor.name


def damage(path: Path, name: str) -> None:
    (tensor,) = [tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name]
    with path.open("r+b") as file:
        file.seek(tensor.data_offset + 1)
        byte = file.read(1)[0]
        file.seek(tensor.data_offset + 1)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("name", [*FAMILY, "clipped"])
def test_the_converter_of_llama_cpp_writes_the_same(nibble: Run, sources: dict[str, tuple[Checkpoint, Path, Path]], tmp_path: Path, name: str) -> None:
    source, directory, theirs = sources[name]
    text, towers, report = repack(nibble, directory, tmp_path)
    check_same(towers, theirs)
    assert {tensor["source"] for tensor in report["tensors"]} == {n for n in source.tensors if not n.startswith("model.language_model.")}
    assert sum(group["bytes"] for group in report["groups"]) + report["padding_bytes"] + report["header_bytes"] == towers.stat().st_size

    assert nibble("verify", directory, theirs).returncode == 0  # whoever made it
    verified = nibble("verify", directory, text)
    assert verified.returncode == 0 and f"all values of {len(report['tensors'])} tensors of the towers in {towers}" in verified.stdout
    anatomy = json.loads(nibble("inspect", towers, "--json").stdout)
    assert anatomy["architecture"] == "clip" and {part["part"] for part in anatomy["parts"]} <= {"vision", "audio"}
    plain = tmp_path / "plain.gguf"
    export(nibble, directory, plain)
    assert plain.read_bytes() == text.read_bytes()
    planned = {row["format"]: row for row in json.loads(nibble("plan", directory, "--json").stdout)["formats"]}["gguf"]
    assert planned["file_bytes"] - planned["text_bytes"] == sum(tensor["bytes"] for tensor in report["tensors"])

    for broken in ("v.patch_embd.weight", "mm.input_projection.weight", "v.position_embd.weight"):
        damage(towers, broken)
        found = nibble("verify", directory, text)
        assert found.returncode == 1 and f"WRONG: {towers.name}: {broken}: value 0: expected" in found.stdout
        damage(towers, broken)


def test_what_llama_cpp_has_no_place_for_is_refused(nibble: Run, tmp_path: Path) -> None:
    def refused(name: str, checkpoint: Checkpoint) -> str:
        done = nibble("repack", checkpoint.write(tmp_path / name), tmp_path / f"{name}.gguf", "--format", "gguf", "--keep-towers")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and not list(tmp_path.glob("*.gguf*"))
        return done.stderr

    pooled = member("31b")
    pooled.config["vision_config"]["pooling_kernel_size"] = 2
    assert "vision_config.pooling_kernel_size: \"2\" cannot be written for llama.cpp, which has 3 there" in refused("pooled", pooled)
    blind = member("31b")
    del blind.config["vision_config"]
    assert "no vision_config" in refused("blind", blind)
    partial = member("e2b")
    del partial.tensors["model.audio_tower.layers.0.norm_out.weight"]
    assert "tensor model.audio_tower.layers.0.norm_out.weight is missing" in refused("partial", partial)
    more = member("31b")
    more.tensors["model.vision_tower.encoder.layers.0.extra.weight"] = torch.zeros(4).bfloat16()
    assert "\"model.vision_tower.encoder.layers.0.extra.weight\" has no place" in refused("more", more)


def test_a_run_that_cannot_finish_takes_nothing_away(nibble: Run, tmp_path: Path) -> None:
    checkpoint = member("31b")
    source, out = checkpoint.write(tmp_path / "source"), tmp_path / "out" / "model.gguf"
    out.parent.mkdir()
    towers = out.with_name("mmproj-model-BF16.gguf")
    towers.write_text("somebody's")
    done = nibble("repack", source, out, "--format", "gguf", "--keep-towers", "--resume")
    assert done.returncode == 2 and f"{towers}: exists already" in done.stderr
    assert [path.name for path in out.parent.iterdir()] == [towers.name] and towers.read_text() == "somebody's"
    towers.unlink()
    checkpoint.tensors["model.language_model.layers.2.mlp.up_proj.weight"] = torch.rand(96, 64).bfloat16()
    done = nibble("repack", checkpoint.write(tmp_path / "off"), out, "--format", "gguf", "--keep-towers")
    assert done.returncode == 2 and "off the 4-bit grid" in done.stderr
    assert not list(out.parent.iterdir())


def image(side: int) -> dict:
    rows = b"".join(b"\0" + bytes((x * 5 % 256, y * 3 % 256, (x + y) % 256)[channel] for x in range(side) for channel in range(3)) for y in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    png = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
           + chunk(b"IEND", b""))
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}


def sound(seconds: float) -> dict:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(b"".join(struct.pack("<h", int(8000 * math.sin(i / 10))) for i in range(int(16000 * seconds))))
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(file.getvalue()).decode(), "format": "wav"}}


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 200
        return json.load(reply)


def ask(address: str, *parts: dict) -> tuple[int, list[float]]:
    """Tokens of the prompt, and the log-probabilities of the tokens most likely to come next, whichever comes: only of one with a text are
    they told."""
    drawn = post(f"{address}/tokenize", {"content": "a"})["tokens"][-1]
    answer = post(f"{address}/v1/chat/completions", {
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What is that?"}]}], "max_tokens": 1,
        "logit_bias": [[drawn, 1000]], "logprobs": True, "top_logprobs": 5, "cache_prompt": False})
    return answer["usage"]["prompt_tokens"], [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]]


@pytest.mark.parametrize("name", ["tiny", "e2b", "12b", "26b"])
def test_llama_cpp_sees_and_hears(nibble: Run, tiny: Path, tmp_path: Path, name: str) -> None:
    """Images and sounds are tokens of the prompt, and what is in them moves what comes next. tiny's audio tower takes fewer frequencies than
    Gemma's sounds have."""
    source = tiny if name == "tiny" else member(name).write(tmp_path / "source")
    text, towers, _ = repack(nibble, source, tmp_path)
    with servers.llama(text, tmp_path / "log", towers) as address:
        alone, first = ask(address)
        small, seen = ask(address, image(144))
        large, seen_large = ask(address, image(600))
        assert alone + 70 <= small < large and first != seen != seen_large != first
        if name in ("e2b", "12b"):
            short, heard = ask(address, sound(0.5))
            long, heard_long = ask(address, sound(2))
            assert alone < short < long and first != heard != heard_long != first
