"""What needs no engine; the engine itself is driven in tests/engine."""

import asyncio
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from metronome.backends.vllm_stream import TurnSplitter, VllmStreamBackend

STOP = frozenset([99])
tokens = st.integers(0, 98)


@given(st.lists(st.lists(tokens, min_size=4, max_size=4), min_size=1, max_size=6), st.data())
def test_turns_are_found_however_the_stream_is_merged(turns, data):
    stream = [t for turn in turns for t in turn]
    splitter = TurnSplitter(4, STOP)
    pieces, out = [], []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        pieces.append(stream[:size])
        stream = stream[size:]
    for piece in pieces:
        out += splitter.feed(piece, None)
    assert sum(t.turn_done for t in out) == len(turns)
    assert sum(t.num_tokens for t in out) == 4 * len(turns)


def test_a_stop_token_ends_a_turn_and_is_not_spoken():
    (turn,) = TurnSplitter(4, STOP).feed([5, 99], "stop")
    assert (turn.num_tokens, turn.num_sampled, turn.turn_done) == (1, 2, True)


def test_a_turn_of_only_a_stop_token_is_empty():
    (turn,) = TurnSplitter(4, STOP).feed([99], "stop")
    assert (turn.num_tokens, turn.num_sampled, turn.turn_done) == (0, 1, True)


def test_two_turns_in_one_delta_are_two():
    first, second = TurnSplitter(4, STOP).feed([1, 99, 2, 3], None)
    assert first.turn_done and not second.turn_done
    assert (first.num_tokens, second.num_tokens) == (1, 2)


def test_a_turn_cut_short_by_length_met_max_model_len():
    splitter = TurnSplitter(4, STOP)
    (full,) = splitter.feed([1, 2, 3, 4], "length")
    assert not full.hit_max_len
    (cut,) = splitter.feed([1, 2], "length")
    assert cut.hit_max_len and cut.turn_done


async def test_nobody_waits_for_a_dead_engine_to_free_its_sessions():
    backend = VllmStreamBackend(None, None)
    backend.engine = SimpleNamespace(llm=SimpleNamespace(errored=True))
    async with asyncio.timeout(20):
        assert not await backend.drained(timeout_s=60)
