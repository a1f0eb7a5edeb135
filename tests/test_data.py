"""The committed data is what its manifest says, carries its licence, and stays small."""

import csv
import hashlib
import subprocess
from pathlib import Path

import pytest
import soundfile

ROOT = Path(__file__).parents[1]
SPEECH = ROOT / "data" / "speech"
LARGEST_FILE_BYTES = 500_000

with (SPEECH / "manifest.csv").open(newline="", encoding="utf-8") as file:
    CLIPS = list(csv.DictReader(file))


@pytest.mark.parametrize("clip", CLIPS, ids=[clip["file"] for clip in CLIPS])
def test_clip_matches_its_manifest_row(clip):
    path = SPEECH / clip["file"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == clip["sha256"]
    info = soundfile.info(path)
    assert (info.samplerate, info.channels) == (16_000, 1)
    assert info.duration == pytest.approx(float(clip["seconds"]), abs=0.006)  # the manifest rounds to 0.01 s
    assert clip["licence"].strip() and clip["source"].strip()


def test_every_speech_file_has_a_manifest_row():
    names = [clip["file"] for clip in CLIPS]
    assert len(set(names)) == len(names)
    assert {path.name for path in SPEECH.iterdir()} == {"manifest.csv", *names}


def test_pack_holds_ten_minutes_of_speech():
    assert len(CLIPS) == 25
    assert sum(float(clip["seconds"]) for clip in CLIPS) / 60 == pytest.approx(10.51, abs=0.01)


def test_notice_names_every_source_package():
    notice = (ROOT / "NOTICE").read_text()
    packages = {clip["source"].split(",")[0].split()[1].removesuffix("-testdata") for clip in CLIPS}
    assert not [package for package in packages if package not in notice]


def test_no_committed_file_is_large():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of committed files")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [str(path) for path in paths if path.is_file() and path.stat().st_size > LARGEST_FILE_BYTES]
