"""Who speaks when: phases and lengths of sessions, one seed per source of randomness."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from metronome.frames import NS_PER_MS, NS_PER_S, SessionSpec

PHASES = ("spread", "random", "aligned")
HANG_UP_PERIODS = 2  # past the last deadline: a frame this late is still counted as late, not lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A population of periodic sessions: N callers, each with a line that is never idle.

    phases: "spread" puts the releases of N lines evenly over the period, "random" anywhere in it, as callers do,
    "aligned" all at its start (the worst case). mean_lifetime_s: sessions last an exponentially distributed time of
    this mean, and the next one takes over the line with its next frame; None: all last to the end. burst_frames: a
    session speaks so many frames and then is silent for `silence_periods`, lines at different times; None: no silence.
    """

    period_ms: int
    deadline_ms: int
    duration_s: float
    phases: str = "spread"
    mean_lifetime_s: float | None = None
    burst_frames: int | None = None
    silence_periods: int = 0

    def __post_init__(self) -> None:
        for key in ("period_ms", "deadline_ms"):
            if getattr(self, key) < 1:
                raise ValueError(f"workload.{key}={getattr(self, key)}: must be 1 ms or more")
        if self.num_periods < 1:
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

        self._check_bursts()

    def _check_bursts(self) -> None:
        if self.burst_frames is None:
            if self.silence_periods:
                raise ValueError(
                    f"workload.silence_periods={self.silence_periods}: needs workload.burst_frames, e.g. 4"
                )
            return
        if self.burst_frames < 1 or self.silence_periods < 0:
            raise ValueError(
                f"workload.burst_frames={self.burst_frames}, workload.silence_periods={self.silence_periods}: "
                "a burst is 1 or more frames, a silence 0 or more periods"
            )
        if self.mean_lifetime_s is not None:
            raise ValueError(
                f"workload.burst_frames={self.burst_frames}: sessions with silences last to the end; "
                "set workload.mean_lifetime_s=null"
            )

    @property
    def num_periods(self) -> int:
        # A duration of whole periods, written in decimal seconds, must not lose its last frame to rounding.
        return int(self.duration_s * 1000 / self.period_ms + 1e-9)

    @property
    def num_frames(self) -> int:
        """Frames that a line says at most."""
        return self._frames_in(self.num_periods)

    def _frames_in(self, num_periods: int) -> int:
        if self.burst_frames is None:
            return num_periods
        cycles, rest = divmod(num_periods, self.burst_frames + self.silence_periods)
        return cycles * self.burst_frames + min(rest, self.burst_frames)

    @property
    def period_ns(self) -> int:
        return self.period_ms * NS_PER_MS

    @property
    def duration_ns(self) -> int:
        return int(self.duration_s * NS_PER_S)

    def make_sessions(self, num_sessions: int, seed: int | tuple[int, ...] = 0) -> list[SessionSpec]:
        """The sessions of one point, line by line, each line's in their order; `seed` draws lifetimes and phases."""
        if num_sessions < 1:
            raise ValueError(f"workload.sessions has {num_sessions}: each entry must be 1 or more sessions")
        if self.burst_frames is not None:
            return [self._bursty(line, num_sessions, seed) for line in range(num_sessions)]
        rng = np.random.default_rng(seed)
        specs: list[SessionSpec] = []
        for line in range(num_sessions):
            phase_ns = self._phase_ns(line, num_sessions, rng)
            first = 0
            while first < self.num_frames:
                num_frames = min(self._draw_frames(rng), self.num_frames - first)
                specs.append(self._session(len(specs), line, first, phase_ns, num_frames))
                first += num_frames
        return specs

    def _bursty(self, line: int, num_lines: int, seed: int | tuple[int, ...]) -> SessionSpec:
        """Lines begin one after the other, so that not all are silent at once."""
        assert self.burst_frames is not None
        rng = np.random.default_rng((line, *(seed if isinstance(seed, tuple) else (seed,))))
        waited = (self.burst_frames + self.silence_periods) * line // num_lines if self.phases != "aligned" else 0
        phase_ns = self._phase_ns(line, num_lines, rng)
        num_frames = max(self._frames_in(self.num_periods - waited), 1)
        spec = self._session(line, line, waited, phase_ns, num_frames)
        return replace(spec, first_frame=0, burst_frames=self.burst_frames, silence_periods=self.silence_periods)

    def _phase_ns(self, line: int, num_lines: int, rng: np.random.Generator) -> int:
        if self.phases == "random":
            return int(rng.integers(self.period_ns))
        return self.period_ns * line // num_lines if self.phases == "spread" else 0

    def make_arrivals(self, offered: Sequence[float], seed: int | tuple[int, ...] = 0) -> list[SessionSpec]:
        """Callers who come by chance (Poisson) and stay for an exponential time, in order of arrival.

        offered: sessions that would be in, were all let in and for long enough (in erlangs); one entry per equal part
        of the duration. Each caller speaks at once, so that its phase is as random as its arrival.
        """
        if self.mean_lifetime_s is None:
            raise ValueError("workload.mean_lifetime_s=null: callers who come and go need a mean time, e.g. 60")
        if not offered or min(offered) <= 0:
            raise ValueError(f"workload.offered={list(offered)}: name one load or more, each above 0 sessions")
        rng = np.random.default_rng(seed)
        step_s = self.duration_s / len(offered)
        specs: list[SessionSpec] = []
        for step, sessions in enumerate(offered):
            num_callers = rng.poisson(sessions / self.mean_lifetime_s * step_s)
            for at_s in np.sort(rng.uniform(step * step_s, (step + 1) * step_s, num_callers)):
                frame, phase_ns = divmod(int(at_s * NS_PER_S), self.period_ns)
                most, num_frames = self.num_frames - frame, self._draw_frames(rng)
                if most > 0:  # none speaks past the end
                    i = len(specs)
                    specs.append(self._session(i, i, frame, phase_ns, min(num_frames, most)))
        return specs

    def _draw_frames(self, rng: np.random.Generator) -> int:
        if self.mean_lifetime_s is None:
            return self.num_frames
        return int(rng.geometric(self.period_ms / (self.mean_lifetime_s * 1000)))

    def _session(self, session_id: int, line: int, first: int, phase_ns: int, num_frames: int) -> SessionSpec:
        """first: its first period."""
        return SessionSpec(
            session_id=session_id,
            start_ns=first * self.period_ns,
            first_frame=first,
            phase_ns=phase_ns,
            period_ns=self.period_ns,
            deadline_ns=self.deadline_ms * NS_PER_MS,
            num_frames=num_frames,
            line=line,
        )
