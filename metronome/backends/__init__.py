"""Where frames go: a real engine or a stand-in that costs nothing."""

import os

# vLLM reads these when it is imported, and this package comes before it: no hub look-ups, a CPU pool large enough for
# any num_blocks given explicitly, quiet, and outputs of many sessions handed over in small chunks, between which frames
# that are due can leave.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "8")
