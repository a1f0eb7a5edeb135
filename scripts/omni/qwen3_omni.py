"""Qwen3-Omni, the thinker (audio in, text out): the only part of it that vLLM 0.32 serves.

Kept of Qwen/Qwen3-Omni-30B-A3B-Instruct: 8 query heads to a key head, head_dim 128, 128 experts of which a token uses
8, interleaved M-RoPE and its sections, the encoder's windows and heads of 64, 13 positions a second, padding to 30 s.
Shrunk, from -> to:
    text:   hidden 2048 -> 256, layers 48 -> 2, heads 32:4 -> 8:1, expert MLP 768 -> 32, vocabulary 152064 -> 512
    audio:  d_model 1280 -> 128, layers 32 -> 2, heads 20 -> 2, MLP 5120 -> 512, convolution channels 480 -> 32
    vision: depth 27 -> 1, hidden 1152 -> 64 (there for the loader; sessions here are audio)
End a frame's prompt with <|audio_end|>: vLLM 0.32 counts a position after the audio even where the prompt has none.
"""

from pathlib import Path
from typing import Any

from .parts import VOCABULARY, fill, save, write_qwen_files, write_tokenizer

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 0,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,  # vLLM asks for it by name, transformers 5.19 has no default
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}
AUDIO = {
    "num_mel_bins": 128,
    "d_model": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 512,
    "downsample_hidden_size": 32,
    "max_source_positions": 1500,
    "n_window": 50,
    "n_window_infer": 800,
    "conv_chunksize": 500,
    "output_dim": TEXT["hidden_size"],
}
VISION = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 1,
    "out_hidden_size": TEXT["hidden_size"],
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [0],
    "image_size": 768,  # vLLM asks for these two by name, transformers 5.19 has no default
    "apply_vit_abs_pos_embed": True,
}
NAMES = {  # the attributes that the processor reads of the tokenizer
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
SPECIALS = [
    *["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"],
    *["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"],
]


def published(weights: dict[str, Any]) -> dict[str, Any]:
    """Name `weights` as the published files do: transformers 5 stacks a layer's experts, the files hold each alone."""
    named = {}
    for name, weight in weights.items():
        stem = f"thinker.{name}"
        if name.endswith("mlp.experts.gate_up_proj"):
            for expert, both in enumerate(weight):
                prefix = f"{stem.removesuffix('gate_up_proj')}{expert}."
                named[f"{prefix}gate_proj.weight"], named[f"{prefix}up_proj.weight"] = both.chunk(2)
        elif name.endswith("mlp.experts.down_proj"):
            for expert, down in enumerate(weight):
                named[f"{stem.removesuffix('down_proj')}{expert}.down_proj.weight"] = down
        else:
            named[stem] = weight
    return named


def build(folder: Path) -> None:
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    tokens = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "extra_special_tokens": NAMES}
    ids = write_tokenizer(folder, SPECIALS, "Qwen2Tokenizer", **tokens, **NAMES)
    thinker = {
        "text_config": TEXT,
        "audio_config": AUDIO,
        "vision_config": VISION,
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }
    config = Qwen3OmniMoeConfig(
        architectures=["Qwen3OmniMoeForConditionalGeneration"],
        enable_audio_output=False,
        thinker_config=thinker,
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    model = Qwen3OmniMoeThinkerForConditionalGeneration(config.thinker_config)
    fill(model, seed=0)
    save(published(model.state_dict()), folder)
    write_qwen_files(folder, processor="Qwen3OmniMoeProcessor", chunk_length=30, patch_size=16, eos=ids["<|im_end|>"])
