"""A scripted inference server: real sockets and processes, no model.

It stands in for an engine where a test needs one that starts at once, is
exactly as fast and as lucky as it is told, and fails on command. Nothing it
says is a measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from spectune.engines.fake import faults as fake_faults
from spectune.engines.fake.faults import say, stamp
from spectune.engines.fake.generation import Counters
from spectune.engines.fake.http import FakeHttp
from spectune.engines.fake.options import PHASE_LINES, build_parser, speculation_of, without_faults_of_others
from spectune.engines.fake.ranks import follow, lead
from spectune.engines.fake.state import ServerState


def main(argv: Sequence[str] | None = None) -> int:
    options = without_faults_of_others(build_parser().parse_args(argv))
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    if not options.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    if options.die_after_s is not None:
        loop.call_later(options.die_after_s, fake_faults.die, options)
    speculation = speculation_of(options)
    say(f"fake engine serving {options.model}: method={options.method} K={speculation.num_draft_tokens}")
    for number in range(options.log_lines):
        say(f"log line {number}")
    fake_faults.before_start(options)
    if not await _start_up(options, stop):
        return 0
    if options.node_rank > 0:
        return await follow(options, stop)
    if options.nnodes > 1 and not await lead(options, stop):
        return 0
    state = ServerState(options, speculation, die=lambda: fake_faults.die(options), counters=Counters())
    try:
        server = await loop.create_server(lambda: FakeHttp(state), options.host, options.port, backlog=1024)
    except OSError as error:
        say(f"OSError: {error.strerror or error}")
        return 1
    host, port = server.sockets[0].getsockname()[:2]
    say(f"listening on {host}:{port}")
    if await _is_set_within(stop, options.ready_delay_s):
        return 0
    state.is_ready = True
    state.on_stop_serving = server.close
    stamp(options, "ready")
    say("ready")
    if options.die_after_ready_s is not None:
        loop.call_later(options.die_after_ready_s, fake_faults.die, options)
    await stop.wait()
    if options.die_at_shutdown:
        fake_faults.die(options)
    say("shutting down")
    server.close()
    state.abort_all()
    await asyncio.sleep(options.shutdown_delay_s)
    return 0


async def _start_up(options: argparse.Namespace, stop: asyncio.Event) -> bool:
    """Plays the phases of a start; false if it was told to stop meanwhile."""
    phases = [name for name in PHASE_LINES if not (options.enforce_eager and name == "capture")]
    for name in phases:
        say(f"{PHASE_LINES[name]} ...")
        fake_faults.play_phase(options, name)
        if await _is_set_within(stop, options.startup_delay_s / len(phases)):
            return False
    return True


async def _is_set_within(stop: asyncio.Event, delay_s: float) -> bool:
    if delay_s > 0:
        try:
            await asyncio.wait_for(stop.wait(), delay_s)
        except TimeoutError:
            return False
    return stop.is_set()


if __name__ == "__main__":
    sys.exit(main())
