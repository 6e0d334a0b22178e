"""Watches a server at every phase: its log, its end, and whether it shows any sign of life."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from spectune.engines.adapter import EngineAdapter
from spectune.engines.death_causes import is_fatal, is_hang_report
from spectune.engines.progress_bars import progress_in
from spectune.errors import EnvironmentFailed, HostUnreachable, ServerStuck, SpectuneError
from spectune.hosts.facts import Vitals
from spectune.hosts.supervised import SupervisedServer
from spectune.server.death import death_of, lost_by_its_own_word, phase_words
from spectune.server.log import LogFollower
from spectune.server.phases import PhaseClock

_LOG_EVERY_S = 0.05
_BITE_BYTES = 1 << 17
"""Read at one go: lines are matched against many patterns, and the event loop measures meanwhile."""
_VITALS_EVERY_S = 1.0
_LAST_BITES = 16
_LAST_WORDS_S = 0.5
"""After a fatal line: time for the traceback, and for the process to end by itself."""
_BUSY_CORES = 0.02
_BUSY_IO_BYTES_PER_S = 1 << 16
_BUSY_GPU_PERCENT = 5


class Watch:
    """Runs from the launch on; ``lost`` resolves to the error when the server can no longer be used.

    Of a server over several nodes each part has one, joined to rank 0's: the
    end of any is the end of all, and a sign of life of any is one of all.
    """

    def __init__(
        self,
        server: SupervisedServer,
        *,
        adapter: EngineAdapter,
        clock: PhaseClock,
        stuck_after_s: float | None,
        on_progress: Callable[[float], None] = lambda _share: None,
        part: str = "",
        as_loss: Callable[[SpectuneError], SpectuneError] = lambda error: error,
    ) -> None:
        """``stuck_after_s`` ``None``: silence says nothing. ``part`` names it beside the others."""
        self.server = server
        self.adapter = adapter
        self.clock = clock
        self.log = LogFollower(server.log_path, start=server.log_start)
        self.version: str | None = None
        self.lost: asyncio.Future[SpectuneError] = asyncio.get_running_loop().create_future()
        self._stuck_after_s = stuck_after_s
        self._on_progress = on_progress
        self._part = part
        self._as_loss = as_loss
        self._joined: list[Watch] = []
        self._on_life: Callable[[], None] = lambda: None
        self._starting = True
        self._life_s = asyncio.get_running_loop().time()
        self._tasks = [
            asyncio.create_task(self._until_ended()),
            asyncio.create_task(self._follow_log()),
            asyncio.create_task(self._feel_pulse()),
        ]

    def join(self, other: Watch) -> None:
        """Another part of the same server."""
        self._joined.append(other)
        other._on_life = self.note_life
        other.lost.add_done_callback(self._lose_with)

    def begin_service(self) -> None:
        """Start-up is over: log lines no longer move the phase."""
        self._starting = False
        self.note_life()
        for other in self._joined:
            other.begin_service()
            other.clock.close()

    def note_life(self) -> None:
        """Something came from the server that only a live one sends."""
        self._life_s = asyncio.get_running_loop().time()
        self._on_life()

    def last_words(self, count: int) -> str:
        """The last lines of the log, those of other parts below, for people."""
        own = "\n".join(f"  {line}" for line in self.log.last_lines(count))
        return "\n".join([own, *(f"{w._part}:\n{w.last_words(count)}" for w in self._joined)])

    async def aclose(self) -> None:
        for other in self._joined:
            await other.aclose()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if not self.lost.done():
            self.lost.cancel()

    def _lose(self, error: SpectuneError) -> None:
        if not self.lost.done():
            self.lost.set_result(self._as_loss(error))

    def _lose_with(self, lost: asyncio.Future[SpectuneError]) -> None:
        if not lost.cancelled() and not self.lost.done():
            self.lost.set_result(lost.result())

    async def _until_ended(self) -> None:
        try:
            ended = await self.server.wait_ended()
        except HostUnreachable as error:
            self._lose(error)
            return
        await self.server.sync_log()
        for _ in range(_LAST_BITES):  # its last words may lie in a phase that was not seen yet
            if not self.log.is_behind:
                break
            self._read_lines()
        self._lose(death_of(self.server, ended, self.log, self.adapter, self.clock))

    async def _follow_log(self) -> None:
        while True:
            fatal = self._read_lines()
            if fatal is not None:
                await asyncio.sleep(_LAST_WORDS_S)
                if not self.server.ended.done():
                    self._lose(lost_by_its_own_word(fatal, self.log, self.adapter, self.clock))
                return
            await asyncio.sleep(0 if self.log.is_behind else _LOG_EVERY_S)

    def _read_lines(self) -> str | None:
        """Takes in the new lines; returns the first that says that the service is over."""
        fatal = None
        for line in self.log.new_lines(at_most_bytes=_BITE_BYTES):
            if not is_hang_report(line):
                self.note_life()
            if fatal is None and is_fatal(line):
                fatal = line
            if self._starting:
                self._note_start_up(line)
        return fatal

    def _note_start_up(self, line: str) -> None:
        self.version = self.version or self.adapter.version_in(line)
        phase = self.adapter.phase_of(line)
        if phase is not None:
            self.clock.enter(phase)
        share = progress_in(line)
        if share is not None:
            self._on_progress(share)

    async def _feel_pulse(self) -> None:
        loop = asyncio.get_running_loop()
        before: tuple[float, Vitals] | None = None
        limit_s = self._stuck_after_s
        while True:
            await asyncio.sleep(_VITALS_EVERY_S if limit_s is None else min(_VITALS_EVERY_S, limit_s / 4))
            try:
                vitals = await self.server.vitals()
            except EnvironmentFailed:
                before = None
                self.note_life()  # a connection that is down says nothing about the server
                continue
            now = loop.time()
            if before is not None and _is_alive(before[1], vitals, seconds=now - before[0]):
                self.note_life()
            before = (now, vitals)
            silent_s = now - self._life_s
            if limit_s is not None and silent_s > limit_s and not await self._gpu_is_busy():
                self._lose(self._stuck(silent_s))
                return

    async def _gpu_is_busy(self) -> bool:
        try:
            facts = await self.server.host.facts(gpus=True)
        except EnvironmentFailed:
            return False
        busy = any((gpu.use_percent or 0) > _BUSY_GPU_PERCENT for gpu in facts.gpus or ())
        if busy:
            self.note_life()
        return busy

    def _stuck(self, silent_s: float) -> ServerStuck:
        last = self.last_words(8)
        return ServerStuck(
            f"the server lives but has shown no sign of life for {silent_s:.0f} s, while {phase_words(self.clock)}: "
            f"nothing logged, no processor, disk or GPU use; its last lines:\n{last}\n"
            "If it was waiting for something slow, raise engine.stuck_after_s"
        )


def _is_alive(before: Vitals, after: Vitals, *, seconds: float) -> bool:
    """Whether more was done than idling costs. Totals fall when a process of the tree ends: that is life too."""
    cores = abs(after.cpu_s - before.cpu_s) / seconds
    io_bytes_per_s = abs(after.io_bytes - before.io_bytes) / seconds
    return (
        cores > _BUSY_CORES
        or io_bytes_per_s > _BUSY_IO_BYTES_PER_S
        or before.num_processes != after.num_processes
    )
