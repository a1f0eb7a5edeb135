"""What runs in the process that Moshi computes in: one model, and the state of its sessions."""

import os
import threading
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.utils import logging as transformers_logging

from metronome.backends.moshi_loop import Dialogue, Spoken, load

_NICE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the engine's process found in the checkpoint."""

    pid: int
    model_type: str
    sample_rate_hz: int
    frame_size: int
    window: int
    position_bytes: int
    dtype: str


# In the engine's process only: the model, and its sessions.
_model: Any = None
_dialogues: dict[int, Dialogue] = {}


def attend() -> None:
    """Leave a core to the load generator, as threads that spin for one cost more than they bring; do not outlive it."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    transformers_logging.disable_progress_bar()
    threading.Thread(target=_outlive_nobody, daemon=True).start()


def _outlive_nobody() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def open_model(checkpoint: str) -> Facts:
    global _model
    _model = load(checkpoint)
    config, mimi = _model.config, _model.config.audio_encoder_config
    os.nice(_NICE)
    heads_bytes = config.num_key_value_heads * config.head_dim * _model.dtype.itemsize
    return Facts(
        pid=os.getpid(),
        model_type=config.model_type,
        sample_rate_hz=mimi.sampling_rate,
        frame_size=round(mimi.sampling_rate / mimi.frame_rate),
        window=config.sliding_window,
        position_bytes=2 * config.num_hidden_layers * heads_bytes,
        dtype=str(_model.dtype).removeprefix("torch."),
    )


def hear(key: int, seed: int, samples: NDArray[np.float32]) -> Spoken:
    if key not in _dialogues:
        _dialogues[key] = Dialogue(_model, torch.Generator().manual_seed(seed))
    return _dialogues[key].converse(samples)


def forget(key: int) -> None:
    _dialogues.pop(key, None)
