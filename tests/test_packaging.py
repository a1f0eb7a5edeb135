"""Wheel and sdist build without a network, hold what they should, and work away from the checkout."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = {"metronome": "metronome", "metronome_kernels": "kernels/metronome_kernels"}
PACKAGES |= {"experiments": "experiments", "figures": "figures"}
# vLLM, of whichever build, and what comes with it; omegaconf is a part of Hydra.
NOT_DECLARED = {"vllm", "torch", "triton", "transformers", "huggingface_hub", "omegaconf"}


def run(command, cwd, **environment):
    environment = os.environ | environment
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def succeed(command, cwd, **environment):
    done = run(command, cwd, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*words):
    return [sys.executable, "-m", "pip", *words[:1], "--quiet", "--no-deps", "--no-index", *words[1:]]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Built from a copy: setuptools leaves folders behind, and takes into a wheel what an earlier build left."""
    folder = tmp_path_factory.mktemp("sdist")
    hidden = shutil.ignore_patterns(".*", "runs", "build", "dist", "data", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "copy", ignore=hidden)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    succeed([sys.executable, "-c", build], folder / "copy")
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the sdist, so that this holds all that is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    succeed(pip("wheel", "--no-build-isolation", "--wheel-dir", folder, sdist), folder)
    (archive,) = folder.glob("*.whl")
    return archive


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    succeed(pip("install", "--target", folder, wheel), folder)
    return folder


def sources():
    """What the packages are made of, by its path in the wheel."""
    for package, folder in PACKAGES.items():
        for pattern in ("*.py", "conf/**/*.yaml", "expected/*.csv"):
            for path in (ROOT / folder).rglob(pattern):
                yield str(PurePosixPath(package, path.relative_to(ROOT / folder))), path


def test_the_wheel_holds_every_module_config_and_expected_table_and_no_more(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name for name, _ in sources()}
    assert {"experiments/conf/run.yaml", "figures/expected/cliff.csv", "metronome/plugin/attention.py"} <= names


def test_the_wheel_holds_its_licences_and_entry_points(wheel):
    archive = zipfile.ZipFile(wheel)
    (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    for name in ("LICENSE", "NOTICE"):
        assert archive.read(f"{info}/licenses/{name}") == (ROOT / name).read_bytes()
    points = archive.read(f"{info}/entry_points.txt").decode()
    assert re.findall(r"(?m)^\[(.+)\]$", points) == [
        "console_scripts",
        "vllm.general_plugins",
        "vllm.stat_logger_plugins",
    ]


def test_the_sdist_holds_what_a_build_needs_and_no_half_of_the_tests(sdist):
    names = {name.split("/", 1)[1] for name in tarfile.open(sdist).getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE"} <= names
    assert {str(path.relative_to(ROOT)) for _, path in sources()} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_every_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    known = sys.stdlib_module_names | set(PACKAGES) | NOT_DECLARED
    providers = metadata.packages_distributions()
    imported = {name for _, path in sources() if path.suffix == ".py" for name in imports(path)} - known
    missing = {name for name in imported if not {canonicalize_name(p) for p in providers.get(name, ())} & declared}
    assert imported and not missing


def imports(path):
    """Names of the top-level modules that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


PROBE = """
import sys
from importlib.metadata import entry_points
for group in ("vllm.general_plugins", "vllm.stat_logger_plugins", "console_scripts"):
    (point,) = entry_points(group=group, name="metronome")
    made = point.load()
    print("found:", group, sys.modules[point.module].__file__)
    if group == "vllm.general_plugins":
        made()  # as each process of vLLM does
from vllm.v1.attention.backends.registry import AttentionBackendEnum
print("found:", "backend", AttentionBackendEnum.CPU_ATTN.get_path())
import metronome_kernels.reference
print("found:", "kernels", metronome_kernels.reference.__file__)
"""


def test_entry_points_load_from_the_wheel(installed, tmp_path):
    """And not from the checkout, which is installed too."""
    said = succeed([sys.executable, "-c", PROBE], tmp_path, PYTHONPATH=str(installed))
    assert dict(re.findall(r"(?m)^found: (\S+) (\S+)$", said)) == {
        "vllm.general_plugins": f"{installed}/metronome/plugin/__init__.py",
        "vllm.stat_logger_plugins": f"{installed}/metronome/plugin/metrics.py",
        "console_scripts": f"{installed}/metronome/cli.py",
        "backend": "metronome.plugin.attention.CPU_ATTN",
        "kernels": f"{installed}/metronome_kernels/reference.py",
    }


def test_commands_find_what_they_need_away_from_the_checkout(installed, tmp_path):
    here = {"cwd": tmp_path, "PYTHONPATH": str(installed)}
    golden = ROOT / "data" / "golden"
    assert "cliff_sweep" in succeed([installed / "bin" / "metronome", "forecast", golden], **here)
    assert "+exp=cliff_sweep" in succeed([sys.executable, "-m", "experiments.run", "--help"], **here)
    drawn = succeed(
        [sys.executable, "-m", "figures", "recycling", "--data", golden, "--out", "build", "--check"], **here
    )
    assert "points as expected" in drawn and (tmp_path / "build" / "recycling.pdf").exists()


def test_an_experiment_away_from_the_checkout_runs_on_speech_that_it_is_given(installed, tmp_path):
    here = {"cwd": tmp_path, "PYTHONPATH": str(installed)}
    quick = ["+exp=smoke", "target=none", "kv=window", "workload.duration_s=4", "workload.sessions=[1]"]
    command = [sys.executable, "-m", "experiments.run", *quick]
    refused = run(command, **here)
    assert refused.returncode == 2 and "speech.dir" in refused.stderr
    assert "written to runs/smoke/" in succeed([*command, f"speech.dir={ROOT / 'data' / 'speech'}"], **here)
