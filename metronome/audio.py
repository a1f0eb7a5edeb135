"""Real speech in, model tokens out: read clips, join them into one call per session, cut frames, encode.

The only module that knows soundfile, soxr and librosa.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import librosa
import numpy as np
import soundfile as sf
import soxr
from numpy.typing import NDArray

Audio = NDArray[np.float32]  # [num_samples], mono, within about [-1, 1]

SAMPLE_RATE_HZ = 16_000
SPEECH_DBFS = -23.0  # clips differ by 35 dB in level; a call does not
PAUSE_S = (0.3, 0.8)  # between clips: the usual gap between turns of a conversation
# Mean and spread of log10 mel energy over data/speech at SPEECH_DBFS: centred features use the whole codebook.
_MEL_MEAN, _MEL_STD, _MEL_FLOOR = -2.73, 1.71, 1e-6
DIALOGUE = Path(".cache/dialogue")  # optional: there once scripts/fetch_dialogue.py has run
SUFFIXES = frozenset(f".{name.lower()}" for name in sf.available_formats()) | {".opus", ".aif", ".oga"}


def read(path: Path, rate_hz: int = SAMPLE_RATE_HZ) -> Audio:
    """One file as mono float32 at `rate_hz`: channels are averaged, then resampled.

    Any container, sample width and rate that libsndfile reads. Raises ValueError with the path where the file is
    missing, damaged, empty or holds samples that are not finite.
    """
    try:
        samples, file_rate_hz = sf.read(path, dtype="float32", always_2d=True)
    except (sf.LibsndfileError, OSError) as error:
        raise ValueError(
            f"{path}: cannot be read as audio by libsndfile {sf.__libsndfile_version__}: {error}"
        ) from error
    if not len(samples):
        raise ValueError(f"{path}: holds no samples; remove the file")
    bad = np.flatnonzero(~np.isfinite(samples).all(axis=1))
    if len(bad):
        raise ValueError(f"{path}: sample {bad[0]} is not finite; repair or remove the file")
    mono: Audio = samples.mean(axis=1)
    return mono if file_rate_hz == rate_hz else np.asarray(soxr.resample(mono, file_rate_hz, rate_hz), np.float32)


def find_clips(folder: Path) -> list[Path]:
    """All audio files below `folder`, by name.

    Raises ValueError where there are none.
    """
    clips = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    if not clips:
        what = "holds no audio" if folder.is_dir() else "is no directory"
        fix = "point it at a directory of audio files, e.g. speech.dir=data/speech"
        if folder == DIALOGUE:
            fix = "make it: python scripts/fetch_dialogue.py"
        raise ValueError(f"speech.dir={folder}: {what}; {fix}")
    return clips


def level(audio: Audio, dbfs: float = SPEECH_DBFS) -> Audio:
    """Scale to an RMS of `dbfs`, less where the peak would clip; silence stays silence."""
    rms, peak = float(np.sqrt(np.mean(audio**2))), float(np.abs(audio).max())
    if rms == 0:
        return audio
    return audio * np.float32(min(10 ** (dbfs / 20) / rms, 1 / peak))


def join_clips(clips: Sequence[Audio], num_samples: int, seed: Sequence[int], rate_hz: int = SAMPLE_RATE_HZ) -> Audio:
    """One call of `num_samples`: clips in an order drawn by `seed`, with pauses, entered at a point drawn by `seed`.

    Clips come round again only when all have been heard.
    """
    rng = np.random.default_rng(seed)
    order: list[int] = []
    pieces: list[Audio] = []
    missing = num_samples
    while missing > 0:
        if not order:
            order = rng.permutation(len(clips)).tolist()
        clip = clips[order.pop()]
        if not pieces:  # a listener joins mid-sentence, so that no two sessions start alike
            clip = clip[rng.integers(len(clip)) :]
        pause = np.zeros(int(rng.uniform(*PAUSE_S) * rate_hz), np.float32)
        pieces += [clip, pause]
        missing -= len(clip) + len(pause)
    return np.concatenate(pieces)[:num_samples]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMelCodec:
    """Log-mel features to token ids through a fixed codebook, `tokens_per_second` ids a second of audio.

    A random-projection quantiser (Chiu et al. 2022, arXiv 2202.01855): the codebook is drawn from `seed`, not trained.
    It carries a codec's load, which follows the sound, and not its meaning.
    """

    tokens_per_second: float
    codebook_size: int = 1024
    first_token: int = 0
    seed: int = 0

    NUM_MELS: ClassVar[int] = 40
    HOPS_PER_TOKEN: ClassVar[int] = 4
    CODE_DIM: ClassVar[int] = 8

    def __post_init__(self) -> None:
        exact = SAMPLE_RATE_HZ / self.tokens_per_second / self.HOPS_PER_TOKEN
        if exact < 1 or exact != round(exact):
            raise ValueError(
                f"model.tokens_per_second={self.tokens_per_second}: a token must span a multiple of "
                f"{self.HOPS_PER_TOKEN} samples at {SAMPLE_RATE_HZ} Hz, as with 12.5, 25 or 50"
            )

    @property
    def samples_per_token(self) -> int:
        return round(SAMPLE_RATE_HZ / self.tokens_per_second)

    def encode(self, audio: Audio) -> NDArray[np.int64]:
        """Ids, [num_samples // samples_per_token]. An id depends on no later sample."""
        num_tokens = len(audio) // self.samples_per_token
        features = self._features(audio[: num_tokens * self.samples_per_token])
        projection, codebook = _codebook(self.codebook_size, features.shape[1], self.CODE_DIM, self.seed)
        codes = features @ projection
        codes /= np.linalg.norm(codes, axis=1, keepdims=True) + 1e-9
        ids: NDArray[np.int64] = self.first_token + np.argmax(codes @ codebook.T, axis=1)
        return ids

    def _features(self, audio: Audio) -> NDArray[np.float32]:
        """Normalised log-mel energies, [num_tokens, HOPS_PER_TOKEN * NUM_MELS]."""
        hop = self.samples_per_token // self.HOPS_PER_TOKEN
        window = 2 * hop
        padded = np.concatenate([np.zeros(window - hop, np.float32), audio])  # looks back, never ahead
        mel = librosa.feature.melspectrogram(
            y=padded, sr=SAMPLE_RATE_HZ, n_fft=window, hop_length=hop, center=False, n_mels=self.NUM_MELS, norm=None
        )
        log_mel: NDArray[np.float32] = (np.log10(mel.T + _MEL_FLOOR) - _MEL_MEAN) / _MEL_STD
        return log_mel.reshape(len(audio) // self.samples_per_token, -1)


@cache
def _codebook(size: int, num_features: int, dim: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    projection = rng.normal(size=(num_features, dim)).astype(np.float32)
    codebook = rng.normal(size=(size, dim)).astype(np.float32)
    return projection, codebook / np.linalg.norm(codebook, axis=1, keepdims=True)
