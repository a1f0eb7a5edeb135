"""A tiny Moshi with random weights: none of it is speech."""

import pytest
import torch
from moshi_tiny import LEVELS, WINDOW
from transformers import MoshiConfig, MoshiForConditionalGeneration
from transformers.models.mimi.modeling_mimi import MimiEuclideanCodebook

from metronome.backends.moshi_loop import load


@pytest.fixture(scope="module")
def one_thread():
    """On shared cores two threads wait for each other far longer than a tiny layer takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    mimi = dict(
        model_type="mimi",
        hidden_size=32,
        num_filters=4,
        codebook_size=64,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=64,
        num_quantizers=LEVELS,
        num_semantic_quantizers=1,
        sliding_window=8,
        upsample_groups=32,
    )
    depth = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, ffn_dim=64, sliding_window=LEVELS)
    model = MoshiForConditionalGeneration(
        MoshiConfig(
            vocab_size=200,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=128,
            sliding_window=WINDOW,
            num_codebooks=LEVELS,
            audio_encoder_config=mimi,
            depth_decoder_config=depth,
            initializer_range=0.1,
        )
    )
    for part in model.modules():
        if isinstance(part, MimiEuclideanCodebook):  # zeros as transformers makes them: any audio has the same codes
            torch.nn.init.normal_(part.embed_sum)
    path = tmp_path_factory.mktemp("moshi") / "tiny_moshi"
    model.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def model(checkpoint):
    return load(checkpoint)
