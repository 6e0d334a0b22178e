"""A server on a host, held through its supervisor: the connection may drop, the server is not lost by it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectune.domain.trial import StopProof
from spectune.errors import EnvironmentFailed, HostUnreachable, NodeLost, TeardownUnproven
from spectune.hosts.channel import Channel
from spectune.hosts.facts import Ended, PortOwner, Vitals, read_ended

if TYPE_CHECKING:
    from spectune.hosts.host import Host

_LOG_EVERY_S = 0.1
_RETRY_S = 0.25
_RENEWALS_PER_LEASE = 6


class SupervisedServer:
    """A live server. ``ended`` resolves when it has come to its end.

    ``dropped`` is set while the connection is down; what was measured across a drop is worth nothing.
    """

    def __init__(
        self, host: Host, server_id: str, status: dict[str, Any], *, log_path: Path, log_start: int = 0
    ) -> None:
        self.host = host
        self.server_id = server_id
        self.log_path = log_path
        """Here, on this machine."""
        self.log_start = log_start
        """Where in it this server's part begins: earlier tries of a trial write to the same file."""
        self.leader_pid: int = status["leader"][0]
        self.marker: str = status["marker"]
        self.lease_s: float | None = status["lease_s"]
        self.supervisor_pid: int = status["supervisor"][0]
        self.about: dict[str, Any] = status.get("label") or {}
        self.dropped = asyncio.Event()
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._source_log = status["log_path"]
        self._mirrored = 0
        self._channel: Channel | None = None
        self._connected = asyncio.Event()
        self._given_up = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._node_lost: NodeLost | None = None
        self.log_every_s = _LOG_EVERY_S
        """How often its log is brought over, where it has to be."""

    async def connect(self) -> None:
        """Opens the connection and keeps it: renews the lease, follows the log, reconnects."""
        await self._open()
        self._tasks.append(asyncio.create_task(self._keep()))
        if self._mirrors:
            self._tasks.append(asyncio.create_task(self._mirror()))

    @property
    def _mirrors(self) -> bool:
        return not (self.host.shares_files and str(self.log_path) == self._source_log)

    async def wait_ended(self) -> Ended:
        """How it ended, once it has; raises ``HostUnreachable`` if that can no longer be known."""
        return await asyncio.shield(self.ended)

    async def vitals(self) -> Vitals:
        reply = await self._request("vitals")
        return Vitals(
            num_processes=reply["num_processes"],
            cpu_s=reply["cpu_s"],
            rss_bytes=reply["rss_bytes"],
            io_bytes=reply["io_bytes"],
            log_bytes=reply["log_bytes"],
            pids=tuple(reply.get("pids", ())),
        )

    async def mark_ready(self) -> tuple[int, ...]:
        """From now on the end of any of its processes is its end; returns the pids of the workers."""
        return tuple((await self._request("ready"))["workers"])

    async def stranger_on(self, port: int) -> PortOwner | None:
        """Who else listens on the port; ``None`` if it is this server, or nobody."""
        reply = await self._request("port", port=port)
        owner = reply["owner"]
        return PortOwner(owner["pid"], owner["command"]) if owner is not None else None

    async def owns(self, port: int) -> bool:
        """Whether the listening socket of the port belongs to this server's process tree."""
        return bool((await self._request("port", port=port))["ours"])

    async def sync_log(self) -> None:
        """Brings the log here up to the end of the one there."""
        if not self._mirrors:
            return
        with contextlib.suppress(EnvironmentFailed):
            while await self._copy_log():
                pass

    async def stop(self, *, grace_s: float) -> StopProof:
        """SIGTERM, wait, SIGKILL, over the whole tree, and the proof; raises ``TeardownUnproven``.

        ``NodeLost``: nobody is there who could prove it; the server ends with its node, or by its lease.
        """
        status = await self._stop_through_supervisor(grace_s)
        if status is None or status.get("proof") is None:
            await self.host.reconnect()
            proof = await self.host.sweep(self.server_id)
        else:
            await self.sync_log()
            proof = stop_proof(status["proof"])
        await self.aclose()
        return proof

    async def _stop_through_supervisor(self, grace_s: float) -> dict[str, Any] | None:
        """The supervisor's last report; ``None`` if it is dead, or does not answer. After a cut it is asked again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.host.patience_s(self.lease_s)
        while True:
            try:
                return await self._request("stop", timeout_s=grace_s + 40.0, grace_s=grace_s)
            except HostUnreachable:
                if self._node_lost is not None:
                    raise self._node_lost from None
                if await self.host.last_words(self.server_id) is not None:
                    return None
                if loop.time() > deadline:
                    return None
                await asyncio.sleep(_RETRY_S)

    async def renew(self, *, lease_s: float | None) -> None:
        """Sets another lease; ``None``: for ever."""
        await self._request("renew", lease_s=lease_s)
        self.lease_s = lease_s

    async def aclose(self) -> None:
        """Lets go of it; it goes on until its lease ends."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        if self._channel is not None:
            await self._channel.aclose()
        if not self.ended.done():
            self.ended.cancel()
        elif not self.ended.cancelled():
            self.ended.exception()  # it may never have been asked for

    async def _request(self, do: str, *, timeout_s: float = 15.0, **fields: Any) -> dict[str, Any]:
        patience_s = min(timeout_s, self.lease_s or timeout_s)
        if not self._connected.is_set():
            waiting = [
                asyncio.ensure_future(self._connected.wait()),
                asyncio.ensure_future(self._given_up.wait()),
            ]
            await asyncio.wait(waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
        if not self._connected.is_set():
            raise HostUnreachable(f"{self.host.name}: the supervisor cannot be reached")
        assert self._channel is not None
        return await self._channel.request(do, timeout_s=timeout_s, **fields)

    async def _open(self) -> None:
        reader, writer = await self.host.open_channel(self.server_id)
        channel = Channel(reader, writer, on_event=self._on_event)
        try:
            status = await channel.request("status")
        except HostUnreachable:
            await channel.aclose()
            raise
        self._channel = channel
        if status["ended"] is not None:
            self._on_event({"event": "ended", **status["ended"]})
        self._connected.set()
        self.dropped.clear()

    async def until_connected(self) -> None:
        """Returns at once while the connection is up; raises ``HostUnreachable`` if it stays down."""
        await self._request("renew")

    def _on_event(self, event: dict[str, Any]) -> None:
        if event.get("event") == "ended" and not self.ended.done():
            self.ended.set_result(read_ended(event))

    async def _keep(self) -> None:
        """Renews the lease; opens the connection again whenever it is lost."""
        every_s = max(0.05, min(5.0, (self.lease_s or 30.0) / _RENEWALS_PER_LEASE))
        while not self._closing:
            assert self._channel is not None
            try:
                async with asyncio.timeout(every_s):
                    await self._channel.lost.wait()
            except TimeoutError:
                with contextlib.suppress(EnvironmentFailed):
                    await self._channel.request("renew")
                continue
            self._connected.clear()
            self.dropped.set()
            if not await self._reconnect():
                self._given_up.set()
                return

    async def _reconnect(self) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.host.patience_s(self.lease_s)
        reason = ""
        while loop.time() < deadline:
            try:
                await self.host.reconnect()
                await self._open()
                return True
            except NodeLost as error:  # for good, and everything on it
                self._node_lost = error
                if not self.ended.done():
                    self.ended.set_exception(error)
                return False
            except EnvironmentFailed as error:
                reason = str(error)
                ended = await self.host.last_words(self.server_id)
                if ended is not None:
                    if not self.ended.done():
                        self.ended.set_result(ended)
                    return False
                await asyncio.sleep(_RETRY_S)
        if not self.ended.done():
            self.ended.set_exception(HostUnreachable(f"{self.host.name}: {reason}"))
        return False

    async def _mirror(self) -> None:
        while True:
            with contextlib.suppress(EnvironmentFailed):
                while await self._copy_log():
                    pass
            await asyncio.sleep(self.log_every_s)

    async def _copy_log(self) -> bool:
        """Appends the next piece of the log; whether there was one."""
        offset = self._mirrored
        reply = await self._request("log", offset=offset)
        data = reply["data"].encode("latin-1")
        if not data or offset != self._mirrored:
            return False
        with self.log_path.open("ab") as file:
            file.write(data)
        self._mirrored += len(data)
        return True


def stop_proof(proof: dict[str, Any]) -> StopProof:
    """The proof as a record; raises ``TeardownUnproven`` if something is left."""
    left = [str(item) for item in proof["left"]]
    if proof.get("no_child_left") is False:
        left.append("a child process that the kernel still counts")
    if left:
        raise TeardownUnproven(
            "the server was stopped, but this is still there:\n"
            + "\n".join(f"  {item}" for item in left)
            + "\nNothing more was started. Find out what holds it (a driver, a debugger?), end it, then resume.",
            left,
        )
    return StopProof(
        took_s=round(proof["took_s"], 3),
        killed=tuple(proof["killed"]),
        no_child_left=proof.get("no_child_left"),
        ports_closed=tuple(proof["ports_closed"]),
        ports_taken=tuple(proof["ports_taken"]),
        segments_seen=proof["segments_seen"],
        segments_removed=tuple(proof["segments_removed"]),
        segments_left=tuple(proof.get("segments_left", ())),
        containers_gone=tuple(proof.get("containers_gone", ())),
    )
