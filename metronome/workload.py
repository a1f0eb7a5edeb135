"""Who speaks when: phases and lengths of sessions, one seed per source of randomness."""

from dataclasses import dataclass

import numpy as np

from metronome.frames import NS_PER_MS, NS_PER_S, SessionSpec

PHASES = ("spread", "aligned")
HANG_UP_PERIODS = 2  # past the last deadline: a frame this late is still counted as late, not lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A population of periodic sessions: N callers, each with a line that is never idle.

    phases: "spread" puts the releases of N lines evenly over the period, "aligned" puts all at its start (the worst
    case). mean_lifetime_s: sessions last an exponentially distributed time of this mean, and the next one takes over
    the line with its next frame; None: all last to the end.
    """

    period_ms: int
    deadline_ms: int
    duration_s: float
    phases: str = "spread"
    mean_lifetime_s: float | None = None

    def __post_init__(self) -> None:
        for key in ("period_ms", "deadline_ms"):
            if getattr(self, key) < 1:
                raise ValueError(f"workload.{key}={getattr(self, key)}: must be 1 ms or more")
        if self.num_frames < 1:
            raise ValueError(
                f"workload.duration_s={self.duration_s}: shorter than one period of {self.period_ms} ms; lengthen it"
            )
        if self.phases not in PHASES:
            raise ValueError(f"workload.phases={self.phases!r}: must be one of {', '.join(PHASES)}")
        if self.mean_lifetime_s is not None and self.mean_lifetime_s * 1000 < self.period_ms:
            raise ValueError(
                f"workload.mean_lifetime_s={self.mean_lifetime_s}: shorter than one period of {self.period_ms} ms; "
                "lengthen it, or set null for sessions that last to the end"
            )

    @property
    def num_frames(self) -> int:
        # A duration of whole periods, written in decimal seconds, must not lose its last frame to rounding.
        return int(self.duration_s * 1000 / self.period_ms + 1e-9)

    @property
    def duration_ns(self) -> int:
        return int(self.duration_s * NS_PER_S)

    def make_sessions(self, num_sessions: int, seed: int | tuple[int, ...] = 0) -> list[SessionSpec]:
        """The sessions of one point, line by line, each line's in their order; `seed` draws their lifetimes."""
        if num_sessions < 1:
            raise ValueError(f"workload.sessions has {num_sessions}: each entry must be 1 or more sessions")
        rng = np.random.default_rng(seed)
        specs: list[SessionSpec] = []
        for line in range(num_sessions):
            first = 0
            while first < self.num_frames:
                num_frames = min(self._draw_frames(rng), self.num_frames - first)
                specs.append(self._session(len(specs), line, num_sessions, first, num_frames))
                first += num_frames
        return specs

    def _draw_frames(self, rng: np.random.Generator) -> int:
        if self.mean_lifetime_s is None:
            return self.num_frames
        return int(rng.geometric(self.period_ms / (self.mean_lifetime_s * 1000)))

    def _session(self, session_id: int, line: int, num_lines: int, first_frame: int, num_frames: int) -> SessionSpec:
        period_ns = self.period_ms * NS_PER_MS
        return SessionSpec(
            session_id=session_id,
            start_ns=first_frame * period_ns,
            phase_ns=period_ns * line // num_lines if self.phases == "spread" else 0,
            period_ns=period_ns,
            deadline_ns=self.deadline_ms * NS_PER_MS,
            num_frames=num_frames,
            line=line,
        )
