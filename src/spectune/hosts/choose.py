"""A host by its name in a study file or on the command line."""

from __future__ import annotations

from pathlib import Path

from spectune.hosts.host import Host
from spectune.hosts.local import local_host
from spectune.hosts.ssh import ssh_host

LOCAL = "local"


def host_called(name: str, *, home: Path) -> Host:
    """``local``, or a destination of ssh; ``home`` keeps the records of local servers. Nothing is connected yet."""
    return local_host(home) if name == LOCAL else ssh_host(name)
