"""One server of one fault, started through ``server.lifecycle.serve``, with the time of every change of phase."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults_place import MARK, Place
from faults_table import Unexpected, expect

from spectune.domain.trial import StopProof
from spectune.embedded.models import fetch_embedded_target
from spectune.engines.adapter import Command
from spectune.engines.registry import adapter_for
from spectune.errors import EnvironmentFailed, ServerDied
from spectune.home import data_home
from spectune.hosts.local import local_host
from spectune.server.lifecycle import Launched, LaunchPlan, Limits, ServerHandle, serve
from spectune.server.phases import PhaseClock

FAKE = (sys.executable, "-m", "spectune.engines.fake.server", "--model", "fake-model")
LIMITS = Limits(ready_s=20.0, stuck_s=15.0, settle_s=0.2, stop_grace_s=2.0)
_ALL_S = 60.0


@dataclass
class Served:
    """How a server's life went."""

    was_ready: bool = False
    error: EnvironmentFailed | None = None
    entered: dict[str, float] = field(default_factory=dict)
    """When each phase was last entered, by the monotonic clock."""
    phases: list[str] = field(default_factory=list)
    stop: StopProof | None = None
    log: str = ""
    worst_pause_s: float = 0.0
    """The longest time for which our event loop did nothing else, hence heard of nothing."""
    pids: list[int] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return type(self.error).__name__
        return "ready" if self.was_ready else "?"

    def died(self) -> ServerDied:
        """The death; raises ``Unexpected`` if it ended otherwise."""
        if not isinstance(self.error, ServerDied):
            raise Unexpected(f"{self.outcome}: {self.error}")
        return self.error

    def lag_s(self, place: Place) -> tuple[float, ...]:
        """From the server's own word of readiness to our knowing."""
        stamped = place.events().get("ready")
        return () if stamped is None or "settle" not in self.entered else (self.entered["settle"] - stamped,)


During = Callable[[ServerHandle], Awaitable[None]]


def play(
    place: Place,
    *argv: str,
    engine: str = "fake",
    limits: Limits = LIMITS,
    during: During | None = None,
    port: int | None = None,
) -> Served:
    """Starts ``argv`` (a fake server with these options, if the engine is that), waits, stops; says how it went."""
    served = Served()
    words = [*FAKE, "--events", str(place.folder / "events"), *argv] if engine == "fake" else list(argv)

    async def life() -> None:
        async with asyncio.timeout(_ALL_S), local_host(place.home) as host:
            where = port or (await host.facts(free_ports=1)).free_ports[0]
            place.ports.add(where)
            plan = LaunchPlan(
                command=Command((*words, "--port", str(where)), {MARK: place.id}),
                adapter=adapter_for(engine),
                host=host,
                port=where,
                log_path=place.folder / "server.log",
                limits=limits,
                lease_s=10.0,
            )
            pulse = asyncio.create_task(_feel_pauses(served))
            await _live(plan, served, during)
            pulse.cancel()

    asyncio.run(life())
    log = place.folder / "server.log"
    served.log = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if engine == "fake" and log.exists():
        place.note(*place.pids_in_log(log))
    return served


async def _feel_pauses(served: Served) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.05)
        served.worst_pause_s = max(served.worst_pause_s, time.monotonic() - before - 0.05)


async def _live(plan: LaunchPlan, served: Served, during: During | None) -> None:
    def on_change(phase: str) -> None:
        served.entered[phase] = time.monotonic()
        served.phases.append(phase)

    clock, launched = PhaseClock(on_change=on_change), Launched()
    try:
        async with serve(plan, clock=clock, launched=launched) as handle:
            served.was_ready = True
            served.pids = [handle.server.leader_pid, *handle.workers]
            if during is not None:
                clock.enter("measure")
                await during(handle)
    except EnvironmentFailed as error:
        served.error = error
    served.stop = launched.stop


async def until_lost(handle: ServerHandle) -> None:
    """Raises the server's end as soon as it is known."""
    async with asyncio.timeout(30):
        raise await handle.died()


def until_lost_after(act: Callable[[ServerHandle], None]) -> During:
    """Does something to the server, then raises its end as soon as that is known."""

    async def during(handle: ServerHandle) -> None:
        act(handle)
        await until_lost(handle)

    return during


def death_words(error: ServerDied) -> str:
    """A death in one line."""
    why = error.cause or "no known cause; its last lines are shown"
    return f"died while {error.phase}, exit code {error.exit_code_of_server}: {why}"


def expect_death(served: Served, *, phase: str, code: int | None, cause: str) -> ServerDied:
    """The death, if it is of this kind."""
    error = served.died()
    seen = death_words(error)
    expect(error.phase == phase, f"{seen} (phase {error.phase!r}, not {phase!r})")
    expect(error.exit_code_of_server == code, f"{seen} (code, not {code})")
    expect(cause in (error.cause or ""), f"{seen} (no {cause!r})")
    expect(served.stop is not None, "no proof of the stop")
    return error


def embedded_model() -> Path:
    """The small real model, fetched once."""
    return fetch_embedded_target(data_home())


def llama(*flags: str, model: Path | None = None) -> Sequence[str]:
    """The real llama.cpp server's command, without its port."""
    return (
        sys.executable,
        "-m",
        "spectune.embedded.llama_server",
        "--model",
        str(model or embedded_model()),
        "--host",
        "127.0.0.1",
        "--ctx-size",
        "512",
        "--threads",
        "1",
        *flags,
    )
