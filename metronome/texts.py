"""Dialogue as a model hears it, and what can be said of text that a model made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A conversation as token ids; `turn_starts` are the positions of the first token that each speaker says."""

    name: str
    ids: list[int]
    turn_starts: list[int]


def find_texts(folder: Path) -> list[Path]:
    """The `*.txt` files of a folder, by name. Raises ValueError where there are none."""
    texts = sorted(folder.glob("*.txt"))
    if not texts:
        raise ValueError(f"text.dir={folder}: no *.txt there; fetch them: python scripts/fetch_text.py")
    return texts


def read_dialogue(path: Path, encode: Callable[[str], list[int]], num_tokens: int) -> Dialogue:
    """The first `num_tokens` of a file of "SPEAKER: words" lines. Raises ValueError where it is shorter."""
    ids: list[int] = []
    starts: list[int] = []
    for line in path.read_text().splitlines(keepends=True):
        speaker, _, words = line.partition(":")
        ids += encode(f"{speaker}:")
        starts.append(len(ids))
        ids += encode(words)
        if len(ids) >= num_tokens:
            break
    if len(ids) < num_tokens:
        raise ValueError(
            f"{path}: holds {len(ids)} tokens, text.num_tokens={num_tokens}: lower it or name another text"
        )
    return Dialogue(name=path.stem, ids=ids[:num_tokens], turn_starts=[s for s in starts if s < num_tokens])


def swap_halves(dialogue: Dialogue) -> Dialogue:
    """The same tokens, second half first: read both ways, what stands early and what stands late is equally hard."""
    half = len(dialogue.ids) // 2
    late = [s - half for s in dialogue.turn_starts if s >= half]
    early = [s + len(dialogue.ids) - half for s in dialogue.turn_starts if s < half]
    return Dialogue(name=dialogue.name, ids=dialogue.ids[half:] + dialogue.ids[:half], turn_starts=late + early)


def segment_means(values: NDArray[np.float64], first: int, size: int) -> list[tuple[int, int, float]]:
    """Means of values by segment of `size` positions, where values[0] belongs to position `first`.

    Returns (start of the segment, number of values, mean) for each segment that holds any.
    """
    segments = (np.arange(len(values)) + first) // size
    return [
        (int(s * size), int((segments == s).sum()), float(values[segments == s].mean())) for s in np.unique(segments)
    ]


def distinct_ngrams(ids: Sequence[int], n: int) -> float:
    """Share of the text's n-grams that are different from each other: 1 never repeats, near 0 is a loop."""
    grams = list(zip(*(ids[i:] for i in range(n)), strict=False))
    return len(set(grams)) / len(grams)


def longest_loop(ids: Sequence[int], max_period: int = 64) -> int:
    """Length in tokens of the longest stretch that repeats itself with some period of at most `max_period` tokens.

    A stretch counts from the first token that equals the one a period before it.
    """
    tokens = np.asarray(ids)
    longest = 0
    for period in range(1, min(max_period, len(tokens) - 1) + 1):
        same = np.concatenate([[0], (tokens[period:] == tokens[:-period]).astype(int), [0]])
        edges = np.flatnonzero(np.diff(same))
        longest = max(longest, int((edges[1::2] - edges[::2]).max(initial=0)))
    return longest


def mix(texts: Sequence[list[int]], num_tokens: int, num_parts: int = 10) -> list[int]:
    """`num_tokens` of several texts, mixed so that each of `num_parts` parts holds as much of every text.

    Each text enters at another place and comes round to its beginning, so that a part holds beginnings, middles and
    ends alike. Parts are then as hard as each other. Raises ValueError where the texts are too short.
    """
    share = num_tokens // num_parts // len(texts)
    if any(len(text) < share * num_parts for text in texts):
        raise ValueError(
            f"{num_tokens} tokens need {share * num_parts} of each of {len(texts)} texts: name longer ones"
        )
    pieces = [
        text[place * share : (place + 1) * share]
        for part in range(num_parts)
        for i, text in enumerate(texts)
        for place in [(part + i) % num_parts]
    ]
    return [token for piece in pieces for token in piece]
