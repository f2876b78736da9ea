"""A Gemma 4 checkpoint's language model for OpenVINO GenAI: tools/openvino_export.py CHECKPOINT OUT

Weights become int4 in blocks of 32, symmetric, with a float16 scale each, the embedding tables and the
head too: what comes closest to nibble's q4w4a16emb4. optimum-intel exports model_type gemma4 only whole,
with its towers and as a pipeline that takes text; the language model alone (gemma4_text) it knows, but
inherits for it Gemma 2's bound of transformers 5.0, which had no Gemma 4, so that the bound is lifted here.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nncf
import openvino as ov
import torch
from optimum.exporters.openvino.convert import export_from_model, export_tokenizer
from optimum.exporters.openvino.model_configs import Gemma4TextOpenVINOConfig
from optimum.intel import OVConfig
from transformers import AutoConfig, AutoTokenizer, Gemma4ForCausalLM


class Scaled(torch.nn.Module):
    """An embedding that stays in 16 bits: OpenVINO makes float32 of each module with weights that is not exactly an Embedding."""

    def __init__(self, embedding: torch.nn.Embedding) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(*embedding.weight.shape, _weight=embedding.weight, dtype=embedding.weight.dtype)
        self.scale = embedding.scalar_embed_scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * self.scale


def main() -> None:
    checkpoint, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = AutoConfig.from_pretrained(checkpoint).text_config
    model = Gemma4ForCausalLM.from_pretrained(
        checkpoint, config=config, dtype=torch.bfloat16, key_mapping={r"^model\.language_model\.": "model."}
    )
    model.model.embed_tokens = Scaled(model.model.embed_tokens)
    model.model.embed_tokens_per_layer = Scaled(model.model.embed_tokens_per_layer)
    Gemma4TextOpenVINOConfig.MAX_TRANSFORMERS_VERSION = "5.5.99"
    with tempfile.TemporaryDirectory(dir=out.parent) as whole:
        # The example that is traced has caches of the window's length in sliding layers and of sequence_length in the others; one mask is for both.
        export_from_model(
            model,
            whole,
            task="text-generation-with-past",
            ov_config=OVConfig(),
            patch_16bit_model=True,
            sequence_length=config.sliding_window,
        )
        del model
        export_tokenizer(AutoTokenizer.from_pretrained(checkpoint), whole)
        weights = ov.Core().read_model(Path(whole, "openvino_model.xml"))
        compressed = nncf.compress_weights(weights, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=32, all_layers=True)
        out.mkdir()
        ov.save_model(compressed, out / "openvino_model.xml")
        for file in Path(whole).iterdir():
            if not file.name.startswith("openvino_model."):
                file.rename(out / file.name)


if __name__ == "__main__":
    main()
