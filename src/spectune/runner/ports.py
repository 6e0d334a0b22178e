"""Ports for the launches of a study: none is given out twice."""

from __future__ import annotations

from spectune.errors import EnvironmentFailed
from spectune.hosts.host import Host

_BATCH = 16


class PortPool:
    """Free ports of one host, outside the range of outgoing connections, and none that a live server was promised."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ready: list[int] = []
        self._given: set[int] = set()

    async def take(self) -> int:
        """A port that this study has not used yet."""
        if not self._ready:
            promised = {port for server in await self._host.servers() for port in server.ports}
            facts = await self._host.facts(free_ports=_BATCH, avoid_ports=sorted(self._given | promised))
            self._ready = list(facts.free_ports)
        if not self._ready:
            raise EnvironmentFailed(f"{self._host.name}: no free port between 20000 and 32000")
        port = self._ready.pop()
        self._given.add(port)
        return port
