"""Build a two-layer Llama with random weights and SmolLM2's tokenizer: for systems questions, not for text.

    python scripts/build_tiny.py [--out .cache/tiny] [--tokenizer .cache/smollm2]

It drives the real scheduler at hundreds of sessions on two cores. Does nothing when the checkpoint is there.
"""

import argparse
import os
import shutil
from pathlib import Path


def build(target: Path, tokenizer: Path) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # read at import
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".cache/tiny"))
    parser.add_argument("--tokenizer", type=Path, default=Path(".cache/smollm2"))
    args = parser.parse_args()
    if args.out.exists():
        return
    work = args.out.with_name(args.out.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)  # what a killed run left
    build(work, args.tokenizer)
    work.rename(args.out)


if __name__ == "__main__":
    main()
