"""MiniCPM-o 4.5 (audio in, text out): Qwen3 behind a Whisper encoder and a pooling projector; its TTS is not in vLLM.

Kept of openbmb/MiniCPM-o-4_5: 4 query heads to a key head, head_dim 128, the encoder's heads of 64, pooling by 5 to 10
positions a second and two markers per started second, padding to 30 s. The engine needs trust_remote_code=True, as
with the published files; the code in minicpm_o_code/ stands in for theirs with the least that vLLM asks for.
Shrunk, from -> to:
    text:   hidden 4096 -> 256, layers 36 -> 2, heads 32:8 -> 4:1, MLP 12288 -> 512, vocabulary 151748 -> 512
    audio:  d_model 1024 -> 128, layers 24 -> 2, heads 16 -> 2, MLP 4096 -> 512 (four times d_model, as vLLM assumes)
    vision: left out of the weights; sessions here are audio
"""

import shutil
from pathlib import Path

from .parts import VOCABULARY, fill, save, write_json, write_tokenizer

CODE = Path(__file__).with_name("minicpm_o_code")
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
AUDIO = {
    "num_mel_bins": 80,
    "d_model": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 512,
    "max_source_positions": 1500,
    "vocab_size": 64,  # of Whisper's decoder, which the model leaves out, as it does what follows
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 128,
    **dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"], 0),
}
VISION = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "image_size": 980,
    "patch_size": 14,
}
SPECIALS = [
    *["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "</image>", "<slice>", "</slice>"],
    *["<image_id>", "</image_id>", "<|audio_start|>", "<|audio_end|>", "<|audio|>", "<|spk_bos|>", "<|spk_eos|>"],
    *["<|spk|>", "<|tts_bos|>", "<|tts_eos|>", "<|listen|>", "<|speak|>", "<unit>", "</unit>"],
    *["<|chunk_eos|>", "<|turn_eos|>"],
]


def write_config(folder: Path, eos: int) -> None:
    config = {
        "architectures": ["MiniCPMO"],
        "model_type": "minicpmo",
        "version": "4.5",
        "dtype": "bfloat16",
        "auto_map": {"AutoConfig": "configuration_minicpmo.MiniCPMOConfig"},
        "eos_token_id": eos,
        "audio_pool_step": 5,
        "audio_chunk_length": 1.0,
        "audio_config": AUDIO,
        "vision_config": VISION,
        **TEXT,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": eos})


def write_processor(folder: Path) -> None:
    config = {
        "processor_class": "MiniCPMOProcessor",
        "auto_map": {
            "AutoImageProcessor": "image_processing_minicpmv.MiniCPMVImageProcessor",
            "AutoProcessor": "processing_minicpmo.MiniCPMOProcessor",
        },
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 80,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "image_processor_type": "MiniCPMVImageProcessor",
        "max_slice_nums": 9,
        "scale_resolution": 448,
        "patch_size": 14,
        "image_feature_size": 64,
        "version": 4.5,
    }
    write_json(folder / "preprocessor_config.json", config)


def write_weights(folder: Path) -> None:
    from torch import nn
    from transformers import Qwen3Config, Qwen3ForCausalLM, WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    class Projector(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear1 = nn.Linear(AUDIO["encoder_ffn_dim"] // 4, TEXT["hidden_size"])
            self.linear2 = nn.Linear(TEXT["hidden_size"], TEXT["hidden_size"])
            nn.init.zeros_(self.linear1.bias)
            nn.init.zeros_(self.linear2.bias)

    parts = {
        "llm": Qwen3ForCausalLM(Qwen3Config(**TEXT)),
        "apm": WhisperEncoder(WhisperConfig(**AUDIO)),
        "audio_projection_layer": Projector(),
    }
    weights = {}
    for seed, (part, module) in enumerate(parts.items()):
        fill(module, seed)
        weights |= {f"{part}.{name}": weight for name, weight in module.state_dict().items()}
    save(weights, folder)


def build(folder: Path) -> None:
    tokens = {"unk_token": "<unk>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    auto_map = {"AutoTokenizer": [None, "tokenization_minicpmo_fast.MiniCPMOTokenizerFast"]}
    ids = write_tokenizer(folder, SPECIALS, "MiniCPMOTokenizerFast", auto_map=auto_map, **tokens)
    write_config(folder, ids["<|im_end|>"])
    write_processor(folder)
    for file in sorted(CODE.glob("*.py")):
        shutil.copy(file, folder)
    write_weights(folder)
