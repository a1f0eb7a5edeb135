"""The records everything else is made of. Times: integer nanoseconds since the point's start, monotonic clock."""

from dataclasses import dataclass, field
from enum import StrEnum

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def harness_late_ns(period_ns: int) -> int:
    """A send that lags its release by more is the load generator's fault: 10 ms, or 1 % of a period above a second."""
    return max(10 * NS_PER_MS, period_ns // 100)


class FrameStatus(StrEnum):
    """How a frame ended; exactly one per frame."""

    OK = "ok"  # done by its deadline
    LATE = "late"  # done after its deadline
    EMPTY = "empty"  # the turn ended without a token
    LOST = "lost"  # never produced by the end of the run
    REFUSED = "refused"  # the session was not admitted; it has one frame
    DROPPED = "dropped"  # the session was shed while the frame was due
    IDLE_TIMEOUT = "idle_timeout"  # the session was ended for its silence
    MAX_LEN = "max_len"  # the session met max_model_len
    ENGINE_DEAD = "engine_dead"  # the engine process died


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """When one session speaks: frame k is released at start_ns + phase_ns + k * period_ns, whatever the engine does.

    line: the caller's line; sessions of one line follow each other, and first_frame counts what the line said before.
    burst_frames: after so many frames the session is silent for `silence_periods` periods; None: it never is.
    """

    session_id: int
    start_ns: int
    phase_ns: int
    period_ns: int
    deadline_ns: int
    num_frames: int
    line: int = 0
    first_frame: int = 0
    burst_frames: int | None = None
    silence_periods: int = 0

    def __post_init__(self) -> None:
        assert self.period_ns > 0 and self.deadline_ns > 0 and self.num_frames > 0
        assert 0 <= self.phase_ns < self.period_ns, "a phase lies inside the period"

    def release_ns(self, frame_idx: int) -> int:
        silent = 0 if self.burst_frames is None else frame_idx // self.burst_frames * self.silence_periods
        return self.start_ns + self.phase_ns + (frame_idx + silent) * self.period_ns

    @property
    def end_ns(self) -> int:
        """Deadline of the last frame."""
        return self.release_ns(self.num_frames - 1) + self.deadline_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRecord:
    """One frame of one session. None means that it did not happen; it is never written as 0."""

    session_id: int
    frame_idx: int
    release_ns: int
    sent_ns: int | None
    first_token_ns: int | None
    done_ns: int | None
    deadline_ns: int
    tokens_in: int
    tokens_out: int
    kv_tokens: int | None  # tokens the session holds in the cache once the frame is done
    status: FrameStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutput:
    """Tokens of one turn that arrived together.

    num_sampled counts a stop token too, num_tokens only what is spoken. hit_max_len: the session met max_model_len and
    ends. With the end of a turn, where the backend says so: num_in, positions that its input took, and num_kept, tokens
    of the session in the cache from then on, where they are bounded by the backend itself. token_ids: what was sampled.
    """

    num_tokens: int
    num_sampled: int
    turn_done: bool
    hit_max_len: bool = False
    num_in: int | None = None
    token_ids: tuple[int, ...] = ()
    num_kept: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """The engine's own state at one tick of the frame clock, whether or not it makes progress."""

    t_ns: int
    blocks_used: int
    blocks_total: int
    running: int
    waiting: int  # with or without blocks, deferred ones included: what vLLM calls num_requests_waiting
    deferred: int  # of `waiting`: set aside by the scheduler, e.g. until their next chunk arrives
    preemptions: int  # cumulative
    tokens_out: int  # cumulative, all sessions
    stats_age_ns: int | None  # since the engine last reported
    # What the engine itself observed since the previous sample, as its own metrics would count it.
    ttft_ms: tuple[float, ...] = field(default=())
    inter_token_ms: tuple[float, ...] = field(default=())
    # The forecast made with this sample: time to exhaustion with its 95 % interval; None where no end is in sight.
    tte_ns: int | None = None
    tte_low_ns: int | None = None
    tte_high_ns: int | None = None
    alarm: bool = False


class Action(StrEnum):
    """What a gate does with a session, or, closing a control window, with its limit."""

    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"
    SHED = "shed"
    UPDATE = "update"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the gate did and what it knew."""

    t_ns: int
    session_id: int | None  # None: no one session's, the limit was looked at
    action: Action
    limit: float
    num_active: int  # after it
    retry_after_ns: int | None = None  # of a refusal: when a place may be free
