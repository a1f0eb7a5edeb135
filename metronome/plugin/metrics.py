"""The forecast for operators: time to exhaustion of the block pool, in Prometheus next to vLLM's own metrics.

vLLM makes one of these per engine through `vllm.stat_logger_plugins`; nothing needs to be configured. A stock engine
that is about to fill its pool says nothing of it, and stalls (claim C2).
"""

import functools
import logging
import math
import time
from typing import Any

from prometheus_client import Gauge
from vllm.v1.metrics.loggers import StatLoggerBase

from metronome.forecast import Forecast, Forecaster
from metronome.frames import NS_PER_S
from metronome.window import Bound

STEP_S, HORIZON_S = 1, 30
_LABELS = ("model_name", "engine")

log = logging.getLogger("vllm.metronome")


class ExhaustionLogger(StatLoggerBase):  # type: ignore[misc]
    """Sees what the scheduler reports after each step; seconds are infinite while no end is in sight."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._config = vllm_config
        self._labels = (vllm_config.model_config.served_model_name, str(engine_index))
        self._forecaster = Forecaster(
            step_ns=STEP_S * NS_PER_S, horizon_ns=HORIZON_S * NS_PER_S, session_blocks=_session_blocks(vllm_config)
        )
        self._warned = False

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        num_blocks = self._config.cache_config.num_gpu_blocks  # known once the engine has started
        if scheduler_stats is None or not num_blocks:
            return
        usable = num_blocks - 1  # without the null block
        sessions = (
            scheduler_stats.num_running_reqs
            + scheduler_stats.num_waiting_reqs
            + scheduler_stats.num_skipped_waiting_reqs
        )
        used = round(scheduler_stats.kv_cache_usage * usable)
        seen = self._forecaster.update(time.monotonic_ns(), used, usable, sessions)
        self._show(seen)
        self._warn(seen, used / usable)

    def _show(self, seen: Forecast) -> None:
        middle, low, alarm = _gauges()
        middle.labels(*self._labels).set(_seconds(seen.tte_ns))
        low.labels(*self._labels).set(_seconds(seen.tte_low_ns))
        alarm.labels(*self._labels).set(seen.alarm)

    def _warn(self, seen: Forecast, rho: float) -> None:
        """Once per alarm."""
        if seen.alarm and not self._warned:
            log.warning(
                "KV cache %.0f %% full, and full in %.0f s or more as it grows now: admit no more sessions, end some, "
                'or bound them with --additional-config \'{"metronome": {"window": ...}}\'',
                100 * rho,
                _seconds(seen.tte_low_ns),
            )
        self._warned = seen.alarm

    def log_engine_initialized(self) -> None:
        """Nothing to say before anything is served."""


def _seconds(ns: int | None) -> float:
    return math.inf if ns is None else ns / NS_PER_S


@functools.cache
def _gauges() -> tuple[Gauge, Gauge, Gauge]:
    """One set per process: a second engine in it shows up as another label."""
    meanings = {
        "seconds": "Time until the KV cache is full if no session ends.",
        "low_seconds": "Lower end of its 95 % interval.",
        "alarm": f"1 while that is under {HORIZON_S} s.",
    }
    made = [
        Gauge(f"metronome:kv_cache_exhaustion_{name}", meaning, _LABELS, multiprocess_mode="mostrecent")
        for name, meaning in meanings.items()
    ]
    return made[0], made[1], made[2]


def _session_blocks(vllm_config: Any) -> int | None:
    """The most blocks one request can hold, where it is bounded."""
    options = (vllm_config.additional_config or {}).get("metronome")
    if not options:
        return None
    bound = Bound.from_options(options, vllm_config.cache_config.block_size)
    return bound.max_blocks(vllm_config.scheduler_config.max_num_batched_tokens)
