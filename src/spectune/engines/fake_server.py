"""A scripted inference server: real sockets and processes, no model.

It stands in for an engine where a test needs one that starts at once, is
exactly as fast and as lucky as it is told, and fails on command. Nothing it
says is a measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from spectune.engines.fake_generation import Counters
from spectune.engines.fake_http import FakeHttp
from spectune.engines.fake_options import PHASE_LINES, build_parser, speculation_of
from spectune.engines.fake_state import ServerState

_STUBBORN_CHILD = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("child ready", flush=True)
time.sleep(600)
"""


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    if not options.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    if options.die_after_s is not None:
        loop.call_later(options.die_after_s, _die, options)
    speculation = speculation_of(options)
    _say(f"fake engine serving {options.model}: method={options.method} K={speculation.num_draft_tokens}")
    for number in range(options.log_lines):
        _say(f"log line {number}")
    if options.spawn_child:
        _spawn_child(in_new_session=options.spawn_child == "session")
    if not await _start_up(options, stop):
        return 0
    state = ServerState(options, speculation, die=lambda: _die(options), counters=Counters())
    try:
        server = await loop.create_server(lambda: FakeHttp(state), options.host, options.port, backlog=1024)
    except OSError as error:
        _say(f"OSError: {error.strerror or error}")
        return 1
    host, port = server.sockets[0].getsockname()[:2]
    _say(f"listening on {host}:{port}")
    if await _is_set_within(stop, options.ready_delay_s):
        return 0
    state.is_ready = True
    _say("ready")
    await stop.wait()
    _say("shutting down")
    server.close()
    state.abort_all()
    return 0


async def _start_up(options: argparse.Namespace, stop: asyncio.Event) -> bool:
    """Plays the phases of a start; false if it was told to stop meanwhile."""
    phases = [name for name in PHASE_LINES if not (options.enforce_eager and name == "capture")]
    for name in phases:
        _say(f"{PHASE_LINES[name]} ...")
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


def _spawn_child(*, in_new_session: bool) -> None:
    child = subprocess.Popen(  # it outlives this process: that is what it is for
        [sys.executable, "-c", _STUBBORN_CHILD], start_new_session=in_new_session
    )
    _say(f"child pid {child.pid}")


def _die(options: argparse.Namespace) -> None:
    _say("Traceback (most recent call last):")
    _say(options.die_message)
    os._exit(options.exit_code)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
