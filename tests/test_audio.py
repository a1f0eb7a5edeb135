from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome import audio

SPEECH = Path(__file__).parent.parent / "data" / "speech"


@pytest.fixture(scope="module")
def clips():
    return [audio.level(audio.read(path)) for path in audio.find_clips(SPEECH)]


def tone(rate_hz, seconds=1.0, dbfs=-10.0, hz=440):
    peak = 10 ** (dbfs / 20)
    return (peak * np.sin(2 * np.pi * hz * np.arange(int(rate_hz * seconds)) / rate_hz)).astype(np.float64)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_any_rate_width_and_channel_count_gives_the_same_tone(tmp_path, rate_hz, channels, subtype):
    path = tmp_path / "tone.wav"
    sf.write(path, np.tile(tone(rate_hz)[:, None], (1, channels)), rate_hz, subtype=subtype)
    samples = audio.read(path)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert abs(len(samples) - 16_000) <= 1  # duration kept: channels are averaged before the rate changes
    middle = samples[2000:-2000]
    assert 20 * np.log10(np.abs(middle).max()) == pytest.approx(-10.0, abs=0.1)


@pytest.mark.parametrize(("name", "kind"), [("a.flac", None), ("a.ogg", "VORBIS"), ("a.opus", "OPUS"), ("a.mp3", None)])
def test_compressed_files_are_read(tmp_path, name, kind):
    path = tmp_path / name
    container = {"opus": "OGG", "mp3": "MP3"}.get(path.suffix[1:])
    sf.write(path, tone(16_000), 16_000, subtype=kind, format=container)
    assert abs(len(audio.read(path)) - 16_000) < 1600
    assert audio.find_clips(tmp_path) == [path]


def test_channels_are_averaged_not_picked(tmp_path):
    path = tmp_path / "two.wav"
    sf.write(path, np.stack([tone(16_000), -tone(16_000)], axis=1), 16_000, subtype="FLOAT")
    assert np.abs(audio.read(path)).max() < 1e-6


def test_a_sample_that_is_not_finite_is_refused_with_its_index(tmp_path):
    samples = tone(16_000).astype(np.float32)
    samples[1234] = np.nan
    path = tmp_path / "nan.wav"
    sf.write(path, samples, 16_000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"nan\.wav: sample 1234 is not finite"):
        audio.read(path)


def test_damaged_missing_and_empty_files_are_refused_by_path(tmp_path):
    (tmp_path / "noise.wav").write_bytes(b"RIFF but not really")
    sf.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    for name in ("noise.wav", "missing.wav", "empty.wav"):
        with pytest.raises(ValueError, match=name):
            audio.read(tmp_path / name)


def test_a_folder_without_audio_is_refused_with_the_fix(tmp_path):
    with pytest.raises(ValueError, match="speech.dir=.*holds no audio.*speech.dir=data/speech"):
        audio.find_clips(tmp_path)
    with pytest.raises(ValueError, match="is no directory"):
        audio.find_clips(tmp_path / "missing")


def test_levelled_speech_is_equally_loud_and_never_clips(clips):
    loudness = [20 * np.log10(np.sqrt(np.mean(clip**2))) for clip in clips]
    assert max(loudness) <= audio.SPEECH_DBFS + 0.1
    assert sum(abs(x - audio.SPEECH_DBFS) < 0.1 for x in loudness) > len(clips) / 2
    assert max(np.abs(clip).max() for clip in clips) <= 1.0 + 1e-6
    assert not audio.level(np.zeros(100, np.float32)).any()


def test_sessions_hear_different_material_and_seeds_repeat_it(clips):
    first, second = (audio.join_clips(clips, 16_000 * 30, (7, i)) for i in (0, 1))
    assert len(first) == len(second) == 16_000 * 30
    assert np.abs(np.corrcoef(first, second)[0, 1]) < 0.2
    np.testing.assert_array_equal(first, audio.join_clips(clips, 16_000 * 30, (7, 0)))
    assert not np.array_equal(first, audio.join_clips(clips, 16_000 * 30, (8, 0)))


def test_a_call_uses_every_clip_before_it_repeats_one_with_pauses_between():
    clips = [np.full(16_000, value, np.float32) for value in (0.1, 0.2, 0.3)]
    call = audio.join_clips(clips, 16_000 * 5, (0, 0))
    order = [x for x, y in zip(call, np.r_[0, call[:-1]], strict=True) if x and x != y]
    assert len({float(x) for x in order[:3]}) == 3
    silences = np.diff(np.flatnonzero(np.diff((call == 0).astype(int))))
    assert silences.size and all(0.29 * 16_000 < s < 1.01 * 16_000 for s in silences)


@pytest.fixture(scope="module")
def codec():
    return audio.LogMelCodec(tokens_per_second=25, first_token=1000)


def test_the_codec_keeps_its_rate_and_its_range(clips, codec):
    ids = codec.encode(clips[0][: 16_000 * 10])
    assert len(ids) == 250
    assert ids.min() >= 1000 and ids.max() < 1000 + codec.codebook_size


def test_the_codec_follows_the_sound(clips, codec):
    ids = np.concatenate([codec.encode(clip) for clip in clips])
    counts = np.bincount(ids - 1000, minlength=codec.codebook_size)
    shares = counts[counts > 0] / counts.sum()
    assert -(shares * np.log2(shares)).sum() > 5  # bits a token; a constant or a broken codebook has none
    assert len(set(codec.encode(np.zeros(16_000, np.float32)))) == 1


@settings(max_examples=10, deadline=None)
@given(st.integers(640, 64_000))
def test_a_token_depends_on_no_later_sample(cut):
    call = audio.read(SPEECH / "jfk.opus")[:64_000]
    codec = audio.LogMelCodec(tokens_per_second=25)
    np.testing.assert_array_equal(codec.encode(call[:cut]), codec.encode(call)[: cut // 640])
