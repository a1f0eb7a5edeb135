"""Every kernel compiles for GPUs that are not here, and spills nothing."""

import os
import subprocess
import sys


def test_kernel_compiles_for_every_architecture_without_spills(say_at_end):
    """In a process of its own: here the kernels are the interpreter's. The table is printed at the end."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "metronome_kernels.resources"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    say_at_end("kernels, registers / bytes of stack / KiB of shared memory:\n" + done.stdout)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 5 * 6  # kernels' forms by head shapes


def test_kernel_package_and_its_reference_need_no_triton():
    program = "import sys; sys.modules['triton'] = None; import metronome_kernels.reference, metronome.plugin.rotary"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
