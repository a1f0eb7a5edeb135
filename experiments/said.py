"""What is said on every line of a point, frame by frame."""

import numpy as np

from experiments.schema import Run
from metronome.audio import SAMPLE_RATE_HZ, Audio, LogMelCodec, find_clips, join_clips, level, read
from metronome.backends.base import Turn
from metronome.texts import find_texts

Turns = list[list[Turn]]  # [line][frame]


def make_turns(run: Run, num_lines: int) -> Turns:
    """Each line hears other material, drawn by workload.seed."""
    if run.workload.says == "text":
        return _text(run, num_lines)
    rate_hz = run.model.audio.sample_rate_hz if run.model.audio else SAMPLE_RATE_HZ
    clips = [level(read(path, rate_hz)) for path in find_clips(run.speech.dir)]
    num_samples = run.workload.period_ms * rate_hz // 1000
    calls = [
        join_clips(clips, run.workload.num_frames * num_samples, (run.workload.seed, line), rate_hz)
        for line in range(num_lines)
    ]
    if run.model.audio:
        return [list(np.reshape(call, (run.workload.num_frames, num_samples))) for call in calls]
    return _coded(run, calls)


def _coded(run: Run, calls: list[Audio]) -> Turns:
    """As the tokens of a codec, for models that hear none."""
    codec = LogMelCodec(
        tokens_per_second=run.frame_tokens.num_in * 1000 / run.workload.period_ms,
        codebook_size=run.model.num_audio_tokens,
        first_token=run.model.first_audio_token,
    )
    shape = (run.workload.num_frames, run.frame_tokens.num_in)
    return [np.reshape(codec.encode(call), shape).tolist() for call in calls]


def _text(run: Run, num_lines: int) -> Turns:
    """As stretches of real dialogue, each line entered at another place."""
    from transformers import AutoTokenizer  # seconds to import: only if used

    tokenizer = AutoTokenizer.from_pretrained(run.model.checkpoint, revision=run.model.revision)
    size, num_frames = run.frame_tokens.num_in, run.workload.num_frames
    texts = "\n".join(path.read_text() for path in find_texts(run.workload.text_dir)[:_NUM_TEXTS])
    ids = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
    if len(ids) < size * num_frames:
        raise ValueError(
            f"workload.tokens_in={size}: {num_frames} frames take {size * num_frames} tokens, the texts hold "
            f"{len(ids)}; lower it or workload.duration_s"
        )
    starts = np.random.default_rng(run.workload.seed).integers(0, len(ids) - size * num_frames + 1, num_lines)
    return [[ids[i : i + size] for i in range(start, start + size * num_frames, size)] for start in starts.tolist()]


_NUM_TEXTS = 2  # plays, of about 40,000 tokens: more than any call takes
