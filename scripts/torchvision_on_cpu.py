"""Make PyPI's torchvision importable beside a CPU build of torch, in this interpreter and all it starts.

    .venv/bin/python scripts/torchvision_on_cpu.py

vLLM's Qwen omni models need torchvision (transformers' image and video processors import it). Its wheel on PyPI is
built for CUDA: on a CPU torch its library `_C.so` cannot load, the operators that it would declare stay unknown, and
`import torchvision` dies with "operator torchvision::nms does not exist"; `import vllm` dies with it. The Python parts
need no more than the declarations. So this file copies itself into site-packages, with a .pth that every process
reads at start; just before torchvision is imported, the copy declares the missing operators. They have no kernel:
calling one raises, as it should. Nothing happens on a CUDA torch, nor where torchvision's own library loads.
"""

import sys

MISSING = ("nms", "qnms")  # those that torchvision 0.28 registers a fake for while it is imported
_kept = []  # a torch.library.Library takes its operators with it when it is collected


def declare(folder: str) -> None:
    """Declare what the library of the torchvision in `folder` would have declared."""
    import torch

    if torch.version.cuda is not None or _kept:
        return
    try:
        torch.ops.load_library(f"{folder}/_C.so")
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in MISSING:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)


class Finder:
    """Finds torchvision as usual and has `declare` run before it. Looking for it, without importing it, is free."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torchvision":
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or not spec.submodule_search_locations:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            declare(spec.submodule_search_locations[0])
            execute(module)

        spec.loader.exec_module = exec_module  # of this one loader: find_spec makes a new one each time
        return spec


def install() -> None:
    """What the .pth calls in every process; so nothing here imports more than `sys`."""
    if Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)


def main() -> None:
    import sysconfig
    from pathlib import Path

    site = Path(sysconfig.get_paths()["purelib"])
    name = Path(__file__).stem
    files = {f"{name}.py": Path(__file__).read_text(), f"{name}.pth": f"import {name}; {name}.install()\n"}
    for file, text in files.items():  # the module first: a .pth without it complains in every process
        target = site / file
        if not target.exists() or target.read_text() != text:
            partial = target.with_suffix(".partial")
            partial.write_text(text)
            partial.replace(target)


if __name__ == "__main__":
    main()
