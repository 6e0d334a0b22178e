"""The ranks of a server over several nodes, as they are written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spectune.domain.secrets import redact_argv, redact_env
from spectune.domain.trial import RankRecord
from spectune.server.lifecycle import LaunchPlan
from spectune.server.ranks import RankState


def rank_records(states: Sequence[RankState]) -> tuple[RankRecord, ...]:
    """Empty for a server on one node."""
    return tuple(
        RankRecord(
            rank=state.plan.number,
            node=state.plan.node,
            command=redact_argv(state.plan.command.argv),
            env=redact_env(state.plan.command.env),
            log=state.plan.log_path.name,
            phases_s={name: round(seconds, 4) for name, seconds in state.clock.seconds.items()},
            ended=state.ended,
            stop=state.stop,
        )
        for state in states
    )


def planned_ranks(plan: LaunchPlan) -> list[dict[str, Any]]:
    """Before the launch."""
    ranks = [plan.as_rank(), *plan.followers] if plan.followers else []
    return [
        {
            "rank": rank.number,
            "node": rank.node,
            "command": list(redact_argv(rank.command.argv)),
            "env": redact_env(rank.command.env),
        }
        for rank in ranks
    ]
