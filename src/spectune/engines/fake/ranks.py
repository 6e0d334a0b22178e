"""Several processes of the fake engine that serve as one: they meet at rank 0, which notices when one is gone."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from spectune.engines.fake import faults as fake_faults
from spectune.engines.fake.faults import say, stamp
from spectune.race import ends_before

_RETRY_S = 0.05


async def lead(options: argparse.Namespace, stop: asyncio.Event) -> bool:
    """Rank 0: returns when every other rank has joined; false if it was told to stop meanwhile."""
    host, _, port = options.head.rpartition(":")
    joined: set[bytes] = set()
    everybody = asyncio.Event()

    async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = await reader.readline()
        joined.add(name)
        say(f"{name.decode().strip()} joined")
        if len(joined) == options.nnodes - 1:
            everybody.set()
        writer.write(b"welcome\n")
        await reader.read()  # until it is gone
        writer.close()
        if stop.is_set():
            return
        say(f"{name.decode().strip()} is gone")
        if options.rank_lost == "die":
            say(f"RuntimeError: connection closed by {name.decode().strip()}")
            fake_faults.die(options)
        options.hang_generation = True  # as a collective does that waits for it

    server = await asyncio.start_server(member, host.strip("[]"), int(port))
    say(f"waiting for {options.nnodes - 1} ranks at {options.head}")
    await ends_before(everybody.wait(), stop.wait())
    if not stop.is_set():
        _held.append(server)
        return True
    server.close()
    return False


_held: list[asyncio.Server] = []


async def follow(options: argparse.Namespace, stop: asyncio.Event) -> int:
    """Another rank: joins rank 0, however late that comes up, and stays until it is told to stop."""
    host, _, port = options.head.rpartition(":")
    writer = None
    while writer is None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        if await _is_set_within(stop, _RETRY_S):
            return 0
    writer.write(f"rank {options.node_rank}\n".encode())
    await reader.readline()
    stamp(options, f"rank {options.node_rank} joined")
    say(f"rank {options.node_rank} joined")
    if options.die_after_ready_s is not None:
        asyncio.get_running_loop().call_later(options.die_after_ready_s, fake_faults.die, options)
    await stop.wait()
    say("shutting down")
    await asyncio.sleep(options.shutdown_delay_s)
    return 0


async def _is_set_within(stop: asyncio.Event, delay_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await stop.wait()
    return stop.is_set()
