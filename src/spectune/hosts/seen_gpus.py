"""Which devices of a host can a server use? Its variables say it, and the options of its container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spectune.engines.containers import given_gpus, is_container, variables_inside
from spectune.hosts.facts import Gpu


def gpus_of_launch(
    gpus: Sequence[Gpu], argv: Sequence[str], env: Mapping[str, str], *, exported: Mapping[str, str]
) -> list[Gpu]:
    """The devices for ``argv``, started with the variables ``env``; ``exported`` are the host's own."""
    if is_container(argv):
        return gpus_of_container(gpus, given_gpus(argv), variables_inside(argv, env))
    return visible_gpus(gpus, {**exported, **env})


def gpus_of_container(gpus: Sequence[Gpu], given: Sequence[str] | None, env: Mapping[str, str]) -> list[Gpu]:
    """The devices ``given`` to a container (``None``: perhaps all) that its own variables leave.

    Inside, devices are counted anew from 0.
    """
    there = list(gpus)
    if given is not None and gpus and gpus[0].maker == "nvidia":
        there = _chosen(gpus, given, by_position=False)
    inside = [replace(gpu, index=position) for position, gpu in enumerate(there)]
    return [replace(gpu, index=there[gpu.index].index) for gpu in visible_gpus(inside, env)]


def visible_gpus(gpus: Sequence[Gpu], env: Mapping[str, str]) -> list[Gpu]:
    """The devices that a process with these variables may use: all where a name says nothing that can be understood.

    Of a MIG instance it is the device that it is a part of, without the memory figures, which are the whole device's.
    """
    seen = list(gpus)
    for number, names in enumerate(_VISIBLE_BY[gpus[0].maker] if gpus else ()):
        text = next((env[name] for name in names if name in env), None)
        if text is not None:
            seen = _chosen(seen, text.split(","), by_position=number > 0)
    return seen


_VISIBLE_BY: Mapping[str, Sequence[Sequence[str]]] = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}
"""Variables that choose among what the ones before them left, and among these the first that is set."""


def _chosen(gpus: Sequence[Gpu], names: Sequence[str], *, by_position: bool) -> list[Gpu]:
    found: dict[str, Gpu] = {}
    for name in map(str.strip, names):
        if name.startswith("MIG-"):
            part_of = [g for g in gpus if name in g.mig or g.uuid in name]
            fitting = [replace(gpu, used_mib=None, total_mib=None) for gpu in part_of]
        else:
            fitting = [
                gpu
                for position, gpu in enumerate(gpus)
                if name == str(position if by_position else gpu.index)
                or (len(name) > 3 and gpu.uuid.startswith(name))
            ]
        if not fitting and name.startswith(("MIG-", "GPU-")):
            return list(gpus)
        if not fitting:
            break  # as the drivers do: what comes after a name that is none is not looked at
        found.setdefault(fitting[0].uuid, fitting[0])
    return list(found.values())
