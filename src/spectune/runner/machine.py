"""The machine that a study's servers run on."""

from __future__ import annotations

from spectune.domain.machine import Machine
from spectune.embedded.models import data_home
from spectune.hosts.choose import LOCAL, host_called
from spectune.hosts.machine_facts import read_machine


async def machine_of(host_name: str) -> Machine:
    """Facts of the host of this name, asked for now."""
    if host_name == LOCAL:
        return read_machine()
    async with host_called(host_name, home=data_home()) as host:
        return (await host.facts(gpus=True)).machine
