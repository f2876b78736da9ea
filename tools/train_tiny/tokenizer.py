"""A 1024-entry tokenizer with the structure of Gemma 4's.

Idea: the real vocabulary's first 168 entries (specials, unused slots, newline runs, space runs) keep their real ids, so that
`<|turn>` is 105 here too. Then come 256 byte tokens, single characters, learnt BPE merges, and the media tokens at the end.
Merges are learnt inside words only (a word: an optional leading "▁" and letters; or a run of punctuation). Digits never merge.
Because no merge crosses a word, running BPE over the whole text - there is no pre-tokenisation in Gemma 4 - finds the same tokens.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

VOCAB_SIZE = 1024
PAD, EOS, BOS, UNK, MASK = 0, 1, 2, 3, 4
TOOL_RESPONSE, TURN, TURN_END = 50, 105, 106
RUN_MAX = 31  # longest newline or space run that is one token
FIRST_BYTE = 168
MEDIA = ["<|image>", "<|audio>", "<|image|>", "<|audio|>", "<image|>", "<audio|>", "<|video|>"]
NAMED = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>", 5: "[multimodal]",
         46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>",
         52: '<|"|>', 98: "<|think|>", 100: "<|channel>", 101: "<channel|>", 105: "<|turn>", 106: "<turn|>"}
NOT_SPECIAL = {48, 49, 50, 51, 52, 100, 101}  # user-defined rather than control tokens in the real vocabulary
EXTRA_CHARACTERS = "\táéíóúãâçñüöäßèêôı"
WORD = re.compile(r"▁?[^\W\d]+|\d|▁+|\n+|[^\w\s▁]+")


def media_id(name: str) -> int:
    return VOCAB_SIZE - len(MEDIA) + MEDIA.index(name)


def _fixed_entries() -> list[str]:
    """Ids 0..423: specials and unused slots, newline runs, space runs, bytes."""
    entries, unused = [], 0
    for i in range(107):
        if i in NAMED:
            entries.append(NAMED[i])
        else:
            entries.append(f"<unused{unused}>")
            unused += 1
    entries += ["\n" * n for n in range(1, RUN_MAX + 1)]
    entries += ["▁" * n for n in range(2, RUN_MAX + 1)]
    assert len(entries) == FIRST_BYTE
    return entries + [f"<0x{b:02X}>" for b in range(256)]


def _run_merges() -> list[tuple[str, str]]:
    """Merges of newline and space runs in the real vocabulary's order: longest left part first."""
    merges = []
    for left in range(RUN_MAX - 1, 0, -1):
        for right in range(RUN_MAX - left, 0, -1):
            merges += [(c * left, c * right) for c in "\n▁"]
    return merges


def learn_merges(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """Plain BPE on weighted words; ties go to the alphabetically first pair, so the result is deterministic."""
    pieces = {w: list(w) for w in words if len(w) > 1 and set(w) not in ({"▁"}, {"\n"})}
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for word, parts in pieces.items():
            pieces[word] = _merge(parts, best)
    return merges


def _merge(parts: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    i = 0
    while i < len(parts):
        if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
            out.append(parts[i] + parts[i + 1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


def build(corpus: list[tuple[str, int]]) -> dict:
    """`tokenizer.json` as a dictionary. corpus: (text without special tokens, weight)."""
    words: Counter[str] = Counter()
    for text, weight in corpus:
        for word in WORD.findall(text.replace(" ", "▁")):
            words[word] += weight
    entries = _fixed_entries()
    entries += ["▁"] + [chr(c) for c in range(33, 127)] + list(EXTRA_CHARACTERS)
    room = VOCAB_SIZE - len(MEDIA) - len(entries)
    learnt, seen = [], set(entries)
    for left, right in learn_merges(words, 4 * room):
        if left + right not in seen:  # two ways to the same token: the first one is enough
            if room == 0:
                break
            seen.add(left + right)
            entries.append(left + right)
            room -= 1
        learnt.append((left, right))
    entries += [f"<unused{1000 + i}>" for i in range(room)] + MEDIA
    assert len(entries) == VOCAB_SIZE == len(set(entries))
    return _tokenizer_json(entries, _run_merges() + learnt)


def _tokenizer_json(entries: list[str], merges: list[tuple[str, str]]) -> dict:
    added = [(i, s, i not in NOT_SPECIAL) for i, s in NAMED.items() if i != 5]
    added += [(media_id(m), m, True) for m in MEDIA]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": s, **flags, "special": special} for i, s, special in added],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<bos>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {s: i for i, s in enumerate(entries)}, "merges": [list(m) for m in merges]},
    }


def tokenizer_config() -> dict:
    return {
        "audio_token": "<|audio|>", "boa_token": "<|audio>", "boi_token": "<|image>", "bos_token": "<bos>",
        "clean_up_tokenization_spaces": False, "eoa_token": "<audio|>", "eoc_token": "<channel|>", "eoi_token": "<image|>",
        "eos_token": "<eos>", "eot_token": "<turn|>", "escape_token": '<|"|>', "etc_token": "<tool_call|>",
        "etd_token": "<tool|>", "etr_token": "<tool_response|>", "image_token": "<|image|>", "mask_token": "<mask>",
        "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>", "padding_side": "left",
        "soc_token": "<|channel>", "sot_token": "<|turn>", "stc_token": "<|tool_call>", "std_token": "<|tool>",
        "str_token": "<|tool_response>", "think_token": "<|think|>", "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>",
    }


def write(corpus: list[tuple[str, int]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.json").write_text(json.dumps(build(corpus), ensure_ascii=False, indent=1) + "\n")
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=2) + "\n")
