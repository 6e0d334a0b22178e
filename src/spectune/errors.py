"""Every error spectune raises on purpose.

::

    SpectuneError
    ├── BadInput            the user's file, flag or value; exit code 2
    │   └── StudyFileError      several problems, each with its line
    ├── EnvironmentFailed   the machine, the network, an engine that is not there; exit code 3
    │   ├── LaunchRefused       the host is not fit for the launch: port, GPU, disk or memory; nothing was started
    │   │   └── PortTaken           somebody else listens on the port
    │   ├── ServerDied          the server process ended; carries exit code, phase and log tail
    │   ├── ServerNotReady      alive, but no generation in time
    │   │   └── ServerStuck         alive, but without any sign of life
    │   ├── LeaseExpired        the supervisor stopped the server because nobody renewed its lease
    │   ├── TeardownUnproven    something we started may still be there
    │   ├── HostUnreachable     the connection to a host is lost and could not be made again
    │   ├── StoreUnreachable    an object store does not answer; what was to be written is kept here
    │   │   └── NodeLost            a node of a cluster, or our worker on it, has died
    │   └── TransportError      an HTTP request that could not be completed
    ├── CheckRefused        error findings stand, so nothing was launched; exit code 1
    └── Interrupted         the user asked to stop; exit code 130
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class SpectuneError(Exception):
    """Base class; ``exit_code`` is what the command line returns for it."""

    exit_code = 3


class BadInput(SpectuneError):
    """Something the user gave is wrong; the message says where, what and what would be right."""

    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One mistake in a file: its place, what is wrong, and what to do."""

    where: str
    message: str
    line: int | None = None


MAX_LISTED = 50
"""Problems of one file that are listed; more are counted."""


class StudyFileError(BadInput):
    """All problems of one file, reported together."""

    def __init__(self, path: str, problems: Sequence[Problem], *, num_not_listed: int = 0) -> None:
        self.path = path
        self.problems = tuple(problems)
        count = len(self.problems) + num_not_listed
        lines = [f"{path}: {count} problem{'s' if count != 1 else ''}"]
        for problem in self.problems[:MAX_LISTED]:
            place = f"line {problem.line}: " if problem.line is not None else ""
            lines.append(f"  {place}{problem.where:.200}: {problem.message}")
        if count > len(lines) - 1:
            lines.append(f"  and {count - len(lines) + 1} more")
        super().__init__("\n".join(lines))


class EnvironmentFailed(SpectuneError):
    """The machine or a program on it did not do what was needed."""


class ServerDied(EnvironmentFailed):
    """The server process ended, or one that it cannot serve without.

    ``exit_code_of_server`` is negative for a signal, as in ``subprocess``.
    ``log_tail`` holds the last lines of its output. ``rank`` and ``node`` say
    which part it was of a server over several nodes.
    """

    def __init__(
        self,
        *,
        exit_code_of_server: int | None,
        after_s: float | None,
        phase: str | None,
        log_tail: Sequence[str],
        cause: str | None,
        remedy: str | None = None,
        log_path: str | None = None,
        rank: int | None = None,
        node: str | None = None,
    ) -> None:
        self.after_s = after_s
        self.log_path = log_path
        self.rank = rank
        self.node = node
        self.exit_code_of_server = exit_code_of_server
        self.after_s = after_s
        self.phase = phase
        self.log_tail = tuple(log_tail)
        self.cause = cause
        self.remedy = remedy
        part = "" if rank is None else f"rank {rank} on {node}: "
        lines = [part + _ending(exit_code_of_server, after_s, phase)]
        if cause:
            lines.append(f"  {cause}")
        else:
            lines.extend(f"  {line}" for line in self.log_tail[-8:])
        if remedy:
            lines.append(remedy)
        if log_path:
            lines.append(f"full log: {log_path}")
        super().__init__("\n".join(lines))


class LaunchRefused(EnvironmentFailed):
    """The host is not fit for a launch; nothing was started and nothing of others was touched."""


def _ending(code: int | None, after_s: float | None, phase: str | None) -> str:
    how = "server ended" if code is None else f"server exited with code {code}"
    after = "" if after_s is None else f" after {after_s:.1f} s"
    return f"{how}{after}{f', while {phase}' if phase else ''}"


class PortTaken(LaunchRefused):
    """Somebody else listens on the port; it was left alone."""


class ServerNotReady(EnvironmentFailed):
    """The process lives but did not generate within the limit."""


class ServerStuck(ServerNotReady):
    """The process lives, but for a while it has logged nothing and used neither processor nor disk nor GPU."""


class LeaseExpired(EnvironmentFailed):
    """The supervisor stopped the server because spectune did not renew its lease: suspended, or cut off."""


class HostUnreachable(EnvironmentFailed):
    """A host, or the supervisor on it, cannot be talked to."""


class StoreUnreachable(EnvironmentFailed):
    """An object store does not answer, or answers that it cannot."""


class NodeLost(HostUnreachable):
    """A node of a cluster, or our worker process on it, has died; what ran there has to be done again."""


class TeardownUnproven(EnvironmentFailed):
    """Something we started could not be shown to be gone; ``left`` names it."""

    def __init__(self, message: str, left: Sequence[str]) -> None:
        self.left = tuple(left)
        super().__init__(message)


class TransportError(EnvironmentFailed):
    """An HTTP exchange failed: refused, reset, timed out or malformed."""


class ErrorFinding(Protocol):
    """What this module knows of ``spectune.domain.findings.Finding``."""

    @property
    def code(self) -> str: ...

    @property
    def subject(self) -> str: ...

    @property
    def message(self) -> str: ...


class CheckRefused(SpectuneError):
    """``findings`` are the errors that stand against the launch; each can be allowed by its ``code``."""

    exit_code = 1

    def __init__(self, findings: Sequence[ErrorFinding]) -> None:
        self.findings = tuple(findings)
        count = f"{len(self.findings)} {'error' if len(self.findings) == 1 else 'errors'}"
        lines = [f"  {f.code}: {f.subject}: {f.message}" for f in self.findings]
        super().__init__(
            "\n".join([f"nothing was launched: {count}", *lines, "change the study, or allow their codes"])
        )


class Interrupted(SpectuneError):
    """The user interrupted; everything measured is on disk."""

    exit_code = 130
