"""A Ray cluster: its nodes, and a worker process on one of them for as long as it is needed.

Ray is imported when a cluster is connected, never before (extra ``ray``).
Workers that serve together live in one placement group with a bundle on each of
their nodes, so that what they ask for is held for them and for nobody else. What Ray says of a dead worker or node
comes out as ``NodeLost``; whether its last task was executed is then unknown,
so a result counts only when it has been received.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import spectune
from spectune.domain.machine import Machine
from spectune.errors import BadInput, EnvironmentFailed, NodeLost
from spectune.hosts import supervisor
from spectune.hosts.facts import read_host_facts

_POLL_S = 0.1
_ANSWER_S = 10.0
"""For a head to take a connection."""
_SAY_AFTER_S = 10.0
_CALLS_AT_ONCE = 16
"""Of one worker: it answers questions while it works."""
_ASK_PATIENCE_S = 300.0
"""A node that is alive and busy starts a process for the first question to it."""
_NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True)
class Node:
    """A living node. ``name`` is its Ray node name, made unique; it stays the same when Ray is started again."""

    node_id: str
    name: str
    resources: Mapping[str, float]
    """All it has, whether free or not."""
    address: str = "127.0.0.1"
    """As the other nodes reach it."""

    def has(self, bundle: Mapping[str, float]) -> bool:
        return all(self.resources.get(name, 0.0) >= amount for name, amount in bundle.items())


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself."""

    machine: Machine
    source_digest: str
    """Of the spectune installed there."""


class Worker:
    """A process on a node. Its object's methods are called one by one; several may be under way."""

    def __init__(self, node: Node, actor: Any) -> None:
        self.node = node
        self.handle = actor

    async def call(self, method: str, *args: object) -> Any:
        """What the method returns; raises ``NodeLost``."""
        return await _received(getattr(self.handle, method).remote(*args), self.node)


class Reservation:
    """What is held of some nodes, and the workers there."""

    def __init__(
        self, ray: Any, nodes: Sequence[Node], group: Any, bundle: Mapping[str, float], strategies: Any
    ) -> None:
        self._ray = ray
        self._nodes = nodes
        self._group = group
        self._bundle = bundle
        self._strategies = strategies
        self._actors: list[Any] = []

    def worker(self, index: int, kind: type, *args: object) -> Worker:
        """A process on the node of this index that holds a ``kind(*args)`` and all that is held there."""
        amounts = dict(self._bundle)
        options = {
            "num_cpus": amounts.pop("CPU", 0),
            "num_gpus": amounts.pop("GPU", 0),
            "resources": amounts,
            "max_concurrency": _CALLS_AT_ONCE,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": self._strategies.PlacementGroupSchedulingStrategy(self._group, index),
        }
        actor = self._ray.remote(kind).options(**options).remote(*args)
        self._actors.append(actor)
        return Worker(self._nodes[index], actor)

    def end_workers(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(*_ray_errors()):
                self._ray.kill(actor, no_restart=True)


class Cluster:
    """A connected cluster. Ray allows one connection per process, so this one lasts until the process ends."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._facts: dict[str, NodeFacts] = {}
        self._ray = _connect(address)

    def nodes(self) -> list[Node]:
        """Those alive, in the order of their names."""
        try:
            rows = [row for row in self._ray.nodes() if row["Alive"]]
        except Exception as error:
            raise EnvironmentFailed(
                f"{self.address}: the cluster does not answer: {first_lines(error)}"
            ) from error
        names = Counter(_name(row) for row in rows)
        found = []
        for row in rows:
            name = _name(row)
            name = name if names[name] == 1 else f"{name}-{row['NodeID'][:6]}"
            resources = dict(row.get("Resources") or {})
            found.append(Node(row["NodeID"], name, resources, str(row["NodeManagerAddress"])))
        return sorted(found, key=lambda node: node.name)

    async def facts(self, node: Node) -> NodeFacts:
        """Asked of the node once; raises ``NodeLost``, and ``EnvironmentFailed`` where spectune is not installed."""
        if node.node_id not in self._facts:
            affinity = self._strategies().NodeAffinitySchedulingStrategy(node.node_id, soft=False)
            task = self._ray.remote(_node_facts).options(
                num_cpus=0, max_retries=0, scheduling_strategy=affinity
            )
            try:
                async with asyncio.timeout(_ASK_PATIENCE_S):
                    reply = await _received(task.remote(), node)
            except TimeoutError:
                raise NodeLost(f"{node.name}: no answer within {_ASK_PATIENCE_S:.0f} s") from None
            machine = read_host_facts(reply["host"]).machine
            self._facts[node.node_id] = NodeFacts(machine, reply["digest"])
        return self._facts[node.node_id]

    @asynccontextmanager
    async def reserve(
        self,
        nodes: Sequence[Node],
        *,
        bundle: Mapping[str, float],
        on_message: Callable[[str], None] = lambda _text: None,
    ) -> AsyncIterator[Reservation]:
        """``bundle`` of the resources of each of these nodes, all or none; free again afterwards, its workers gone.

        Waits while others hold what is asked for; raises ``NodeLost`` if a node dies meanwhile.
        """
        group = self._ray.util.placement_group(
            [dict(bundle)] * len(nodes),
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_LABEL: node.node_id} for node in nodes],
        )
        held = Reservation(self._ray, nodes, group, bundle, self._strategies())
        try:
            await self._until_placed(group, nodes, bundle, on_message)
            yield held
        finally:
            held.end_workers()
            with contextlib.suppress(*_ray_errors()):
                self._ray.util.remove_placement_group(group)

    async def _until_placed(
        self,
        group: Any,
        nodes: Sequence[Node],
        bundle: Mapping[str, float],
        on_message: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        began, said = loop.time(), False
        while self._ray.util.placement_group_table(group).get("state") != "CREATED":
            alive = {node.node_id for node in self.nodes()}
            gone = next((node for node in nodes if node.node_id not in alive), None)
            if gone is not None:
                raise NodeLost(f"{gone.name}: the node is gone")
            if not said and loop.time() - began > _SAY_AFTER_S:
                said = True
                names = " and ".join(node.name for node in nodes)
                on_message(f"waiting for {bundle_words(bundle)} of {names}, which other work holds")
            await asyncio.sleep(_POLL_S)

    def _strategies(self) -> Any:
        from ray.util import scheduling_strategies

        return scheduling_strategies


@cache
def cluster_called(address: str) -> Cluster:
    """The cluster of ``ray`` or ``ray://HEAD:PORT``, connected; raises ``BadInput`` or ``EnvironmentFailed``."""
    return Cluster(address)


def bundle_words(bundle: Mapping[str, float]) -> str:
    """``2 CPU, 1 GPU``."""
    return ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())


@cache
def source_digest() -> str:
    """Of the spectune that runs here: two installations with the same one are the same program."""
    digest = hashlib.sha256()
    folder = Path(spectune.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _node_facts() -> dict[str, Any]:
    """Runs on the node."""
    return {"host": supervisor.host_facts({"gpus": True}), "digest": source_digest()}


def _init(ray: Any, where: str) -> None:
    with _own_signal_handlers():
        ray.init(
            address=where,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            namespace="spectune",
        )


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise BadInput(
            f"host {address}: needs Ray, which {sys.executable} cannot import ({error}); "
            "install it: pip install 'spectune[ray]'"
        ) from error
    if ray.is_initialized():
        return ray
    where = "auto" if address == "ray" else address
    hint = (
        "start one with `ray start --head`, set RAY_ADDRESS, or give `host: ray://HEAD:10001`"
        if address == "ray"
        else "is it the head's client port (10001 by default)? does `ray status` work there?"
    )
    silent = _silence_of(os.environ.get("RAY_ADDRESS", "") if address == "ray" else address)
    if silent is not None:
        raise EnvironmentFailed(f"host {address}: no Ray cluster: {silent}\n{hint}")
    try:
        try:
            _init(ray, where)
        except ConnectionAbortedError:
            # Ray's head looks through all processes as it lets a client in, and fails if one ends meanwhile.
            time.sleep(1.0)
            _init(ray, where)
    except Exception as error:
        raise EnvironmentFailed(f"host {address}: no Ray cluster: {first_lines(error)}\n{hint}") from error
    return ray


def _silence_of(address: str) -> str | None:
    """Why nobody answers at ``HOST:PORT``; ``None`` if somebody does, or if the address is of another form.

    Ray itself tries for minutes.
    """
    name, _, port = address.removeprefix("ray://").rpartition(":")
    if not name or not port.isdigit():
        return None
    try:
        with socket.create_connection((name.strip("[]"), int(port)), timeout=_ANSWER_S):
            return None
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{name}:{port}: {reason}"


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Ray sets handlers of its own in the main thread; ours stop what we started, and are put back."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):  # not the main thread: nothing was changed either
                signal.signal(number, handler)


def _ray_errors() -> tuple[type[Exception], ...]:
    from ray.exceptions import RayError

    return (RayError, ConnectionError, ValueError)


async def _received(ref: Any, node: Node) -> Any:
    """The value behind a reference, once it is here."""
    from ray.exceptions import RayError, RayTaskError, RuntimeEnvSetupError

    answer = asyncio.wrap_future(ref.future())
    answer.add_done_callback(
        lambda done: None if done.cancelled() else done.exception()
    )  # if nobody waits for it
    try:
        return await asyncio.shield(answer)
    except RayTaskError as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, ImportError):
            raise EnvironmentFailed(
                f"{node.name}: cannot import spectune there ({cause}); install the same version on every node"
            ) from error
        raise EnvironmentFailed(f"{node.name}: {type(cause).__name__}: {first_lines(cause)}") from error
    except RuntimeEnvSetupError as error:
        raise EnvironmentFailed(f"{node.name}: {first_lines(error)}") from error
    except (RayError, ConnectionError) as error:
        raise NodeLost(f"{node.name}: {first_lines(error)}") from error


def first_lines(error: BaseException) -> str:
    """The first lines of what Ray says, which may be pages long; of a traceback the last, which says what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        lines = [lines[0].removesuffix("Traceback (most recent call last):").strip(), lines[-1]]
    return " ".join(lines[:2])[:300] or type(error).__name__


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("NodeName") or row.get("NodeManagerHostname") or row["NodeManagerAddress"])


def largest_kind(nodes: Sequence[tuple[Node, Machine]]) -> list[tuple[Node, Machine]]:
    """The nodes of the kind of machine that most are of; of equals the first by name."""
    groups: dict[object, list[tuple[Node, Machine]]] = {}
    for node, machine in nodes:
        groups.setdefault(machine.kind, []).append((node, machine))
    return max(groups.values(), key=len, default=[])
