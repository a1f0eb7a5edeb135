"""Moshi's loop against transformers' own code. Tiny random weights: none of it is speech."""

import numpy as np
import pytest
import torch
from moshi_tiny import LEVELS, SIZE, WINDOW, audio
from transformers import MoshiForConditionalGeneration

from metronome.backends.moshi_loop import Dialogue, load

pytestmark = pytest.mark.usefixtures("one_thread")


def encode_whole(model, samples):
    with torch.inference_mode():
        return model.audio_encoder.encode(
            torch.from_numpy(samples)[None, None], num_quantizers=LEVELS, return_dict=True
        ).audio_codes


def answer_all(dialogue, codes):
    with torch.inference_mode():
        answers = [dialogue.answer(codes[..., k : k + 1]) for k in range(codes.shape[-1])]
    return [text for text, _ in answers], torch.cat([own for _, own in answers], dim=-1)


@pytest.mark.parametrize("seed", [None, 5])
def test_a_streamed_session_is_the_loop_over_audio_that_was_encoded_at_once(model, seed):
    def generator():
        return None if seed is None else torch.Generator().manual_seed(seed)

    samples = audio(14)  # longer than both windows
    dialogue = Dialogue(model, generator())
    streamed = [dialogue.converse(frame) for frame in samples.reshape(-1, SIZE)]
    codes = encode_whole(model, samples)
    texts, own = answer_all(Dialogue(model, generator()), codes)
    assert [s.text_token for s in streamed] == texts and len(set(texts)) > 1
    assert [list(s.codes) for s in streamed] == own[0].T.tolist()
    speech = np.concatenate([s.speech for s in streamed])
    with torch.inference_mode():
        whole = model.audio_encoder.decode(own, return_dict=True).audio_values.flatten().numpy()
    np.testing.assert_allclose(speech, whole, atol=1e-5 * np.abs(whole).max())


def test_mimi_hears_the_same_frame_by_frame_and_at_once(model):
    samples = audio(14)
    dialogue = Dialogue(model, None)
    with torch.inference_mode():
        streamed = [dialogue.hear(torch.from_numpy(f)[None, None]) for f in samples.reshape(-1, SIZE)]
    whole = encode_whole(model, samples)
    assert torch.equal(torch.cat(streamed, dim=-1), whole)
    assert all(level.unique().numel() > 2 for level in whole[0])
    assert not torch.equal(whole, encode_whole(model, audio(14, seed=1)))


def test_an_unheard_user_is_answered_as_by_transformers_own_generate(model):
    """generate() assumes the same blank codes in every frame; its text also holds the two tokens of position 0."""
    num_frames = WINDOW - 2
    blank = encode_whole(model, np.zeros(SIZE, np.float32))
    texts, own = answer_all(Dialogue(model, None), blank.expand(-1, -1, num_frames))
    theirs = model.generate(
        max_length=num_frames + 2, do_sample=False, return_audio_codes=True, return_audio_waveforms=False
    )
    assert theirs.sequences[0, 2 : num_frames + 2].tolist() == texts
    assert torch.equal(theirs.audio_codes[..., :num_frames], own)


def test_positions_hold_what_transformers_delay_pattern_puts_there(model):
    """The greedy texts are the likeliest ones of one plain forward pass over the delayed streams, the user's heard."""
    num_frames = WINDOW - 2  # without a cache transformers ignores the window
    user = encode_whole(model, audio(num_frames))
    texts, own = answer_all(Dialogue(model, None), user)
    blank = model.get_unconditional_inputs()
    bos = model.config.audio_vocab_size

    def delayed(codes):
        joined = torch.cat([blank.user_audio_codes, codes], dim=-1)
        return model.build_delay_pattern_mask(joined, bos, bos, max_length=num_frames + 3)[0]

    def likeliest(user_codes):
        with torch.inference_mode():
            first = model(
                input_ids=blank.input_ids,
                moshi_audio_codes=blank.moshi_audio_codes,
                user_audio_codes=delayed(user_codes)[..., :1],
            )
            ids = torch.tensor([[model.config.vocab_size, int(first.logits.argmax()), *texts[:-1]]])
            out = model(input_ids=ids, moshi_audio_codes=delayed(own), user_audio_codes=delayed(user_codes))
        return out.logits[0, 1:].argmax(-1).tolist()

    assert likeliest(user) == texts
    assert likeliest(user.roll(1, dims=-1)) != texts  # the check sees a frame's shift


def test_the_cache_stops_growing_a_position_short_of_the_window(model):
    dialogue = Dialogue(model, None)
    kept = [dialogue.converse(frame).num_kept for frame in audio(2 * WINDOW).reshape(-1, SIZE)]
    assert kept == [min(k + 2, WINDOW - 1) for k in range(2 * WINDOW)]


def test_a_mimi_that_cannot_stream_is_refused(checkpoint, tmp_path):
    model = MoshiForConditionalGeneration.from_pretrained(checkpoint)
    model.config.audio_encoder_config.pad_mode = "replicate"
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="cannot be decoded frame by frame"):
        load(str(tmp_path))
