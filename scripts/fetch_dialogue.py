"""Two-speaker conversations with their exact text, from Debian's `flight-of-the-amazon-queen`, a voiced adventure game.

    python scripts/fetch_dialogue.py                    # into .cache/dialogue; then: speech=dialogue
    python scripts/fetch_dialogue.py --deb FILE.deb     # from a package that you have downloaded: needs no apt-get

Optional: long calls that never repeat themselves. One NAME.flac (16 kHz, mono) and one NAME.txt a conversation. The
game has its own licence (free to copy and modify, not to be sold alone), so it is fetched and never committed; its
licence and readme are copied beside the sound. Every branch of a dialogue is taken, in the order of its tree, so that
all that was recorded is heard once: plausible talk, not one path through the game.

Does nothing when the folder is there. It is made beside its place and renamed, so it is there whole or not at all.
"""

import argparse
import gzip
import hashlib
import io
import lzma
import re
import shutil
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import soundfile as sf
import soxr

from metronome.audio import SAMPLE_RATE_HZ, Audio

PACKAGE = "flight-of-the-amazon-queen"
GAME = f"usr/share/scummvm/{PACKAGE}/queen.1c"
GAME_SHA256 = "cc91960d133fcd4173eda4bac304e80d2bbdbaa085640287ab9e0507bd603f67"
NOTICES = {f"usr/share/doc/{PACKAGE}/copyright": "copyright", f"usr/share/doc/{PACKAGE}/readme.txt.gz": "readme.txt"}
MODIFIED = f"""THIS IS A MODIFIED VERSION, and only a part, of the game "Flight of the Amazon Queen".

The game is (C) John Passfield and Steven Stamatiadis. Its licence, which also holds for these files, is in `copyright`
and at the end of `readme.txt`; both came with Debian's package {PACKAGE} and are unchanged.

What was changed by scripts/fetch_dialogue.py of the project Metronome: the voiced conversations were taken out of
queen.1c, the rest of the game was left out. Of each clip (MP3, 11,025 Hz) the quiet ends were cut; it was resampled to
{SAMPLE_RATE_HZ} Hz. The clips of a conversation were joined with pauses that are not in the game, every branch of the
dialogue in turn, made quieter as a whole where a peak would have clipped, and written as FLAC. The text (*.txt) was
taken out of the same dialogues, less its stage directions. You may not charge for the game itself, nor remove these
notices.
"""
SPEAKERS = {"J": "HERO", "P": "OTHER"}  # the letter in the name of a clip
QUIET = 10 ** (-50 / 20)  # below it is no sound: MP3 leaves a tenth of a second of that at either end of each clip
CEILING = 0.99  # of full scale: decoded MP3 goes up to 1.3 times over it
MAX_NAMED = 10


@dataclass(frozen=True)
class Pause:
    """Seconds of silence: log-normal, as measured pauses are (Campione and Veronis 2002), within limits."""

    median_s: float
    spread: float  # standard deviation of the natural logarithm
    limits_s: tuple[float, float]

    def draw(self, rng: np.random.Generator) -> float:
        return float(np.clip(self.median_s * np.exp(self.spread * rng.standard_normal()), *self.limits_s))


# Answers come after about 200 ms in ten languages (Stivers et al. 2009, mean 208 ms), spread from overlaps, about two
# in five, to more than a second (Heldner and Edlund 2010). One channel holds no overlaps, so these are the gaps alone.
TURN_GAP = Pause(median_s=0.25, spread=0.7, limits_s=(0.05, 1.5))
# Between clips of one turn. Free talk pauses there as long as between turns; but these were cut where the game's screen
# breaks a line, often amid a sentence, so what is put back is a breath. Our choice, not a measurement.
CLIP_PAUSE = Pause(median_s=0.12, spread=0.4, limits_s=(0.04, 0.4))


class Pack:
    """The entries of queen.1c by name. Layout learned from ScummVM's engine, no code of which is used."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        (num_entries,) = struct.unpack_from(">H", data, 13)  # after magic, version, flags and the kind of compression
        entries = (struct.unpack_from(">12sxII", data, 15 + 21 * i) for i in range(num_entries))
        self._places = {name.split(b"\0")[0].decode("latin1"): (start, size) for name, start, size in entries}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> bytes:
        start, size = self._places[name]
        return self._data[start : start + size]

    def conversations(self) -> list[str]:
        return sorted(name.removesuffix(".DOG") for name in self._places if name.endswith(".DOG"))


@dataclass(frozen=True)
class Clip:
    """What one of the two says without a break, and the entry that holds the sound of it."""

    who: str
    text: str
    entry: str


def read_clips(pack: Pack, name: str) -> list[Clip]:
    """The clips of a conversation in the order of its turns, whether their sound is there or not."""
    data = pack[f"{name}.DOG"][20:]
    (number,) = struct.unpack_from(">h", data, 4)
    lines, order = _read_tree(data)
    return [clip for who, key in order for clip in _split(lines[who].get(key, ""), number, who, key)]


def _read_tree(data: bytes) -> tuple[dict[str, dict[int, str]], list[tuple[str, int]]]:
    """The lines of each speaker by key, and the (speaker, key) of all that is said, in order.

    Column 0 of a level is what the other says first, columns 1 to 4 are the hero's choices, each with its answer.
    """
    num_levels, _, _, num_hero, num_other = (abs(x) for x in struct.unpack_from(">5h", data))
    (others_at,) = struct.unpack_from(">H", data, 22)
    lines = {"J": _read_lines(data, 32 + 96 * num_levels, num_hero), "P": _read_lines(data, others_at, num_other)}
    order = [("J", 0)]  # the hero's greeting; the other's 0 is how the hero greets when he comes again: left out
    for level in range(num_levels):
        keys = [struct.unpack_from(">h", data, 34 + 96 * level + 16 * column)[0] for column in range(5)]
        order += [("P", keys[0])] + [(who, key) for key in keys[1:] if key > 0 for who in "JP"]
    order += [(who, key) for key in lines["J"] for who in "JP"] + [("P", key) for key in lines["P"]]
    return lines, [place for place in dict.fromkeys(order) if place != ("P", 0)]


def _read_lines(data: bytes, at: int, num: int) -> dict[int, str]:
    lines: dict[int, str] = {}
    for _ in range(num):
        key, size = struct.unpack_from(">hB", data, at + 2)
        lines.setdefault(key, data[at + 5 : at + 5 + size].decode("latin1"))
        at = (at + 5 + size + 3) & ~3 if size else at + 5
    return lines


def _split(line: str, number: int, who: str, key: int) -> Iterator[Clip]:
    """The clips of a line. Each ends with a stage direction: '*' and two characters, or '*XY00(128,112)'."""
    moment = f"{key & 0xFFFF:04X}" if key else "SSSS"
    for i, said in enumerate(re.split(r"\*(?:XY..\([\d,]*\)|..)", line), start=1):
        text = said.replace("^_", "").strip()  # the game's sign for a trade mark
        if text and text != "0":  # the game's word for nothing
            yield Clip(who, text, f"{number:02d}{moment}{who}{i:X}.SB")


@dataclass
class Made:
    """What was made so far, and what could not be."""

    conversations: int = 0
    turns: int = 0
    clips: int = 0
    longest: tuple[float, str] = (0.0, "")
    seconds: float = 0.0
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lost = ", ".join(self.lost[:MAX_NAMED]) + (", ..." if len(self.lost) > MAX_NAMED else "")
        return (
            f"{self.conversations} conversations, {self.turns} turns, {self.clips} clips, {self.seconds / 60:.1f} "
            f"minutes (longest: {self.longest[1]}, {self.longest[0]:.0f} s); clips left out: {len(self.lost)}"
            + (f" ({lost})" if lost else "")
        )


def hear(pack: Pack, clip: Clip) -> Audio:
    """The sound of a clip, less the quiet at its ends. Raises ValueError where there is none."""
    if clip.entry not in pack:
        raise ValueError("missing")
    try:
        samples, rate_hz = sf.read(io.BytesIO(pack[clip.entry]), dtype="float32", always_2d=True)
    except sf.LibsndfileError:
        raise ValueError("unreadable") from None
    mono = samples.mean(axis=1)
    loud = np.flatnonzero(np.abs(mono) > QUIET)
    if not len(loud):
        raise ValueError("silent")
    return np.asarray(soxr.resample(mono[loud[0] : loud[-1] + 1], rate_hz, SAMPLE_RATE_HZ), np.float32)


def join(clips: list[tuple[Clip, Audio]], rng: np.random.Generator) -> Audio:
    """One conversation: clips with pauses, as loud to each other as they were, within full scale."""
    pieces: list[Audio] = []
    speaker = None
    for clip, samples in clips:
        if speaker is not None:
            pause = CLIP_PAUSE if clip.who == speaker else TURN_GAP
            pieces.append(np.zeros(round(pause.draw(rng) * SAMPLE_RATE_HZ), np.float32))
        pieces.append(samples)
        speaker = clip.who
    whole = np.concatenate(pieces)
    return whole * np.float32(min(1.0, CEILING / float(np.abs(whole).max())))


def write(pack: Pack, folder: Path) -> Made:
    """NAME.flac and NAME.txt for each conversation of the pack. Pauses depend on its name alone."""
    made = Made()
    for name in pack.conversations():
        heard: list[tuple[Clip, Audio]] = []
        for clip in read_clips(pack, name):
            try:
                heard.append((clip, hear(pack, clip)))
            except ValueError as error:
                made.lost.append(f"{name} {clip.entry} {error}")
        if not heard:
            continue
        whole = join(heard, np.random.default_rng(zlib.crc32(name.encode())))
        sf.write(folder / f"{name}.flac", whole, SAMPLE_RATE_HZ, subtype="PCM_16")
        turns = [(who, " ".join(c.text for c, _ in said)) for who, said in groupby(heard, lambda one: one[0].who)]
        (folder / f"{name}.txt").write_text("".join(f"{SPEAKERS[who]}: {text}\n" for who, text in turns))
        seconds = len(whole) / SAMPLE_RATE_HZ
        made.conversations += 1
        made.turns += len(turns)
        made.clips += len(heard)
        made.seconds += seconds
        made.longest = max(made.longest, (seconds, name))
    return made


def download(folder: Path) -> Path:
    if not shutil.which("apt-get"):
        raise SystemExit(
            "fetch_dialogue: there is no apt-get on this machine; download Debian's package "
            f"{PACKAGE} 1.0.0-9 in another way and name the file: --deb FILE"
        )
    result = subprocess.run(["apt-get", "download", "-q", PACKAGE], cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        why = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SystemExit(
            f"fetch_dialogue: apt-get could not download {PACKAGE} ({why}); check the network and run apt-get update "
            "as root, or name a package that you have: --deb FILE"
        )
    (deb,) = folder.glob("*.deb")
    return deb


def unpack(deb: Path) -> dict[str, bytes]:
    """The game and its notices out of a package. Read here, since a machine without apt-get has no dpkg-deb."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_member(deb.read_bytes(), b"data.tar"))) as archive:
            found = {m.name.removeprefix("./"): m for m in archive.getmembers() if m.isfile()}
            return {name: archive.extractfile(found[name]).read() for name in (GAME, *NOTICES)}
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError, KeyError, ValueError) as error:
        raise SystemExit(f"fetch_dialogue: {deb} is no package {PACKAGE} ({error}); download it again") from error


def _member(deb: bytes, prefix: bytes) -> bytes:
    """A member of an ar archive, which a .deb is."""
    at = 8
    while deb.startswith(b"!<arch>\n") and at + 60 <= len(deb):
        size = int(deb[at + 48 : at + 58])
        if deb.startswith(prefix, at):
            return deb[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise ValueError(f"it holds no {prefix.decode()}")


def fill(deb: Path, folder: Path) -> Made:
    """All that the folder holds, from the package."""
    files = unpack(deb)
    found = hashlib.sha256(files[GAME]).hexdigest()
    if found != GAME_SHA256:
        raise SystemExit(
            f"fetch_dialogue: queen.1c in {deb.name} has sha256 {found}, expected {GAME_SHA256}; "
            f"use version 1.0.0-9 of Debian's {PACKAGE}"
        )
    for place, name in NOTICES.items():
        (folder / name).write_bytes(gzip.decompress(files[place]) if place.endswith(".gz") else files[place])
    (folder / "MODIFIED.txt").write_text(MODIFIED)
    return write(Pack(files[GAME]), folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".cache/dialogue"))
    parser.add_argument("--deb", type=Path, help="the package, where apt-get cannot download it")
    args = parser.parse_args()
    if args.out.exists():
        return
    work = args.out.with_name(args.out.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)  # what a killed run left
    try:
        for name in ("download", "result"):
            (work / name).mkdir(parents=True)
        made = fill(args.deb or download(work / "download"), work / "result")
        (work / "result").rename(args.out)
        print(f"{args.out}: {made}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
