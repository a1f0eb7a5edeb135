"""docs/METHOD.md names every column, status and action, and the modules it points to exist."""

import re
from pathlib import Path

import pytest

from metronome.frames import Action, FrameStatus
from metronome.tables import SCHEMA_VERSION, SCHEMAS

ROOT = Path(__file__).parents[1]
METHOD = (ROOT / "docs" / "METHOD.md").read_text()


def test_every_status_and_action_is_explained():
    assert all(f"| `{status}` |" in METHOD for status in FrameStatus)
    assert f"`action` ({', '.join(Action)})" in METHOD
    assert all(f"`{cause}`:" in METHOD for cause in ("engine_dead", "max_len", "kv_full", "compute"))


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_named_and_no_other(table):
    (paragraph,) = [part for part in METHOD.split("\n\n") if part.startswith(f"**{table}**")]
    assert set(re.findall(r"`(\w+)`", paragraph)) == set(SCHEMAS[table].names)
    assert f"schema {SCHEMA_VERSION}" in METHOD


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md"], ids=lambda path: path.name
)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]
