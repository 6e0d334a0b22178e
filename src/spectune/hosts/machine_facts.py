"""Facts about this machine for the record."""

from __future__ import annotations

from spectune.domain.machine import Machine
from spectune.hosts.facts import read_host_facts
from spectune.hosts.supervisor import host_facts


def read_machine() -> Machine:
    """This machine, now. GPU names come from ``nvidia-smi`` where there is one."""
    return read_host_facts(host_facts({"gpus": True})).machine
