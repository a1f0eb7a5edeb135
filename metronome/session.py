"""One periodic session as a state machine: no clock, no I/O. The runtime and the simulator both drive it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from metronome.frames import FrameRecord, FrameStatus, SessionSpec, TurnOutput


@dataclass(slots=True)
class _Frame:
    idx: int
    sent_ns: int
    tokens_in: int
    first_token_ns: int | None = None
    num_tokens: int = 0
    num_sampled: int = 0
    num_kept: int | None = None


class PeriodicSession:
    """Follows a session's frames from release to answer.

    tokens_in: of a frame, as planned; where the engine says how many there were, that counts. held_tokens maps tokens
    cached so far to tokens that the session's KV bound lets it keep.
    """

    def __init__(self, spec: SessionSpec, tokens_in: int, held_tokens: Callable[[int], int] = lambda n: n) -> None:
        self.spec = spec
        self.tokens_in = tokens_in
        self.num_tokens = 0  # spoken so far, all frames
        self.num_answered = 0
        self.num_on_time = 0
        self.ended: FrameStatus | None = None  # why the session ended early, if it did
        self._held_tokens = held_tokens
        self._num_cached = 0
        self._next_idx = 0
        self.closed = False
        self._open: deque[_Frame] = deque()  # sent, not yet answered; the engine answers in order
        self._finished: list[FrameRecord] = []

    def start_at(self, t_ns: int) -> None:
        """Begin at another time than planned, before anything was said: the first frame is released at t_ns."""
        assert self._next_idx == 0
        self.spec = replace(self.spec, start_ns=t_ns - self.spec.phase_ns)

    def open_ages_ns(self, t_ns: int) -> list[int]:
        """How long ago each frame that waits for its answer was released."""
        return [t_ns - self.spec.release_ns(frame.idx) for frame in self._open]

    def sent(self, frame_idx: int, t_ns: int) -> None:
        """Frame `frame_idx` was handed to the engine."""
        assert frame_idx == self._next_idx, f"frames go out in order: {frame_idx} after {self._next_idx - 1}"
        self._next_idx += 1
        self._open.append(_Frame(frame_idx, t_ns, self.tokens_in))

    def heard(self, output: TurnOutput, t_ns: int) -> None:
        """The engine produced tokens for the oldest unanswered frame."""
        assert self._open, "the engine answered a frame that was never sent"
        frame = self._open[0]
        if output.num_tokens and frame.first_token_ns is None:
            frame.first_token_ns = t_ns
        frame.num_tokens += output.num_tokens
        frame.num_sampled += output.num_sampled
        self.num_tokens += output.num_tokens
        if output.hit_max_len:
            self.ended = FrameStatus.MAX_LEN
        if output.num_in is not None:
            frame.tokens_in = output.num_in
        frame.num_kept = output.num_kept
        if output.turn_done:
            self._answer(self._open.popleft(), t_ns)

    def _answer(self, frame: _Frame, t_ns: int) -> None:
        # The last sampled token of a turn is discarded when the next chunk arrives: it never enters the cache.
        self._num_cached += frame.tokens_in + max(frame.num_sampled - 1, 0)
        deadline_ns = self.spec.release_ns(frame.idx) + self.spec.deadline_ns
        if self.ended is FrameStatus.MAX_LEN:
            status = FrameStatus.MAX_LEN
        elif frame.num_tokens == 0:
            status = FrameStatus.EMPTY
        else:
            status = FrameStatus.OK if t_ns <= deadline_ns else FrameStatus.LATE
        self.num_answered += 1
        self.num_on_time += status is FrameStatus.OK
        self._finished.append(self._record(frame.idx, frame, status, t_ns))

    def close(self, t_ns: int, status: FrameStatus = FrameStatus.LOST) -> None:
        """The session is over, for good: every frame released by `t_ns` and not answered gets `status`."""
        if self.closed:
            return
        self.closed = True
        status = self.ended or status
        while self._open:
            frame = self._open.popleft()
            self._finished.append(self._record(frame.idx, frame, status, None))
        while self._next_idx < self.spec.num_frames and self.spec.release_ns(self._next_idx) <= t_ns:
            self._finished.append(self._record(self._next_idx, None, status, None))
            self._next_idx += 1

    def take_finished(self) -> list[FrameRecord]:
        """Records of frames that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _record(self, idx: int, frame: _Frame | None, status: FrameStatus, done_ns: int | None) -> FrameRecord:
        release_ns = self.spec.release_ns(idx)
        return FrameRecord(
            session_id=self.spec.session_id,
            frame_idx=idx,
            release_ns=release_ns,
            sent_ns=frame.sent_ns if frame else None,
            first_token_ns=frame.first_token_ns if frame else None,
            done_ns=done_ns,
            deadline_ns=release_ns + self.spec.deadline_ns,
            tokens_in=frame.tokens_in if frame else self.tokens_in,
            tokens_out=frame.num_tokens if frame else 0,
            kv_tokens=self._kept(frame) if frame and done_ns is not None else None,
            status=status,
        )

    def _kept(self, frame: _Frame) -> int:
        return self._held_tokens(self._num_cached) if frame.num_kept is None else frame.num_kept
