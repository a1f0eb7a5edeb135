"""Wheel and sdist hold what an installation needs, and nothing more; what is installed is found from anywhere."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("metronome", "metronome_kernels", "experiments", "figures")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Both, built from the committed files and those that git does not ignore."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith("data/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    for build in ("build_wheel", "build_sdist"):  # each in a process of its own: they change sys.argv
        program = f"from setuptools import build_meta; import sys; build_meta.{build}(sys.argv[1])"
        subprocess.run([sys.executable, "-c", program, str(out)], cwd=source, capture_output=True, check=True)
    return out


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path


def test_the_wheel_holds_the_packages_and_their_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for package in PACKAGES:
        folder = ROOT / ("kernels" if package == "metronome_kernels" else "") / package
        wanted = {f"{package}/{path.relative_to(folder)}" for path in folder.rglob("*.py")}
        assert wanted <= set(names), wanted - set(names)
    conf = ROOT / "experiments"
    assert {str(path.relative_to(ROOT)) for path in conf.rglob("*.yaml")} <= set(names)
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "figures" / "expected").glob("*.csv")} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    allowed = (*PACKAGES, "metronome_serving-")
    assert all(name.startswith(allowed) for name in names), "more than the packages"


def test_the_sdist_builds_the_same_packages(dist):
    (path,) = dist.glob("*.tar.gz")
    names = ["/".join(name.split("/")[1:]) for name in tarfile.open(path).getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "metronome/__init__.py"} <= set(names)
    assert "kernels/metronome_kernels/sink_window.py" in names
    assert "experiments/conf/exp/cliff_sweep.yaml" in names


def test_what_is_installed_works_from_anywhere(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = """
import importlib.metadata as m, metronome, metronome_kernels, experiments, figures
site = %r
assert all(p.__file__.startswith(site) for p in (metronome, metronome_kernels, experiments, figures))
(found,) = [d for d in m.distributions(name="metronome-serving") if str(d.locate_file("")) == site]
points = {(e.group, e.name): e for e in found.entry_points}
points[("vllm.general_plugins", "metronome")].load()()
assert callable(points[("console_scripts", "metronome")].load())
points[("vllm.stat_logger_plugins", "metronome")].load()
from experiments import catalogue
assert len(catalogue.entries()) > 10
"""
    environment = os.environ | {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", program % str(site)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "experiments.run", "+exp=smoke", "target=none", "--cfg", "job"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "codec_tokens_per_second: 12.5" in done.stdout, done.stderr
