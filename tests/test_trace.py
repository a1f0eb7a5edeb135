import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import facts, fill, frame, sample

from metronome import trace
from metronome.frames import FrameRecord, FrameStatus
from metronome.tables import SCHEMA_VERSION


def write(directory, run_id="run", **changes):
    with trace.TraceWriter(directory, run_id, part_s=0.01) as writer:
        fill(writer.point(facts(**changes)), stall_at=12)


maybe_ns = st.none() | st.integers(0, 2**62)
records = st.builds(
    FrameRecord,
    session_id=st.integers(0, 10_000), frame_idx=st.integers(0, 10**6), release_ns=st.integers(0, 2**62),
    sent_ns=maybe_ns, first_token_ns=maybe_ns, done_ns=maybe_ns, deadline_ns=st.integers(0, 2**62),
    tokens_in=st.integers(0, 10**6), tokens_out=st.integers(0, 10**6), kv_tokens=st.none() | st.integers(0, 10**9),
    status=st.sampled_from(FrameStatus),
)  # fmt: skip


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(records, min_size=1, max_size=20, unique_by=lambda r: (r.release_ns, r.session_id)))
def test_frames_come_back_as_they_were_nulls_included(tmp_path_factory, rows):
    directory = tmp_path_factory.mktemp("run")
    with trace.TraceWriter(directory, "run") as writer:
        sink = writer.point(facts())
        for row in rows:
            sink.frame(row)
        sink.pool(sample())
    back = trace.read(directory, "cliff_sweep").frames
    names = [f for f in FrameRecord.__dataclass_fields__]
    for row, (_, got) in zip(sorted(rows, key=lambda r: (r.release_ns, r.session_id)), back.iterrows(), strict=True):
        assert {n: None if pd.isna(got[n]) else got[n] for n in names} == {n: getattr(row, n) for n in names}


def test_a_point_in_memory_equals_the_point_read_back(tmp_path):
    with trace.TraceWriter(tmp_path, "run") as writer:
        sink = writer.point(facts())
        fill(sink)
    back = trace.read(tmp_path, "cliff_sweep")
    for name in ("points", "frames"):
        pd.testing.assert_frame_equal(getattr(sink.trace(), name), getattr(back, name))
    assert sink.trace().pool.ttft_ms.explode().dropna().tolist() == back.pool.ttft_ms.explode().dropna().tolist()


def test_points_are_told_apart(tmp_path):
    with trace.TraceWriter(tmp_path, "run") as writer:
        fill(writer.point(facts()), num_frames=3)
        fill(writer.point(facts(point_id="other")), num_frames=5)
    back = trace.read(tmp_path, "cliff_sweep")
    assert len(back.of("other").frames) == 10 and len(back.of("unbounded-n2").frames) == 6


def test_a_killed_run_leaves_complete_parts(tmp_path):
    script = f"""
import time
from synthetic import facts, fill
from pathlib import Path
from metronome.trace import TraceWriter
writer = TraceWriter(Path({str(tmp_path)!r}), "run", part_s=0.05).__enter__()
fill(writer.point(facts()))
time.sleep(1)
print("written", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={"PYTHONPATH": str(Path(__file__).parent)}
    )
    assert child.stdout.readline() == b"written\n"
    child.kill()
    child.wait()
    assert len(trace.read(tmp_path, "cliff_sweep").frames) == 40


def test_a_half_written_part_is_not_read(tmp_path):
    write(tmp_path)
    (tmp_path / "frames" / "part-99999.tmp").write_bytes(b"PAR1 and then the power went")
    assert len(trace.read(tmp_path, "cliff_sweep").frames) == 40


def test_golden_files_are_read_by_name(tmp_path):
    write(tmp_path / "run")
    for name in ("points", "frames", "pool"):
        parts = sorted((tmp_path / "run" / name).glob("*.parquet"))
        trace.write_table(pa.concat_tables(pq.read_table(p) for p in parts), tmp_path / f"cliff_sweep.{name}.parquet")
    assert len(trace.read(tmp_path, "cliff_sweep").frames) == 40


def test_missing_data_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(ValueError, match=r"has no points of cliff_sweep; make it with: .*\+exp=cliff_sweep"):
        trace.read(tmp_path, "cliff_sweep")


def test_another_experiment_is_refused(tmp_path):
    write(tmp_path, experiment="smoke")
    with pytest.raises(ValueError, match="holds smoke, not cliff_sweep"):
        trace.read(tmp_path, "cliff_sweep")


@pytest.mark.parametrize("change", ["version", "column"])
def test_another_schema_is_refused(tmp_path, change):
    write(tmp_path)
    part = next((tmp_path / "pool").glob("*.parquet"))
    table = pq.read_table(part)
    if change == "version":
        table = table.replace_schema_metadata({"metronome_schema": "0"})
    else:
        table = table.drop_columns(["preemptions"])
    pq.write_table(table, part)
    with pytest.raises(ValueError, match=f"not a pool table of schema {SCHEMA_VERSION}"):
        trace.read(tmp_path, "cliff_sweep")


def test_a_writer_that_cannot_write_says_so(tmp_path):
    with pytest.raises(RuntimeError, match="cannot be written"):
        with trace.TraceWriter(tmp_path, "run", part_s=0.01) as writer:
            sink = writer.point(facts())
            (tmp_path / "frames").write_text("in the way")
            for _ in range(200):
                sink.frame(frame())
                time.sleep(0.01)
