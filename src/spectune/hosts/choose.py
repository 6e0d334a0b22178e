"""A host by its name in a study file or on the command line."""

from __future__ import annotations

from pathlib import Path

from spectune.errors import BadInput
from spectune.hosts.host import Host
from spectune.hosts.local import local_host
from spectune.hosts.ssh import ssh_host

LOCAL = "local"
RAY = "ray"


def is_cluster(name: str) -> bool:
    """``ray``, the cluster that this machine belongs to, or ``ray://HOST:PORT``, one reached through its head."""
    return name == RAY or name.startswith(f"{RAY}://")


def host_called(name: str, *, home: Path) -> Host:
    """``local``, or a destination of ssh; ``home`` keeps the records of local servers. Nothing is connected yet."""
    if is_cluster(name):
        raise BadInput(
            f"host {name}: a cluster runs the trials of `spectune run`; for one server by hand run spectune on the "
            "node itself, or give a destination of ssh"
        )
    return local_host(home) if name == LOCAL else ssh_host(name)
