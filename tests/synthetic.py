"""Traces made by hand, so that tests know the truth."""

from metronome.frames import NS_PER_MS, NS_PER_S, FrameRecord, FrameStatus, PoolSample
from metronome.tables import PointFacts

PERIOD_NS = NS_PER_S


def facts(**changes) -> PointFacts:
    values = {
        "point_id": "unbounded-n2", "experiment": "cliff_sweep", "engine": "vllm", "model": "smollm2",
        "weights": "real",
        "hardware": "2 cores", "kv": "unbounded", "window": None, "sinks": None, "positions": None,
        "num_blocks": 40, "block_size": 32, "max_model_len": 4096, "turns_vary": False,
        "sessions": 2, "phases": "spread", "period_ns": PERIOD_NS,
        "deadline_ns": PERIOD_NS, "duration_ns": 20 * NS_PER_S, "tokens_in": 25, "tokens_out": 4,
    }  # fmt: skip
    return PointFacts(**(values | changes))


def frame(session_id=0, idx=0, latency_ms=200.0, status=None, num_sessions=2, **changes) -> FrameRecord:
    """A frame answered after latency_ms, or never when that is None."""
    release = idx * PERIOD_NS + session_id * PERIOD_NS // num_sessions
    done = None if latency_ms is None else release + int(latency_ms * NS_PER_MS)
    if status is None:
        late = latency_ms is not None and latency_ms * NS_PER_MS > PERIOD_NS
        status = FrameStatus.LOST if latency_ms is None else FrameStatus.LATE if late else FrameStatus.OK
    values = {
        "session_id": session_id, "frame_idx": idx, "release_ns": release, "sent_ns": release + NS_PER_MS,
        "first_token_ns": None if done is None else release + (done - release) // 2, "done_ns": done,
        "deadline_ns": release + PERIOD_NS, "tokens_in": 25, "tokens_out": 0 if done is None else 4,
        "kv_tokens": None if done is None else 28 * (idx + 1), "status": status,
    }  # fmt: skip
    return FrameRecord(**(values | changes))


def sample(t_s=0.0, blocks_used=0, running=0, waiting=0, **changes) -> PoolSample:
    values = {"blocks_total": 40, "deferred": waiting, "preemptions": 0, "tokens_out": 0, "stats_age_ns": 1}
    return PoolSample(
        t_ns=int(t_s * NS_PER_S), blocks_used=blocks_used, running=running, waiting=waiting, **(values | changes)
    )


def fill(sink, num_frames=20, stall_at=None, used_when_stalled=40, running_when_stalled=0) -> None:
    """Two sessions; from frame `stall_at` on nothing is answered."""
    for idx in range(num_frames):
        stalled = stall_at is not None and idx >= stall_at
        for session_id in range(2):
            sink.frame(frame(session_id, idx, None if stalled else 200.0))
        for tenth in range(10):
            used = used_when_stalled if stalled else min(39, 2 * idx)
            seen = {} if stalled or tenth > 4 else {"ttft_ms": (80.0,), "inter_token_ms": (40.0, 41.0)}
            running = running_when_stalled if stalled else 1
            sink.pool(sample(idx + tenth / 10, used, running, 2 - running, **seen))
