"""Stand-in for MiniCPM-o's remote configuration: Qwen3's keys, flat, and the two encoders' beside them."""

from transformers import Qwen3Config, SiglipVisionConfig, WhisperConfig

DEFAULTS = {
    "version": "4.5",
    "query_num": 64,
    "image_size": 448,
    "drop_vision_last_layer": False,
    "batch_vision_input": True,
    "audio_pool_step": 5,
    "audio_chunk_length": 1.0,
    "use_image_id": True,
    "vision_batch_size": 16,
    "stream_input": True,
    "init_vision": True,
    "init_audio": True,
    "init_tts": False,
}


def nested(config_class, config):
    if not isinstance(config, dict):
        config = config.to_dict() if config else {}
    return config_class(**{key: value for key, value in config.items() if key != "model_type"})


class MiniCPMOConfig(Qwen3Config):
    model_type = "minicpmo"

    def __init__(self, vision_config=None, audio_config=None, **kwargs):
        for key, default in DEFAULTS.items():
            setattr(self, key, kwargs.pop(key, default))
        self.vision_config = nested(SiglipVisionConfig, vision_config)
        self.audio_config = nested(WhisperConfig, audio_config)
        super().__init__(**kwargs)
