"""Stock serving: vLLM's own OpenAI-compatible server, nothing changed but --additional-config."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from metronome.backends.vllm_engine import native_dtype

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parent.parent.parent
WINDOW, NUM_BLOCKS, BLOCK = 64, 64, 32
ARGS = ["--dtype", native_dtype(), "--max-model-len", "4096", "--block-size", str(BLOCK),
        "--max-num-batched-tokens", "256", "--num-gpu-blocks-override", str(NUM_BLOCKS), "--enforce-eager",
        "--no-enable-prefix-caching"]  # fmt: skip


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    reports = log.parent / "reports"
    bound = {"metronome": {"window": WINDOW, "sinks": 4, "report_dir": str(reports)}}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(ROOT / ".cache/smollm2")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--additional-config", json.dumps(bound), *ARGS]
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env) as process:
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}", reports, log
        finally:
            process.terminate()
            process.wait(timeout=60)


def wait_until_healthy(url, process, log):
    until = time.monotonic() + 180
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(log.read_text()[-3000:])


def used_blocks(url):
    text = httpx.get(f"{url}/metrics", timeout=10).text
    (usage,) = re.findall(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", text, re.MULTILINE)
    return round(float(usage) * (NUM_BLOCKS - 1))


def test_a_streamed_completion_past_the_window_plateaus(server):
    url, _, _ = server
    body = {"model": str(ROOT / ".cache/smollm2"), "prompt": "Once upon a time", "max_tokens": 450, "ignore_eos": True,
            "stream": True, "temperature": 0}  # fmt: skip
    used = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as response:
        assert response.status_code == 200
        for i, _ in enumerate(line for line in response.iter_lines() if line.startswith("data: {")):
            if i % 10 == 9:
                used.append((i, used_blocks(url)))
    assert used[-1][0] > 6 * WINDOW  # it went on for many windows
    # The engine may be done while its last tokens are still on their way: then it holds nothing.
    plateau = [blocks for tokens, blocks in used if tokens > WINDOW + 2 * BLOCK and blocks]
    assert len(plateau) > 10
    assert max(plateau) <= 1 + WINDOW // BLOCK + 2  # sinks, window, and the blocks at its two ends
    assert min(plateau) >= 1 + WINDOW // BLOCK


def test_blocks_are_free_once_the_completion_is_over(server):
    url, _, _ = server
    until = time.monotonic() + 20
    while used_blocks(url) and time.monotonic() < until:
        time.sleep(0.5)
    assert used_blocks(url) == 0


def test_the_server_says_where_the_bound_is_live(server):
    _, reports, log = server
    roles = {json.loads(p.read_text())["role"] for p in reports.glob("*.json")}
    assert {"worker", "scheduler"} <= roles
    assert "metronome bound live" in log.read_text()


def test_the_forecast_stands_next_to_vllms_own_metrics(server):
    url, _, _ = server
    text = httpx.get(f"{url}/metrics", timeout=10).text
    shown = dict(re.findall(r"^metronome:kv_cache_exhaustion_(\w+)\{.*smollm2.*\} (\S+)$", text, re.MULTILINE))
    # Bounded, and one session fits: no end in sight, however the level moves.
    assert shown == {"seconds": "+Inf", "low_seconds": "+Inf", "alarm": "0.0"}
