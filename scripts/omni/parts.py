"""What the checkpoints share: a tokenizer made on the spot, weights drawn from a seed, and the files' form.

torch and transformers are imported inside the functions, as in all of this folder: reading it costs nothing.
"""

import json
from pathlib import Path
from typing import Any

NUM_BYTES = 256  # a token per byte comes first, so special tokens have the ids from here on
VOCABULARY = 512  # rows of every text embedding; the published models have 152 k (Qwen) and 32 k (Moshi)
HEAD_GAIN = 2.0  # the logits' standard deviation


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_tokenizer(folder: Path, specials: list[str], tokenizer_class: str, **config: Any) -> dict[str, int]:
    """Write a byte-level BPE tokenizer without merges and return the ids of its special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = {symbol: token for token, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False) for special in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "vocab.json", alphabet)  # Qwen2Tokenizer rebuilds its BPE from this and merges.txt
    (folder / "merges.txt").write_text("#version: 0.2\n")

    ids = {special: NUM_BYTES + rank for rank, special in enumerate(specials)}
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    config |= {
        "tokenizer_class": tokenizer_class,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(token): {"content": special, **flags} for special, token in ids.items()},
    }
    write_json(folder / "tokenizer_config.json", config)
    return ids


def fill(module: Any, seed: int) -> None:
    """Draw the weights of `module` such that what it hears reaches its logits.

    transformers draws with a standard deviation of 0.02 for every width, which at a tiny one leaves near-uniform
    logits and audio without effect. Here a matrix keeps the size of its input, embeddings have size 1, and the logits
    HEAD_GAIN. Norms and biases stay as made, and so does what is not trained, as Whisper's sinusoidal positions.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    tables = {id(part.weight) for part in module.modules() if isinstance(part, torch.nn.Embedding)}
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() < 2 or not weight.requires_grad:
                continue
            stacked = weight.dim() == 3 and "conv" not in name and "experts" in name
            fan_in = 1 if id(weight) in tables else weight[0, 0].numel() if stacked else weight[0].numel()
            gain = HEAD_GAIN if name.endswith("lm_head.weight") else 1.0
            weight.normal_(std=gain * fan_in**-0.5, generator=generator)


def save(weights: dict[str, Any], folder: Path) -> None:
    """Write `weights` in bfloat16, the published precision."""
    import torch
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous().clone() for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_qwen_files(folder: Path, *, processor: str, chunk_length: int, patch_size: int, eos: int) -> None:
    """Write the processor's and the generation's files of a Qwen omni model, with the published keys."""
    write_json(
        folder / "preprocessor_config.json",
        {
            "processor_class": processor,
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": 128,
            "sampling_rate": 16000,
            "hop_length": 160,
            "n_fft": 400,
            "chunk_length": chunk_length,
            "n_samples": chunk_length * 16000,
            "nb_max_frames": chunk_length * 100,
            "padding_side": "right",
            "padding_value": 0.0,
            "dither": 0.0,
            "return_attention_mask": True,
            "image_processor_type": "Qwen2VLImageProcessor",
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": patch_size,
            "temporal_patch_size": 2,
            "merge_size": 2,
        },
    )
    write_json(folder / "processor_config.json", {"processor_class": processor})
    write_json(folder / "generation_config.json", {"eos_token_id": eos})
