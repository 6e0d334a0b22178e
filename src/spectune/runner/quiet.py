"""Is this machine quiet enough to measure on? It is said before the first launch, and acted on after two equal ones."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from spectune.analysis.noise import equal_launch_logs, typical_frac
from spectune.analysis.words import listing, one_line, percent
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import Interrupted
from spectune.hosts.facts import HostFacts
from spectune.hosts.host import Host
from spectune.statistics.intervals import t_quantile
from spectune.statistics.launches import mean_var

BUSY_SHARE = 0.1
"""Of the cores that a server may use: others that use more are named, and waited for."""
BUSY_GPU_PERCENT = 10
WAIT_FOR_QUIET_S = 120.0
LOOK_EVERY_S = 5.0
TYPICAL_MARGINS = 10
"""A machine is noisy if one prompt's speed typically differs by so many margins between two equal launches."""
TYPICAL_FRAC = 0.2
"""And by so much at least."""

Look = Callable[[], Awaitable[str | None]]
"""Says who is at work on the host besides us; ``None``: nobody who would disturb."""
Ask = Callable[[str], Awaitable[bool]]
"""Puts a question to a person; ``False``: the study is to end here."""


@dataclass(frozen=True)
class Patience:
    """What a run does on a noisy machine."""

    wait_s: float = WAIT_FOR_QUIET_S
    """How long it waits for other programs to end, at most; 0: it goes on at once and asks nobody."""
    ask: Ask | None = None
    """``None``: there is nobody to ask, so the run goes on, marked as noisy."""
    look: Look | None = None
    """``None``: the host is asked who is at work."""


def others_at_work(facts: HostFacts) -> str | None:
    """Who uses the processors and GPUs of a host where nothing of ours runs; ``None``: too little to disturb."""
    parts = []
    busy, usable = facts.busy, facts.machine.cores
    free = None if busy is None else busy.free_cores
    if busy is not None and free is not None and usable is not None and free < (1 - BUSY_SHARE) * usable:
        names = listing(f"pid {user.pid} {one_line(user.command, limit=40)}" for user in busy.users[:3])
        parts.append(f"{busy.cores:.1f} of {busy.of_cores} cores{f' ({names})' if names else ''}")
    for gpu in facts.gpus or ():
        if gpu.use_percent is not None and gpu.use_percent >= BUSY_GPU_PERCENT:
            parts.append(f"{gpu.use_percent} % of GPU {gpu.index}")
    return f"other programs use {listing(parts)}" if parts else None


def looking_at(host: Host) -> Look:
    """``others_at_work`` on ``host``, each time it is called."""

    async def look() -> str | None:
        return others_at_work(await host.facts(gpus=True, busy=True))

    return look


def equal_launches_differ(study: Study, trials: Sequence[Trial]) -> str | None:
    """How the baseline's last two launches contradict each other; ``None``: they agree, or too few prompts can tell.

    They do if their speeds differ by more than the study's margin beyond what their prompts explain, so that equal
    launches would be called different, or if one prompt's speed typically differs by ten margins.
    """
    logs = equal_launch_logs(study, trials)
    if len(logs) < 3:
        return None
    mean, var = mean_var(logs)
    assert var is not None
    error = math.sqrt(var / len(logs)) * t_quantile((1 + study.level) / 2, len(logs) - 1)
    if abs(mean) - error > math.log1p(study.margin):
        return f"two equal launches of the baseline differ by {percent(math.expm1(abs(mean)))}"
    typical = typical_frac(logs)
    if typical > max(TYPICAL_FRAC, TYPICAL_MARGINS * study.margin):
        return f"the same prompt typically differs by {percent(typical)} between two equal launches of the baseline"
    return None


async def wait_for_quiet(
    look: Look,
    *,
    limit_s: float,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Who is still at work after at most ``limit_s``; ``None`` as soon as two looks in a row saw nobody."""
    until, quiet_looks = clock() + limit_s, 0
    while True:
        others = await look()
        quiet_looks = quiet_looks + 1 if others is None else 0
        if quiet_looks == 2:
            return None
        if clock() >= until:
            return others
        await sleep(min(LOOK_EVERY_S, until - clock()))


class NoiseWatch:
    """Decides after the noise floor of one run whether to go on; waits at most once."""

    def __init__(self, look: Look, patience: Patience, *, say: Callable[[str], None]) -> None:
        self._look = look
        self._patience = patience
        self._say = say
        self._waited = False

    async def before_the_first_launch(self) -> None:
        if others := await self._look():
            self._say(f"this machine is busy: {others}; what is measured beside them is uncertain")

    async def after_equal_launches(self, study: Study, trials: Sequence[Trial]) -> tuple[bool, str | None]:
        """Whether to launch the baseline twice more, now that it is quiet; else why this study is noisy, if it is.

        Raises ``Interrupted`` if a person does not want to go on.
        """
        differ = equal_launches_differ(study, trials)
        if differ is None:
            return False, None
        if self._patience.wait_s <= 0:
            self._say(f"this machine is noisy: {differ}; going on, as asked for")
            return False, _mark(differ)
        others, waited = await self._look(), ""
        if others is not None and not self._waited:
            self._waited = True
            waited = f", after {self._patience.wait_s:.0f} s of waiting"
            self._say(
                f"this machine is noisy: {differ}, and {others}; waiting for quiet, at most "
                f"{self._patience.wait_s:.0f} s (--noisy goes on at once)"
            )
            others = await wait_for_quiet(self._look, limit_s=self._patience.wait_s)
            if others is None:
                self._say("it is quiet now: the baseline is launched twice again")
                return True, None
        told = differ if others is None else f"{differ}, and {others}{waited}"
        if self._patience.ask is None:
            self._say(f"this machine is noisy: {told}; going on, and the report says so")
        elif not await self._patience.ask(f"This machine is noisy: {told}."):
            raise Interrupted("stopped, because this machine is too noisy")
        return False, _mark(differ if others is None else f"{differ}, while other programs were at work")


def _mark(reason: str) -> str:
    return f"This machine was noisy: {reason}."
