"""How an engine's flags divide a server, and whether its parts fit the nodes that it is given."""

from __future__ import annotations

from collections.abc import Mapping

from spectune.domain.arm import Arm, FlagValue
from spectune.domain.study import Study
from spectune.engines.flags import normalise
from spectune.engines.registry import traits_for
from spectune.errors import BadInput


def parts_of(arm: Arm, shared: Mapping[str, FlagValue]) -> int:
    """What the engine's parallel flags multiply to; 1 without any, 0 for an engine whose flags do not say.

    ``shared``: the flags of every arm.
    """
    flags = {normalise(name): value for name, value in {**shared, **arm.flags}.items()}
    division = traits_for(arm.engine).division(flags)
    return 0 if division is None else division.devices


def gpus_of_arm(arm: Arm, study: Study) -> int:
    """On each of its nodes."""
    return -(-parts_of(arm, study.engine.flags) // study.nodes_per_server)


def check_divides(arm: Arm, shared: Mapping[str, FlagValue], *, nodes: int) -> None:
    """Raises ``BadInput`` for an arm whose parts cannot be divided evenly over the nodes of a server."""
    parts = parts_of(arm, shared)
    if parts % nodes:
        raise BadInput(
            f"its parallel flags multiply to {parts}, which cannot be divided over {nodes} nodes (`ray.nodes`); give "
            f"sizes whose product is a multiple of {nodes}, e.g. `flags: {{tensor-parallel-size: {nodes}}}`"
        )


def check_fits_nodes(study: Study, largest_gpus: float) -> None:
    """Raises ``BadInput`` for an arm whose server needs more GPUs of a node than any has."""
    nodes = study.nodes_per_server
    for arm in study.arms:
        wanted = gpus_of_arm(arm, study)
        if (study.cluster is None or study.cluster.gpus is None) and 0 < largest_gpus < wanted:
            whole = parts_of(arm, study.engine.flags)
            over = f"over {nodes} nodes that is {wanted} on each, " if nodes > 1 else ""
            enough = -(-whole // int(largest_gpus)) if largest_gpus >= 1 else None
            more = f"`ray: {{nodes: {enough}}}` spans more nodes; or lower" if enough else "Lower"
            raise BadInput(
                f"arm {arm.name}: its parallel flags multiply to {whole} GPUs, {over}and the largest node has "
                f"{largest_gpus:g}. {more} the parallel sizes"
            )
