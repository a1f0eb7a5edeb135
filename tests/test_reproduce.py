"""Everything in order: what is run, what is skipped, and that nothing measured is lost. No engine is started."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import catalogue, reproduce
from figures.__main__ import FIGURES

ROOT = Path(__file__).parents[1]


class Machine:
    """Stands in for the programs: notes each command, and leaves behind what a run leaves."""

    def __init__(self, failing=()):
        self.commands, self.failing = [], failing

    def __call__(self, command):
        command = list(command[1:])
        self.commands.append(" ".join(command))
        if "experiments.run" not in command:
            return 0
        name, directory = command[2].removeprefix("+exp="), Path(command[3].removeprefix("out.dir="))
        directory.mkdir(parents=True)
        status = "failed" if name in self.failing else "complete"
        (directory / "manifest.json").write_text(json.dumps({"status": status, "experiment": name}))
        return int(name in self.failing)

    def experiments(self):
        return [m[1] for c in self.commands if (m := re.search(r"\+exp=(\w+)", c))]


def go(tmp_path, machine, *arguments):
    return reproduce.main(["--dir", str(tmp_path / "all"), *arguments], run=machine)


def test_every_figure_s_experiment_is_run_the_quickest_first(tmp_path):
    machine = Machine()
    assert go(tmp_path, machine) == 0
    minutes = {entry.name: entry.minutes for entry in catalogue.entries()}
    assert set(machine.experiments()) == {module.EXPERIMENT for module in FIGURES.values()}
    assert [minutes[n] for n in machine.experiments()] == sorted(minutes[n] for n in machine.experiments())
    drawn = [c for c in machine.commands if c.startswith("-m figures --data")]
    assert len(drawn) == len(machine.experiments())
    assert machine.commands[-1].startswith("-m figures claims --data ") and machine.commands[-1].endswith("all/results")


def test_what_is_complete_is_not_run_again(tmp_path, capsys):
    go(tmp_path, Machine(), "--only", "saturation")
    machine = Machine()
    assert go(tmp_path, machine, "--only", "saturation,cliff_sweep") == 0
    assert machine.experiments() == ["cliff_sweep"]
    assert "saturation     complete" in capsys.readouterr().out


def test_what_was_cut_short_is_kept_and_run_anew(tmp_path):
    assert go(tmp_path, Machine(failing=["saturation"]), "--only", "saturation") == 1
    machine = Machine()
    assert go(tmp_path, machine, "--only", "saturation") == 0
    assert machine.experiments() == ["saturation"]
    kept = json.loads((tmp_path / "all" / "saturation.cut1" / "manifest.json").read_text())
    assert kept["status"] == "failed"


def test_one_that_fails_does_not_keep_the_others_from_running(tmp_path, capsys):
    machine = Machine(failing=["saturation"])
    assert go(tmp_path, machine, "--only", "saturation,session_age,cliff_sweep") == 1
    assert machine.experiments() == ["saturation", "session_age", "cliff_sweep"]
    assert "2 of 3 experiments complete; failed: ['saturation']" in capsys.readouterr().out


def test_the_estimate_comes_first_and_shrinks(tmp_path, capsys):
    machine = Machine()
    assert go(tmp_path, machine, "--dry-run") == 0
    total = sum(e.minutes for e in catalogue.entries() if e.name != "smoke")
    assert machine.commands == [] and f"about {total // 60} h {total % 60:02} min" in capsys.readouterr().out
    go(tmp_path, machine, "--only", "saturation,session_age")
    said = capsys.readouterr().out
    assert (
        said.index("about 9 min") < said.index("1 of 2, saturation, about 4 min; 9 min left") < said.index("5 min left")
    )


def test_an_unknown_experiment_is_named(tmp_path):
    with pytest.raises(SystemExit, match="no experiment 'clif'; there are .*cliff_sweep"):
        go(tmp_path, Machine(), "--only", "clif")


def test_every_experiment_says_what_it_shows_in_a_line():
    lines = catalogue.listing().splitlines()
    files = sorted((ROOT / "experiments" / "conf" / "exp").glob("*.yaml"))
    assert len(lines) == len(files) == len(catalogue.entries())
    assert all(len(line) <= 150 for line in lines), max(lines, key=len)


def test_a_header_without_minutes_is_refused(tmp_path):
    path = tmp_path / "new.yaml"
    path.write_text("# @package _global_\n# Something new.\nname: new\n")
    with pytest.raises(ValueError, match=r"new\.yaml: needs a line '# Minutes on two cores"):
        catalogue._read(path)


SLOW_TO_END = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
try:
    (folder / "started").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)  # as an engine takes to end
    (folder / "ended").touch()
"""


def test_ctrl_c_leaves_the_program_time_to_end(tmp_path):
    driver = "from experiments.reproduce import run_program; import sys; run_program(sys.argv[1:])"
    command = [sys.executable, "-c", driver, sys.executable, "-c", SLOW_TO_END, str(tmp_path)]
    child = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)  # a terminal sends it to both
    child.wait(timeout=60)
    assert (tmp_path / "ended").exists()


def test_ctrl_c_ends_it_all_and_says_how_to_go_on(tmp_path, capsys):
    machine = Machine()

    def interrupted(command):
        if "+exp=session_age" in command:
            raise KeyboardInterrupt
        return machine(command)

    assert go(tmp_path, interrupted, "--only", "saturation,session_age,cliff_sweep") == 130
    assert machine.experiments() == ["saturation"] and len(machine.commands) == 1
    assert "run the same command again to go on" in capsys.readouterr().err
