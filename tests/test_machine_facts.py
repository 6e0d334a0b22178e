"""What is said of the machine is what a server started here could use."""

import os
import subprocess
import sys

import pytest

LIMITED = """
import os
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:{count}]))
from spectune.hosts.machine_facts import read_machine
print(read_machine().cores)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
@pytest.mark.parametrize("count", [1, 2])
def test_cores_are_those_that_the_affinity_leaves(count: int) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be limited")
    told = subprocess.run(
        [sys.executable, "-c", LIMITED.format(count=count)], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) == count
