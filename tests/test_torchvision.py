"""PyPI's torchvision beside a CPU torch: importable in any process, free for a process that does not import it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA torch needs no help with torchvision")
SCRIPT = Path(__file__).parents[1] / "scripts" / "torchvision_on_cpu.py"


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    return result.stdout.strip()


def test_transforms_work_in_a_new_process():
    code = """
import torch, torchvision
from torchvision.transforms import v2
print(tuple(v2.Resize((4, 6))(torch.zeros(3, 8, 8)).shape), torchvision.__name__)
"""
    assert python(code) == "(3, 4, 6) torchvision"


def test_looking_for_torchvision_does_not_import_torch():
    code = """
import importlib.util, sys
found = importlib.util.find_spec("torchvision") is not None
print(found, "torch" in sys.modules)
"""
    assert python(code) == "True False"


def test_the_script_can_run_twice():
    import sysconfig

    hook = Path(sysconfig.get_paths()["purelib"]) / SCRIPT.name
    for _ in range(2):
        subprocess.run([sys.executable, SCRIPT], check=True)
        assert hook.read_text() == SCRIPT.read_text()
    count = "import sys; print(sum(getattr(f, '__name__', '') == 'Finder' for f in sys.meta_path))"
    assert python(count + "; import torchvision_on_cpu as t; t.install(); t.install(); " + count) == "1\n1"
