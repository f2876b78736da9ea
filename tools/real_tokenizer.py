"""Writes the tokenizer.json of the real 262,144-token Gemma 4 vocabulary, for comparisons.

    real_tokenizer.py LLAMA_CPP_DIR OUT_DIR

LLAMA_CPP_DIR: an unpacked llama.cpp source tree, whose models/ggml-vocab-gemma-4.gguf holds the vocabulary.
Needs the packages `gguf` and `tokenizers`. Nothing of the vocabulary is kept in this repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors


def _strings(reader: GGUFReader, key: str) -> list[str]:
    field = reader.fields[key]
    return [bytes(field.parts[i]).decode() for i in field.data]


def build(vocab_gguf: Path) -> Tokenizer:
    """The tokenizer of the vocabulary in `vocab_gguf`, with the parts that Gemma's tokenizer.json names."""
    reader = GGUFReader(vocab_gguf)
    tokens = _strings(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _strings(reader, "tokenizer.ggml.merges")]
    types = reader.fields["tokenizer.ggml.token_type"]
    kinds = [int(types.parts[i][0]) for i in types.data]

    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    for kind, special in ((TokenType.CONTROL, True), (TokenType.USER_DEFINED, False)):
        added = [t for t, k in zip(tokens, kinds) if k == kind]
        tokenizer.add_tokens([AddedToken(t, normalized=False, special=special) for t in added])
    return tokenizer


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    build(source / "models" / "ggml-vocab-gemma-4.gguf").save(str(out / "tokenizer.json"))


if __name__ == "__main__":
    main()
