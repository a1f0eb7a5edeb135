"""The optional conversations: read from a small pack of the game's layout, so that nothing is downloaded."""

import gzip
import hashlib
import importlib.util
import io
import lzma
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from hydra import compose, initialize_config_dir

from experiments import schema
from metronome.audio import join_clips, read

ROOT = Path(__file__).parent.parent
CLIP_HZ = 11_025
LEVELS = {"J": 0.5, "P": 0.25}
TEXT = (
    "HERO: Hi there.\nOTHER: Who are you? I know.\nHERO: A pilot, for hire.\nOTHER: Go.\nHERO: Nobody.\nOTHER: I see.\n"
)
# In the order of the tree; a clip's length in milliseconds tells it from the others.
ENTRIES = {"07SSSSJ1": 300, "070001P2": 350, "070001P3": 400, "070002J1": 450, "070002J2": 500, "070002P1": 550,
           "070003J1": 600, "070003P1": 650}  # fmt: skip


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("fetch_dialogue", ROOT / "scripts" / "fetch_dialogue.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def sound(ms, level, kind="MP3"):
    buffer = io.BytesIO()
    tone = level * np.sin(2 * np.pi * 440 * np.arange(CLIP_HZ * ms // 1000) / CLIP_HZ)
    sf.write(buffer, tone, CLIP_HZ, format=kind)
    return buffer.getvalue()


def lines(texts):
    table = b""
    for key, text in texts:
        table += struct.pack(">hhB", 0, key, len(text)) + text.encode()
        table += b"\0" * (-len(table) % 4 if text else 0)
    return table


def conversation():
    """Two levels: a question with two choices and their answers, then a level in which nothing is new."""
    hero = lines([(0, "Hi there.*02"), (2, "A pilot,*16for hire.*03"), (3, "Nobody.*02")])
    other = [(0, "Hello again.*02"), (1, "*XY00(128,112)Who are you?*00I know.*FL"), (2, "Go.*00*XY00(1,22)*FL"),
             (3, "I see^_.*00")]  # fmt: skip
    head, levels = bytearray(32), b""
    struct.pack_into(">5h", head, 0, -2, 7, 7, 3, len(other))
    struct.pack_into(">H", head, 22, 32 + 2 * 96 + len(hero))
    for keys in ([1, 2, 3, 0, 0], [1, 0, 3, 0, 0]):
        level = bytearray(96)
        for column, key in enumerate(keys):
            struct.pack_into(">h", level, 2 + 16 * column, key)
        levels += level
    return bytes(20) + bytes(head) + levels + hero + lines(other)


def make_pack(kind="MP3", **changes):
    files = {f"{name}.SB": sound(ms, LEVELS[name[6]], kind) for name, ms in ENTRIES.items()}
    files = {"TALK.DOG": conversation()} | files | {f"{n}.SB": data for n, data in changes.items()}
    files = {name: data for name, data in files.items() if data is not None}
    table, body = b"", b""
    for name, data in files.items():
        at = 15 + 21 * len(files) + len(body)
        table += struct.pack(">12sBII", name.encode(), 0, at, len(data))
        body += data
    return b"QTBL" + bytes(8) + b"\x01" + struct.pack(">H", len(files)) + table + body


def make_deb(script, path, game):
    buffer = io.BytesIO()
    notices = (b"may be copied", gzip.compress(b"the readme"))
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in zip((script.GAME, *script.NOTICES), (game, *notices), strict=True):
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    members = (
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", b"odd"),
        ("data.tar.xz", lzma.compress(buffer.getvalue())),
    )
    heads = [f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'100644':<8}{len(data):<10}`\n".encode() for name, data in members]
    path.write_bytes(
        b"!<arch>\n" + b"".join(h + d + b"\n" * (len(d) % 2) for h, (_, d) in zip(heads, members, strict=True))
    )
    return path


def fetch(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fetch_dialogue.py", *map(str, arguments)])
    script.main()


def test_turns_come_in_the_order_of_the_tree_with_their_speakers_and_sounds(script):
    pack = script.Pack(make_pack())
    assert pack.conversations() == ["TALK"]
    clips = script.read_clips(pack, "TALK")
    assert [clip.entry for clip in clips] == [f"{name}.SB" for name in ENTRIES]
    assert [clip.who for clip in clips] == [name[6] for name in ENTRIES]
    assert [clip.text for clip in clips][:3] == ["Hi there.", "Who are you?", "I know."]


@pytest.mark.parametrize("kind", ["MP3", "WAV"])
def test_a_conversation_is_16_khz_flac_beside_its_exact_text(script, tmp_path, kind):
    made = script.write(script.Pack(make_pack(kind)), tmp_path)
    assert (made.conversations, made.turns, made.clips, made.lost) == (1, 6, 8, [])
    assert (tmp_path / "TALK.txt").read_text() == TEXT
    info = sf.info(tmp_path / "TALK.flac")
    assert (info.samplerate, info.channels, info.format, info.subtype) == (16_000, 1, "FLAC", "PCM_16")
    assert made.longest == (pytest.approx(info.duration), "TALK")


def test_pauses_are_longer_where_the_speaker_changes(script, tmp_path):
    script.write(script.Pack(make_pack("WAV")), tmp_path)
    silent = np.convolve(np.abs(read(tmp_path / "TALK.flac")) < 0.01, np.ones(160), "same") > 159
    edges = np.flatnonzero(np.diff(silent.astype(int)))
    pauses = (edges[1::2] - edges[::2] + 159) / 16_000
    names = list(ENTRIES)
    assert len(pauses) == len(names) - 1
    for pause, name, following in zip(pauses, names, names[1:], strict=False):
        kind = script.CLIP_PAUSE if name[6] == following[6] else script.TURN_GAP
        assert kind.limits_s[0] - 0.02 < pause < kind.limits_s[1] + 0.02


def test_gaps_between_turns_are_as_long_as_people_leave_them(script):
    rng = np.random.default_rng(0)
    gaps, breaths = ([kind.draw(rng) for _ in range(2000)] for kind in (script.TURN_GAP, script.CLIP_PAUSE))
    assert 0.2 < np.median(gaps) < 0.3 and np.percentile(gaps, 90) > 2 * np.median(gaps)
    assert np.median(breaths) < 0.6 * np.median(gaps)


def test_the_same_pack_gives_the_same_files(script, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        script.write(script.Pack(make_pack()), tmp_path / name)
    for name in ("TALK.flac", "TALK.txt"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_quiet_ends_are_cut_and_nothing_clips(script, tmp_path):
    quiet = io.BytesIO()
    loud = 1.3 * np.sin(2 * np.pi * 440 * np.arange(CLIP_HZ) / CLIP_HZ)
    sf.write(quiet, np.r_[np.zeros(2000), loud, np.zeros(2000)], CLIP_HZ, format="WAV", subtype="FLOAT")
    pack = script.Pack(make_pack("WAV", **{"070002P1": quiet.getvalue()}))
    clip = next(c for c in script.read_clips(pack, "TALK") if c.entry == "070002P1.SB")
    assert len(script.hear(pack, clip)) == pytest.approx(16_000, abs=20)
    script.write(pack, tmp_path)
    assert 0.98 < np.abs(read(tmp_path / "TALK.flac")).max() < 0.995


def test_what_cannot_be_heard_is_counted_named_and_left_out_of_the_text(script, tmp_path):
    silent = io.BytesIO()
    sf.write(silent, np.zeros(CLIP_HZ), CLIP_HZ, format="WAV")
    changes = {"070001P2": None, "070002J1": b"noise", "070002P1": silent.getvalue()}
    made = script.write(script.Pack(make_pack(**changes)), tmp_path)
    assert made.clips == 5
    assert str(made).endswith(
        "clips left out: 3 (TALK 070001P2.SB missing, TALK 070002J1.SB unreadable, TALK 070002P1.SB silent)"
    )
    assert (tmp_path / "TALK.txt").read_text().splitlines()[1:3] == ["OTHER: I know.", "HERO: for hire. Nobody."]


def test_a_package_becomes_a_folder_with_its_notices_once(script, tmp_path, monkeypatch, capsys):
    game, out = make_pack(), tmp_path / "new" / "dialogue"
    monkeypatch.setattr(script, "GAME_SHA256", hashlib.sha256(game).hexdigest())
    deb = make_deb(script, tmp_path / "game.deb", game)
    fetch(script, monkeypatch, "--out", out, "--deb", deb)
    assert "1 conversations, 6 turns, 8 clips" in capsys.readouterr().out
    assert {p.name for p in out.iterdir()} == {"TALK.flac", "TALK.txt", "MODIFIED.txt", "copyright", "readme.txt"}
    assert (out / "copyright").read_text() == "may be copied" and (out / "readme.txt").read_text() == "the readme"
    assert (out / "MODIFIED.txt").read_text().startswith("THIS IS A MODIFIED VERSION")
    deb.unlink()
    fetch(script, monkeypatch, "--out", out, "--deb", deb)  # there: the package is not even looked for
    assert [p.name for p in out.parent.iterdir()] == ["dialogue"]


def test_another_package_is_refused_and_leaves_nothing(script, tmp_path, monkeypatch):
    out = tmp_path / "dialogue"
    other = make_deb(script, tmp_path / "other.deb", make_pack())
    with pytest.raises(SystemExit, match=r"queen.1c in other.deb has sha256 .* use version 1.0.0-9"):
        fetch(script, monkeypatch, "--out", out, "--deb", other)
    (tmp_path / "torn.deb").write_bytes(other.read_bytes()[:2000])
    (tmp_path / "text.deb").write_text("not a package")
    for name in ("torn.deb", "text.deb", "missing.deb"):
        with pytest.raises(SystemExit, match=f"{name} is no package .*; download it again"):
            fetch(script, monkeypatch, "--out", out, "--deb", tmp_path / name)
    assert not out.exists() and not list(tmp_path.glob("*.partial"))


def test_without_apt_get_or_network_the_fix_is_named(script, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no apt-get on this machine; .* --deb FILE"):
        fetch(script, monkeypatch, "--out", tmp_path / "dialogue")
    apt_get = tmp_path / "apt-get"
    apt_get.write_text("#!/bin/sh\necho 'W: first' >&2\necho 'E: Unable to locate package' >&2\nexit 100\n")
    apt_get.chmod(0o755)
    with pytest.raises(SystemExit, match=r"could not download .* \(E: Unable to locate package\); .*apt-get update"):
        fetch(script, monkeypatch, "--out", tmp_path / "dialogue")
    assert [p.name for p in tmp_path.iterdir()] == ["apt-get"]


def test_speech_that_was_not_fetched_names_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with initialize_config_dir(str(ROOT / "experiments" / "conf"), version_base="1.3"):
        values = compose("run", overrides=["speech=dialogue", "target=none"])
        with pytest.raises(schema.ConfigError, match=r"speech.dir=.cache/dialogue: .*python scripts/fetch_dialogue.py"):
            schema.load(values)


@pytest.mark.parametrize("seed", range(5))
def test_a_call_of_five_minutes_from_enough_conversations_repeats_nothing(seed):
    rng = np.random.default_rng(0)
    lengths = (rng.uniform(5, 120, 20) * 16_000).astype(int)  # 20 minutes; every sample is another number
    ends = np.cumsum(lengths)
    clips = [np.arange(end - n, end) + 1.0 for end, n in zip(ends, lengths, strict=True)]
    call = join_clips(clips, 300 * 16_000, (seed, 0))
    heard = call[call > 0]
    assert len(heard) > 0.9 * len(call)
    assert len(np.unique(heard)) == len(heard)
