"""Moshi, twice: its temporal transformer for vLLM, and the whole full-duplex model for a loop of one's own.

vLLM 0.32 has no Moshi. MoshiForCausalLM, the temporal transformer with its text head, runs there through
model_impl="transformers": one position per 80-ms frame, but no audio. MoshiForConditionalGeneration has all of it
(Mimi both ways, 8 + 8 codebooks, the depth transformer) and is driven frame by frame with transformers.
Kept of kmhf/hf-moshiko: every head its own key head, head_dim 128, a window of 3000 positions (240 s) in `moshi`,
8 codebooks, 12.5 frames a second of 24 kHz audio.
Shrunk, from -> to:
    temporal: hidden 4096 -> 256, layers 32 -> 2, heads 32 -> 2, MLP 22528 -> 512, vocabulary 32000 -> 512
    depth:    hidden 1024 -> 64, layers 6 -> 2, heads 16 -> 1, MLP 5632 -> 128
    Mimi:     hidden 512 -> 64, layers 8 -> 2, codebooks of 2048 -> 128 codes, filters 64 -> 8
    window:   3000 -> 250 positions (20 s) in `moshi_duplex`, so that a short run comes to it
"""

from pathlib import Path
from typing import Any

from .parts import VOCABULARY, fill, write_tokenizer

NUM_CODEBOOKS = 8
WINDOW_DUPLEX = 250
TEMPORAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "ffn_dim": 512,
    "max_position_embeddings": 3000,
    "sliding_window": 3000,
    "num_codebooks": NUM_CODEBOOKS,
}
MIMI = {
    "model_type": "mimi",
    "hidden_size": 64,
    "num_filters": 8,
    "codebook_size": 128,
    "codebook_dim": 32,
    "vector_quantization_hidden_dimension": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 128,
    "num_quantizers": NUM_CODEBOOKS,
    "num_semantic_quantizers": 1,
    "upsample_groups": 64,
}
DEPTH = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "ffn_dim": 128,
    "sliding_window": 8,
    "max_position_embeddings": 9,
}


def config(window: int) -> Any:
    from transformers import MoshiConfig

    temporal = TEMPORAL | {"sliding_window": window}
    return MoshiConfig(**temporal, audio_encoder_config=dict(MIMI), depth_decoder_config=dict(DEPTH))


def build(folder: Path) -> None:
    import torch
    from transformers import MoshiForCausalLM

    write_tokenizer(folder, ["<s>", "</s>"], "PreTrainedTokenizerFast", eos_token="</s>")
    model = MoshiForCausalLM(config(TEMPORAL["sliding_window"]))
    fill(model, seed=0)
    model.to(torch.bfloat16).save_pretrained(folder)


def tune_mimi(mimi: Any) -> None:
    """Let the codes depend on the audio: as made, biases drown it, and codebooks of zeros give all of it code 0.

    Convolutions lose their biases, and each codebook is drawn in the size of what it sees of noise at speech's level.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    quantizers = [mimi.quantizer.semantic_residual_vector_quantizer, mimi.quantizer.acoustic_residual_vector_quantizer]
    latents: list[torch.Tensor] = []
    hooks = [part.input_proj.register_forward_hook(lambda *seen: latents.append(seen[-1])) for part in quantizers]
    with torch.no_grad():
        for name, weight in mimi.named_parameters():
            if "conv" in name and name.endswith("bias"):
                weight.zero_()
        mimi.eval().encode(torch.randn(1, 1, 24000, generator=generator) * 0.1, num_quantizers=NUM_CODEBOOKS)
        for hook, part, latent in zip(hooks, quantizers, latents, strict=True):
            hook.remove()
            for depth, layer in enumerate(part.layers):
                size = float(latent.std()) * 0.8**depth  # each codebook sees what the one before it left
                layer.codebook.embed_sum.normal_(std=size, generator=generator)


def build_duplex(folder: Path) -> None:
    """In float32: there is no engine to convert it, and Mimi's codes should not hang on rounding."""
    from transformers import MoshiForConditionalGeneration

    model = MoshiForConditionalGeneration(config(WINDOW_DUPLEX))
    fill(model, seed=0)
    tune_mimi(model.audio_encoder)
    model.save_pretrained(folder)
