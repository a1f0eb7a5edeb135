"""Notebooks stay short and import what they show; `make notebooks` executes them, in CI too."""

import ast
import re
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALLOWED = {"figures", "metronome", "numpy", "pandas", "yaml"} | sys.stdlib_module_names


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def cells(request):
    return nbformat.read(request.param, as_version=4).cells


def code(cells):
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    return ast.parse(re.sub(r"(?m)^%.*$", "", text))


def test_the_three_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["01_cliff", "02_sinks", "03_capacity"]


def test_a_notebook_is_short_and_begins_with_what_it_is_about(cells):
    assert 2 < len(cells) <= 15 and cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")


def test_outputs_are_stripped(cells):
    for cell in cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None and not cell.metadata


def test_functions_are_short(cells):
    for node in ast.walk(code(cells)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno + 1 <= 5, node.name


def test_what_is_shown_comes_from_the_library(cells):
    found = set()
    for node in ast.walk(code(cells)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
    assert found <= ALLOWED and {"figures", "metronome"} <= found


def test_ci_executes_them():
    assert "make notebooks" in (ROOT / ".ci" / "run").read_text().splitlines()
