"""Qwen2.5-Omni, the thinker (audio in, text out): the only part of it that vLLM 0.32 serves.

Kept of Qwen/Qwen2.5-Omni-7B: 7 query heads to a key head, head_dim 128, M-RoPE sections, the Whisper-like encoder's
heads of 64, 25 positions a second, and the feature extractor's padding to 300 s, which costs hundreds of ms a frame
unless the engine is given mm_processor_kwargs={"audio_kwargs": {"max_length": 32000}} (samples, the longest frame).
Shrunk, from -> to:
    text:   hidden 3584 -> 896, layers 28 -> 2, heads 28:4 -> 7:1, MLP 18944 -> 512, vocabulary 152064 -> 512
    audio:  d_model 1280 -> 128, layers 32 -> 2, heads 20 -> 2, MLP 5120 -> 512
    vision: depth 32 -> 1, hidden 1280 -> 64 (there for the loader; sessions here are audio)
"""

from pathlib import Path

from .parts import VOCABULARY, fill, save, write_qwen_files, write_tokenizer

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 896,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 7,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}
AUDIO = {
    "num_mel_bins": 128,
    "d_model": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 512,
    "max_source_positions": 1500,
    "n_window": 100,
    "output_dim": TEXT["hidden_size"],
}
VISION = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 1,
    "out_hidden_size": TEXT["hidden_size"],
    "fullatt_block_indexes": [0],
    "tokens_per_second": 25,
}
TALKER = {  # not built: vLLM serves the thinker alone
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 64,
    "embedding_size": TEXT["hidden_size"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
}
NAMES = {  # the attributes that the processor reads of the tokenizer
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
SPECIALS = [
    *["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"],
    *["<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>", "<|VIDEO|>"],
]


def build(folder: Path) -> None:
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniThinkerForConditionalGeneration

    tokens = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "extra_special_tokens": NAMES}
    ids = write_tokenizer(folder, SPECIALS, "Qwen2Tokenizer", **tokens, **NAMES)
    thinker = {
        "text_config": TEXT,
        "audio_config": AUDIO,
        "vision_config": VISION,
        "audio_token_index": ids["<|AUDIO|>"],
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
        "vision_end_token_id": ids["<|vision_eos|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }
    config = Qwen2_5OmniConfig(
        architectures=["Qwen2_5OmniModel"],
        enable_audio_output=False,
        thinker_config=thinker,
        talker_config=TALKER,
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    model = Qwen2_5OmniThinkerForConditionalGeneration(config.thinker_config)
    fill(model, seed=0)
    save({f"thinker.{name}": weight for name, weight in model.state_dict().items()}, folder)
    write_qwen_files(folder, processor="Qwen2_5OmniProcessor", chunk_length=300, patch_size=14, eos=ids["<|im_end|>"])
