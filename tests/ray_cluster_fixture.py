"""A Ray cluster of several nodes on this machine, each a raylet of its own; skipped where Ray is not installed."""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from spectune.hosts.supervisor import MARKER

OBJECT_STORE_BYTES = 80 * 2**20
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "180000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_worker_niceness": "1",  # Ray's 15 starves its workers where there is other work
}
START_S = 180.0
# A node is dead once it has missed five looks, a second apart; a starved test machine misses some.
HEALTH = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@dataclass
class RayNodes:
    """A head without processors, and nodes with one each, by name."""

    cluster: Any
    home: Path
    client_port: int | None = None
    nodes: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, name: str, **options: Any) -> None:
        fields: dict[str, Any] = {
            "num_cpus": 1,
            "object_store_memory": OBJECT_STORE_BYTES,
            "runtime_env_agent_port": free_port(),
            **options,
        }
        with _patient():
            self.nodes[name] = self.cluster.add_node(wait=False, node_name=name, **fields)

    def kill(self, name: str) -> None:
        """SIGKILL to the node's raylet, as when the machine dies."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def wait(self) -> None:
        self.cluster.wait_for_nodes(120)

    def servers(self) -> list[psutil.Process]:
        """Living processes that carry a marker and this cluster's home."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                variables = process.environ()
                ours = variables.get("SPECTUNE_HOME") == str(self.home)
                if MARKER in variables and ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Lets a node start on two cores that others use too.

    Ray waits 30 s for a node, and a raylet 15 s for the agents beside it to say
    their ports; here they are said before: -1, for "not in use".
    """
    from ray import _raylet
    from ray._private import services

    get_node, start_raylet = services.get_node, services.start_raylet

    def get_node_later(*args: Any) -> Any:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise

    def start_raylet_without_agents(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(start_raylet).bind(*args, **kwargs).arguments
        for name in ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN"):
            file_name = getattr(_raylet, f"{name}_PORT_NAME")
            _raylet.persist_port(given["session_dir"], given["node_id"], file_name, -1)
        return start_raylet(*args, **kwargs)

    services.get_node, services.start_raylet = get_node_later, start_raylet_without_agents
    try:
        yield
    finally:
        services.get_node, services.start_raylet = get_node, start_raylet


@contextlib.contextmanager
def ray_nodes(home: Path, *names: str, **options: Any) -> Iterator[RayNodes]:
    """``names``: nodes with a processor each. What they start inherits ``SPECTUNE_HOME`` = ``home``."""
    pytest.importorskip("ray", reason="needs Ray: make test-ray")
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in (*VARIABLES, "SPECTUNE_HOME", "RAY_ADDRESS")}
    os.environ.update(VARIABLES, SPECTUNE_HOME=str(home))
    os.environ.pop("RAY_ADDRESS", None)
    head = {
        "num_cpus": 0,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        "object_store_memory": OBJECT_STORE_BYTES,
        "node_name": "head",
        "_system_config": HEALTH,
        "runtime_env_agent_port": free_port(),
        **options,
    }
    with _patient():
        cluster = Cluster(initialize_head=True, head_node_args=head)
    found = RayNodes(cluster, home)
    try:
        for name in names:
            found.add(name)
        found.wait()
        yield found
    finally:
        cluster.shutdown()
        for process in found.servers():  # left by a test that failed half-way
            process.kill()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
