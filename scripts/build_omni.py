"""Build tiny checkpoints of the published interaction models: real architectures and files, random weights.

    python scripts/build_omni.py [--models NAME ...] [--out .cache]

For systems questions, not for text: vLLM's own model classes, loaders and processors run on them. What each keeps of
its model and what was shrunk is said in scripts/omni/. Same seed, same bytes. Does nothing where a checkpoint is there.
"""

import argparse
import importlib
import os
import shutil
from pathlib import Path

BUILDERS = {  # checkpoint -> module of scripts/omni, its function
    "qwen2_5_omni": ("qwen2_5_omni", "build"),
    "qwen3_omni_30b": ("qwen3_omni", "build"),
    "minicpm_o_4_5": ("minicpm_o", "build"),
    "moshi": ("moshi", "build"),
    "moshi_duplex": ("moshi", "build_duplex"),
}


def build(name: str, target: Path) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # read at import
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)  # for what the builders leave as transformers makes it
    module, function = BUILDERS[name]
    work = target.with_name(f"{name}.partial")
    shutil.rmtree(work, ignore_errors=True)  # what a killed run left
    work.mkdir(parents=True)
    getattr(importlib.import_module(f"omni.{module}"), function)(work)
    work.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=BUILDERS, default=list(BUILDERS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path(".cache"))
    args = parser.parse_args()
    for name in args.models:
        if not (args.out / name).exists():
            build(name, args.out / name)


if __name__ == "__main__":
    main()
