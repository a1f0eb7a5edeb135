from pathlib import Path

from typer.testing import CliRunner

from metronome import cli
from metronome.backends.base import EngineInfo
from metronome.cli import app, describe
from metronome.window import Bound

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
REPORT = {"pid": 7, "process": "EngineCore", "role": "scheduler", "class": "SinkWindowManager", "window": 512,
          "window_blocks": 16, "sinks": 4, "sink_blocks": 1, "positions": "anchor", "block_size": 32,
          "vllm": "0.32.0"}  # fmt: skip


def test_doctor_counts_what_a_session_costs():
    info = EngineInfo(name="vllm", num_blocks=149, block_size=32, block_bytes=32 * 23_040, versions={"vllm": "0.32.0"},
                      bound_live_in=[REPORT])  # fmt: skip
    lines = describe(info, Bound(window=512, sinks=4), frame_tokens=50)
    text = "\n".join(lines)
    # 1 block of sinks, 511 + 50 tokens in 18 blocks, 1 more where the window starts inside a block
    assert "a session holds at most 20 blocks = 14.06 MiB" in text
    assert "149 usable blocks holds 7 sessions" in text
    assert "pid 7 (EngineCore)" in text and "versions: vllm 0.32.0" in text


def test_doctor_refuses_what_the_bound_refuses_before_it_starts_anything():
    result = CliRunner().invoke(app, ["doctor", "--window", "8"])
    assert result.exit_code == 1
    assert "kv.window=8: smaller than one block of 32 tokens" in result.output


def test_forecast_gives_its_record_on_recorded_runs():
    result = CliRunner().invoke(app, ["forecast", str(GOLDEN)])
    assert result.exit_code == 0, result.output
    assert "unbounded-n12" in result.output and "collapsed (kv_full)" in result.output
    record = [line for line in result.output.splitlines() if ": warned before" in line]
    assert {line.split(":")[0] for line in record} >= {"unbounded", "window256+4"}
    (bounded,) = [line for line in record if line.startswith("window256+4:")]
    assert "warned before 0 of 0 full pools; alarms in 0 of" in bounded


def test_forecast_of_an_empty_directory_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["forecast", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no traces; give a run directory, or data/golden" in result.output


def test_doctor_says_what_to_do_about_a_torchvision_that_breaks_vllm(monkeypatch):
    def broken(*_):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(cli, "_start", broken)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1 and "torchvision_on_cpu.py" in done.output
