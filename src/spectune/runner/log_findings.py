"""What a trial's own server log says, beyond what its measurement says."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

from spectune.diagnose.inputs import read_stream
from spectune.diagnose.judge import judge
from spectune.diagnose.rules import health as rules_health
from spectune.diagnose.rules import measurement as rules_measurement
from spectune.diagnose.verdict import NotChecked
from spectune.domain.findings import Finding
from spectune.domain.trial import Trial
from spectune.engines.registry import ENGINE_NAMES
from spectune.errors import BadInput
from spectune.store.record_file import open_file

READ_BYTES = 16 << 20
"""Of a longer log only the beginning is read: two seconds of work at most."""

_KNOWN_BETTER = frozenset(
    {
        # How it ended: the trial watched the process itself.
        *(kind.code for kind in (rules_health.DIED, rules_health.DIED_SERVING, rules_health.PORT)),
        *(kind.code for kind in (rules_health.LOOP, rules_health.NOT_READY)),
        # What the numbers are worth: the trial measured them itself, after its own warm-up.
        *(kind.code for kind in (rules_measurement.RATE_FORMULA, rules_measurement.REPEATED)),
        *(kind.code for kind in (rules_measurement.CACHED, rules_measurement.IDLE, rules_measurement.JIT)),
        *(kind.code for kind in (rules_measurement.PREFILL, rules_measurement.CUMULATIVE)),
    }
)
_FORESEEN = {
    "draft-tokens-rewritten": "speculative-number-rewritten",
    "acceptance-is-simulated": "synthetic-acceptance",
    "context-longer-than-draft": "draft-context-shorter",
}
"""What a check says before the launch and the log after it; said once."""


def findings_of_own_log(
    trial: Trial, log: Path, *, without: tuple[int, int] | None = None
) -> tuple[Finding, ...]:
    """Errors and warnings of the log of one trial. A log that cannot be understood gives none.

    ``without``: from which byte to which it tells of other trials on the same server.
    """
    if trial.simulated or trial.arm.engine not in ENGINE_NAMES:
        return ()
    skipped = NotChecked()
    try:
        with open_file(log) as file:
            runs = read_stream(cast(BinaryIO, _Head(file, without)), engine=trial.arm.engine, skipped=skipped)
        last = [run.model_copy(update={"subject": trial.arm.name}) for run in runs[-1:]]
        found = judge([last], skipped, compared=False)
    except (OSError, BadInput, ValueError, TypeError, LookupError, ArithmeticError):
        return ()  # whatever a server may have written, the trial is measured and is kept
    known = {finding.code for finding in trial.findings}
    return tuple(
        finding
        for finding in found
        if finding.severity != "note"
        and finding.code not in _KNOWN_BETTER | known
        and _FORESEEN.get(finding.code) not in known
    )


class _Head:
    """The beginning of a file, but for a part in its middle."""

    def __init__(self, file: BinaryIO, without: tuple[int, int] | None) -> None:
        self._file = file
        self._left = READ_BYTES
        self._until: int | None = None
        self._onward = 0
        if without is not None:
            self._until, self._onward = without

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        if self._until is not None:
            before = self._until - self._file.tell()
            if before <= 0:
                self._file.seek(max(self._file.tell(), self._onward))
                self._until = None
            else:
                wanted = min(wanted, before)
        chunk = self._file.read(wanted)
        self._left -= len(chunk)
        return chunk
