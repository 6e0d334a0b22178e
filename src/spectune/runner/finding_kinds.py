"""Every finding that spectune can make, by the part that makes it: the source of ``docs/findings``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from spectune.diagnose import judge as diagnose_rules
from spectune.domain.findings import FindingKind
from spectune.errors import BadInput
from spectune.preflight import draft_fit, flags_rules, memory
from spectune.report import finding_kinds as report_kinds
from spectune.runner import check_sources
from spectune.server import admission, neighbours

GROUPS: tuple[tuple[str, str, tuple[FindingKind, ...]], ...] = (
    ("Draft and target", "check", (*check_sources.KINDS, *draft_fit.KINDS)),
    ("Flags", "check", flags_rules.KINDS),
    ("Memory", "check", memory.KINDS),
    ("Logs and running servers", "diagnose", diagnose_rules.KINDS),
    ("The host, before a launch", "run", admission.KINDS),
    ("Measurements", "run", (*report_kinds.KINDS, *neighbours.KINDS)),
)
"""Title, the command that makes them, the kinds."""
KINDS: tuple[FindingKind, ...] = tuple(kind for _, _, kinds in GROUPS for kind in kinds)
SLOWING = frozenset(kind.code for kind in KINDS if kind.slows)


def check_codes(codes: Iterable[str]) -> None:
    """Raises ``BadInput`` for a code that ``check`` never gives."""
    known = [kind.code for _, command, kinds in GROUPS if command == "check" for kind in kinds]
    for code in codes:
        if code not in known:
            near = difflib.get_close_matches(code, known, n=3) or known[:3]
            raise BadInput(
                f"--allow {code}: check has no such finding; near: {', '.join(near)} (all: docs/findings)"
            )
