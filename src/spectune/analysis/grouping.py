"""What belongs together in a report for people: alike findings, alike failures, the words of a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spectune.analysis.records import TrialSummary
from spectune.domain.findings import Finding


@dataclass(frozen=True)
class FindingGroup:
    """Findings that differ only in their subject: one effect and one remedy for all."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]


@dataclass(frozen=True)
class FailureGroup:
    """Trials of one arm that failed in the same way."""

    trials: tuple[TrialSummary, ...]

    @property
    def last(self) -> TrialSummary:
        return self.trials[-1]


def failure_groups(trials: Sequence[TrialSummary]) -> tuple[FailureGroup, ...]:
    groups: dict[tuple[str, str, str], list[TrialSummary]] = {}
    for trial in trials:
        if trial.failure is not None:
            key = (trial.arm_id, trial.failure.phase, trial.failure.cause)
            groups.setdefault(key, []).append(trial)
    return tuple(FailureGroup(tuple(group)) for group in groups.values())


def finding_groups(findings: Sequence[Finding]) -> tuple[FindingGroup, ...]:
    """In the order of the first of each group; a failed arm's own remedy is told with its log."""
    groups: dict[tuple[str | None, ...], list[Finding]] = {}
    for finding in findings:
        own = finding.code == "arm-failed"
        key = (finding.severity, finding.code, finding.effect, None if own else finding.remedy)
        groups.setdefault(key, []).append(finding)
    return tuple(FindingGroup(tuple(group)) for group in groups.values())


def commands_of(trial: TrialSummary) -> list[tuple[str, Mapping[str, str], tuple[str, ...]]]:
    """What starts its server: one command, or one for each node, with whose it is; and the variables of each."""
    if not trial.ranks:
        return [("", trial.env, trial.command)]
    return [(f"# on {rank.node} (rank {rank.rank})", rank.env, rank.command) for rank in trial.ranks]


def command_lines(command: Sequence[str]) -> str:
    """A command as it could be pasted into a shell, one flag per line."""
    lines: list[str] = []
    for word in command:
        quoted = shlex.quote(word)
        if word.startswith("--") or not lines:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n  ".join(lines)
