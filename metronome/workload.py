"""Who speaks when: phases and lengths of sessions, one seed per source of randomness."""

from dataclasses import dataclass

from metronome.frames import NS_PER_MS, NS_PER_S, SessionSpec

PHASES = ("spread", "aligned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A population of identical periodic sessions that start together.

    phases: "spread" puts the releases of N sessions evenly over the period, "aligned" puts all at its start (the worst
    case).
    """

    period_ms: int
    deadline_ms: int
    duration_s: float
    phases: str = "spread"

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

    @property
    def num_frames(self) -> int:
        return int(self.duration_s * 1000 / self.period_ms)

    @property
    def duration_ns(self) -> int:
        return int(self.duration_s * NS_PER_S)

    def make_sessions(self, num_sessions: int) -> list[SessionSpec]:
        """The sessions of one point, ordered by their first release."""
        if num_sessions < 1:
            raise ValueError(f"workload.sessions has {num_sessions}: each entry must be 1 or more sessions")
        period_ns = self.period_ms * NS_PER_MS
        return [
            SessionSpec(
                session_id=i,
                start_ns=0,
                phase_ns=period_ns * i // num_sessions if self.phases == "spread" else 0,
                period_ns=period_ns,
                deadline_ns=self.deadline_ms * NS_PER_MS,
                num_frames=self.num_frames,
            )
            for i in range(num_sessions)
        ]
