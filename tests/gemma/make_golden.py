"""Writes tests/gemma/golden/*.json: for small configs of each kind of Gemma 4, the config.json that
transformers writes, the names and shapes of the tensors that its model then holds, RoPE's inverse
frequencies, and which layers store or reuse a KV cache.

golden_test.cc compares nibble's architecture with them. Run it with transformers >= 5.23 when a
kind is added:  python tests/gemma/make_golden.py
"""

import json
from pathlib import Path

from transformers import (
    Gemma4AudioConfig,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4VisionConfig,
    PreTrainedModel,
)

OUT = Path(__file__).parent / "golden"

COMMON = {
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 40,
    "sliding_window": 8,
    "max_position_embeddings": 256,
    "final_logit_softcapping": 30.0,
}
SLIDING, FULL = "sliding_attention", "full_attention"

E_TYPE = COMMON | {
    "num_hidden_layers": 6,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 40,
}
K_EQ_V = COMMON | {
    "num_hidden_layers": 6,  # layer_types left to the default: the sixth is full
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
}
MOE = COMMON | {
    "num_hidden_layers": 3,
    "layer_types": [SLIDING, SLIDING, FULL],
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 56,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "position_embedding_size": 16,
}
AUDIO = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 32}


def multimodal() -> PreTrainedModel:
    config = Gemma4Config(
        text_config=Gemma4TextConfig(**E_TYPE),
        vision_config=Gemma4VisionConfig(**VISION),
        audio_config=Gemma4AudioConfig(**AUDIO),
    )
    return Gemma4ForConditionalGeneration(config)


def unified() -> PreTrainedModel:
    text = {k: v for k, v in K_EQ_V.items() if k != "hidden_size_per_layer_input"}
    vision = {"mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 32}
    config = Gemma4UnifiedConfig(
        text_config=text, vision_config=vision, audio_config={"audio_embed_dim": 20}
    )
    return Gemma4UnifiedForConditionalGeneration(config)


def text_only(settings: dict, **more: object) -> PreTrainedModel:
    return Gemma4ForCausalLM(Gemma4TextConfig(**(settings | more)))


def write(kind: str, model: PreTrainedModel) -> None:
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [type(model).__name__]
    # The tied head is an alias, which save_pretrained leaves out.
    tied = model.config.tie_word_embeddings
    text = model.model.language_model if hasattr(model.model, "language_model") else model.model
    types = sorted(set(text.config.layer_types))
    golden = {
        "config": config,
        "inv_freq": {t: getattr(text.rotary_emb, f"{t}_inv_freq").tolist() for t in types},
        "kv_sharing_modes": text.config.kv_sharing_modes,
        "shapes": {
            name: list(tensor.shape)
            for name, tensor in model.state_dict().items()
            if not (tied and name == "lm_head.weight")
        },
    }
    (OUT / f"{kind}.json").write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    write("multimodal_e_type", multimodal())
    write("unified", unified())
    write("text_e_type", text_only(E_TYPE))
    write("text_k_eq_v", text_only(K_EQ_V))
    write("text_moe_untied", text_only(MOE, tie_word_embeddings=False))


if __name__ == "__main__":
    main()
