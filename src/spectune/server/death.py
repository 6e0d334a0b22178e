"""Why a server ended: its log first, then what the system says."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from spectune.engines.adapter import Cause, EngineAdapter
from spectune.engines.containers import failure_of_runtime
from spectune.errors import HostUnreachable, LeaseExpired, ServerDied, SpectuneError
from spectune.hosts.facts import Ended, ServerStatus
from spectune.hosts.supervised import SupervisedServer
from spectune.server.log import LogFollower
from spectune.server.phases import PhaseClock

_LOG_TAIL_LINES = 30
_LEASE_REASON = "nobody renewed the lease"
_OWN_ENDS = frozenset({"exited", "worker"})
_SUPERVISOR_REASON = "its supervisor was killed"
_PHASE_WORDS = {
    "launch": "launching",
    "load": "loading weights",
    "cache": "allocating its cache",
    "compile": "compiling",
    "capture": "capturing graphs",
    "warm-up": "warming up",
    "settle": "settling",
    "measure": "measuring",
    "soak": "running under load",
    "stop": "stopping",
}
_BY_SIGNAL = {
    signal.SIGBUS: (
        "a bus error (SIGBUS): most often /dev/shm is full",
        "give it more shared memory: --shm-size 16g or --ipc host for a container",
    ),
    signal.SIGILL: (
        "an illegal instruction (SIGILL): this build uses instructions that the processor does not have",
        "install a build for this processor",
    ),
    signal.SIGSEGV: ("a segmentation fault (SIGSEGV)", None),
    signal.SIGABRT: ("it aborted (SIGABRT): an assertion or an uncaught C++ exception", None),
    signal.SIGKILL: (
        "killed by signal 9 (SIGKILL): by the system for lack of memory, or by somebody",
        "look for the out-of-memory killer in the system's log (dmesg), and lower what the server holds in memory",
    ),
}


def phase_words(clock: PhaseClock) -> str:
    """What the server was doing, for people."""
    return _PHASE_WORDS.get(clock.latest or "launch", "running")


def death_of(
    server: SupervisedServer, ended: Ended, log: LogFollower, adapter: EngineAdapter, clock: PhaseClock
) -> SpectuneError:
    """The error for a server that has ended: ``ServerDied``, or that its end was not its own doing."""
    if ended.reason == _LEASE_REASON:
        return LeaseExpired(
            f"the server was stopped after {server.lease_s:g} s without a sign of life from spectune, which was "
            "suspended or cut off; a longer lease can be asked for with lease_s"
        )
    if ended.reason == _SUPERVISOR_REASON:
        return HostUnreachable(f"the supervisor of the server (pid {server.supervisor_pid}) was killed")
    if ended.reason not in _OWN_ENDS:
        return HostUnreachable(f"the server was stopped from outside: {ended.reason}")
    tail = log.last_lines(200)
    code = ended.exit_code
    cause = _cause(ended, tail, adapter)
    return ServerDied(
        exit_code_of_server=code if code is not None or ended.worker is None else ended.worker.exit_code,
        after_s=sum(clock.seconds.values()),
        phase=phase_words(clock),
        log_tail=tail[-_LOG_TAIL_LINES:],
        cause=cause.message if cause else None,
        remedy=cause.remedy if cause else None,
        log_path=str(log.path),
    )


def died_before(status: ServerStatus, adapter: EngineAdapter) -> ServerDied:
    """The error for a server that had already ended when it was asked for; its log is read where it lies here."""
    log = LogFollower(Path(status.log_path))
    tail = log.last_lines(200)
    ended = status.ended or Ended(reason="its supervisor was killed", exit_code=None)
    cause = _cause(ended, tail, adapter)
    if cause is None:
        cause = Cause("it exited by itself" if ended.reason == "exited" else ended.reason)
    return ServerDied(
        exit_code_of_server=ended.exit_code,
        after_s=None,
        phase=None,
        log_tail=tail[-_LOG_TAIL_LINES:],
        cause=cause.message,
        remedy=cause.remedy or f"`spectune down {status.server_id}` removes its record",
        log_path=status.log_path,
    )


def lost_by_its_own_word(
    line: str, log: LogFollower, adapter: EngineAdapter, clock: PhaseClock
) -> ServerDied:
    """The error for a server whose main process lives on after a line that ends its service."""
    tail = log.last_lines(200)
    cause = adapter.cause_of_death(tail) or Cause(line.strip()[:300])
    return ServerDied(
        exit_code_of_server=None,
        after_s=sum(clock.seconds.values()),
        phase=phase_words(clock),
        log_tail=tail[-_LOG_TAIL_LINES:],
        cause=f"{cause.message} (its main process lives on, but serves nothing)",
        remedy=cause.remedy,
        log_path=str(log.path),
    )


def _cause(ended: Ended, tail: Sequence[str], adapter: EngineAdapter) -> Cause | None:
    if ended.num_oom_kills > 0:
        return Cause(
            f"out of host memory: the system killed {ended.num_oom_kills} of its processes",
            "lower the context length, the cache or the number of workers, or use a host with more memory",
        )
    in_log = failure_of_runtime(tail) or adapter.cause_of_death(tail)
    if in_log is not None:
        return in_log
    if ended.worker is not None:
        how, remedy = _exit_words(ended.worker.exit_code)
        return Cause(f"its process {ended.worker.pid} ended ({ended.worker.command}): {how}", remedy)
    code = ended.exit_code
    if code is None or (code >= 0 and _signal_of(code) is None):
        return None
    how, remedy = _exit_words(code)
    return Cause(how, remedy)


def _exit_words(code: int | None) -> tuple[str, str | None]:
    number = _signal_of(code) if code is not None else None
    if number is None:
        return (f"exit code {code}" if code is not None else "exit code unknown"), None
    if number in _BY_SIGNAL:
        return _BY_SIGNAL[number]
    return f"killed by signal {number.value} ({number.name})", None


def _signal_of(code: int) -> signal.Signals | None:
    """The signal behind an exit code: ``-9``, or ``137`` as shells and containers report it."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number) if number > 0 else None
    except ValueError:
        return None
