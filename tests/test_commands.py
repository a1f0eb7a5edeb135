"""Every fenced command of README and docs is run, or held in a cheaper form that fails where the real one would.

- `experiments.run` composes and passes its checks, with the engine that costs nothing in place of the real one;
- `make` targets are expanded (`make -n`), and what they call is tested by itself;
- figures, claims and forecasts run as they are;
- what starts an engine is held by its options, which the program must know.

A line that ends in `# GPU`, `# network` or `# cluster` is not run; experiments among these compose all the same.
"""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import schema

ROOT = Path(__file__).parents[1]
CONF = ROOT / "experiments" / "conf"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKS = ("GPU", "network", "cluster")
RUN = (".venv/bin/python", "-m", "experiments.run")
CLI = (sys.executable, "-c", "from metronome.cli import app; app()")
FIGURES = (".venv/bin/python", "-m", "figures")


def commands():
    """(page, words of the command, its mark)."""
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            for line in filter(None, block.splitlines()):
                *_, last = line.rsplit("#", 1) if "#" in line else ("",)
                mark = last.strip() if last.strip() in MARKS else None
                yield pytest.param(shlex.split(line, comments=True), mark, id=f"{page.name}: {line.split('  ')[0]}")


@pytest.mark.parametrize(("words", "mark"), list(commands()))
def test_a_command_of_the_docs_does_what_it_says(words, mark, monkeypatch):
    monkeypatch.chdir(ROOT)
    if tuple(words[:3]) == RUN:
        check_run(words[3:])
    elif words[0] == "make":
        expand(words)
    elif words[:2] == ["vllm", "serve"] or "vllm.entrypoints.openai.api_server" in words:
        check_server(words)
    elif mark:
        assert known(words), words
    elif tuple(words[:3]) == FIGURES:
        check_figures(words[3:])
    elif words[0] == ".venv/bin/metronome":
        check_cli(words[1:])
    else:
        pytest.fail(f"no test knows how to hold this command: {words}")


def check_run(words):
    if "--help" in words:
        succeed([sys.executable, "-m", "experiments.run", "--help"])
        return
    overrides = [word for word in words if word not in ("-m", "--cfg", "job")]
    launcher = [word for word in overrides if word.startswith(("hydra/launcher", "hydra.launcher"))]
    choices = [word.split("=")[1].split(",") if word.startswith("model=") else None for word in overrides]
    for model in next((c for c in choices if c), [None]):
        one = [f"model={model}" if word.startswith("model=") else word for word in overrides if word not in launcher]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("run", overrides=[*one, *launcher], return_hydra_config=bool(launcher))
            run = schema.load(
                compose("run", overrides=[*(w for w in one if "speech=dialogue" not in w), "target=none"])
            )
        assert run.name and config


def expand(words):
    assert "make:" not in succeed(["make", "-n", *words[1:]])


def check_figures(words):
    """As typed, but for all figures at once, which test_figures draws."""
    words = ["build" if before == "--out" else word for before, word in zip(["", *words], words, strict=False)]
    if words[0] == "--data":
        words.insert(0, "recycling")
    succeed([sys.executable, "-m", "figures", *words])


def check_cli(words):
    if words[0] == "doctor":  # the engine's part is tests/engine/test_doctor.py
        said = succeed([*CLI, "doctor", "--help"])
        assert all(word in said for word in words if word.startswith("--"))
    else:
        succeed([*CLI, *words])


def check_server(words):
    """The engine's own parser takes every option; tests/engine/test_serve.py serves."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    given = words[words.index("vllm.entrypoints.openai.api_server") + 1 :] if words[0] != "vllm" else words[3:]
    parsed = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(given)
    assert parsed.additional_config["metronome"]["window"] == 512


def known(words):
    """Of a command that is not run here: its program is ours, or one that the page's readers have."""
    programs = [word for word in words if word.endswith(".py")]
    return all((ROOT / word).exists() for word in programs) and words[0] in (".venv/bin/python", "pip")


def succeed(command):
    return succeed_once(tuple(command))


@functools.cache
def succeed_once(command):
    """Pages repeat each other."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_mark_is_explained():
    page = (ROOT / "docs" / "REPRODUCING.md").read_text()
    assert all(f"`# {mark}`" in page for mark in MARKS)
    assert len(list(commands())) > 20
