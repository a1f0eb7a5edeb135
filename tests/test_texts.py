import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome import texts


def encode(text):
    return [ord(c) for c in text]


def test_turns_start_at_the_first_word_said(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text("ANNA: Hello.\nBOB: Well: no.\n")
    dialogue = texts.read_dialogue(path, encode, 20)
    assert dialogue.name == "play" and len(dialogue.ids) == 20
    assert bytes(dialogue.ids).decode() == "ANNA: Hello.\nBOB: We"
    assert [bytes(dialogue.ids[s : s + 3]).decode() for s in dialogue.turn_starts] == [" He", " We"]


def test_a_text_that_is_too_short_says_how_long_it_is(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text("ANNA: Hello.\n")
    with pytest.raises(ValueError, match=r"play.txt: holds 13 tokens, text.num_tokens=50"):
        texts.read_dialogue(path, encode, 50)


def test_no_texts_name_the_command_that_fetches_them(tmp_path):
    with pytest.raises(ValueError, match="text.dir=.*python scripts/fetch_text.py"):
        texts.find_texts(tmp_path)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=200), st.integers(0, 50), st.integers(1, 60))
def test_segments_hold_every_value_once(values, first, size):
    found = texts.segment_means(np.array(values), first, size)
    assert sum(n for _, n, _ in found) == len(values)
    assert sum(n * mean for _, n, mean in found) == pytest.approx(sum(values), abs=1e-6)
    assert all(start % size == 0 and start + size > first for start, _, _ in found)


def test_repetition_is_seen():
    assert texts.distinct_ngrams([1, 2, 3, 4], 2) == 1.0
    assert texts.distinct_ngrams([1, 2] * 50, 2) == pytest.approx(2 / 99)
    assert texts.longest_loop([5, 1, 2, 3, 1, 2, 3, 1, 2, 9]) == 5
    assert texts.longest_loop(list(range(100))) == 0


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60))
def test_the_longest_loop_equals_looking_at_every_stretch(ids):
    def brute(period):
        best = run = 0
        for i in range(period, len(ids)):
            run = run + 1 if ids[i] == ids[i - period] else 0
            best = max(best, run)
        return best

    assert texts.longest_loop(ids) == max(brute(p) for p in range(1, min(64, len(ids) - 1) + 1))


def test_a_mix_gives_each_part_the_same_share_of_every_text():
    first, second = [1] * 1000, [2] * 1000
    mixed = texts.mix([first, second], 200)
    assert len(mixed) == 200
    assert all(sum(t == 1 for t in mixed[i : i + 20]) == 10 for i in range(0, 200, 20))
    ordered = texts.mix([list(range(100)), list(range(100))], 200)
    assert ordered[:20] == [*range(10), *range(10, 20)]  # the second text enters one part later
    assert sorted(ordered) == sorted([*range(100), *range(100)])
    with pytest.raises(ValueError, match="need 1000 of each of 2 texts"):
        texts.mix([first, second[:500]], 2000)


def test_both_readings_of_a_text_hold_the_same_turns():
    dialogue = texts.Dialogue(name="play", ids=list(range(10)), turn_starts=[0, 4, 5, 8])
    other = texts.swap_halves(dialogue)
    assert other.ids == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    assert [other.ids[s] for s in other.turn_starts] == [5, 8, 0, 4]
    assert texts.swap_halves(other) == texts.Dialogue(name="play", ids=list(range(10)), turn_starts=[0, 4, 5, 8])
