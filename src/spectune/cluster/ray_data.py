"""Ray Data as it is used here: batches read on this machine, answered by a pool of actors, back in any order.

A batch is a text in a block of its own, and what comes of it is another one. So a call of an actor gives one block
or none, and a call that Ray repeats, because its process or node was killed, cannot give half of a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from spectune.cluster.ray_cluster import Cluster, Node, Worker, first_lines
from spectune.errors import BadInput, EnvironmentFailed

_COLUMN = "batch"
_AHEAD = 8
"""Batches that have come back and are not taken yet; while there are so many, Ray Data holds the others."""


@dataclass(frozen=True)
class Pool:
    """``size`` actors that hold a ``kind(*args)`` each, started again whenever they are killed."""

    kind: type
    """Calling its objects with a text gives an asynchronous iterator of one text."""
    args: tuple[object, ...]
    size: int
    calls_at_once: int
    """Of one actor; it is given no more than it works on."""
    bundle: Mapping[str, float]
    """Of one actor."""


@dataclass(frozen=True)
class Self:
    """The actor that asks, as the others know it."""

    actor_id: str
    """The same after it was started again."""
    job_id: str
    """Of the driver's run."""
    node_id: str
    pid: int
    handle: Any = field(repr=False)


def own_actor() -> Self:
    """To be asked in an actor."""
    import ray

    context = ray.get_runtime_context()
    return Self(
        actor_id=context.get_actor_id(),
        job_id=context.get_job_id(),
        node_id=context.get_node_id(),
        pid=os.getpid(),
        handle=context.current_actor,
    )


def kill_for_good(handle: Any) -> None:
    """The actor is not started again; whatever waits for its answer fails."""
    import ray

    ray.kill(handle, no_restart=True)


def check_ray_data(address: str) -> None:
    """Raises ``BadInput`` where Ray Data cannot be used."""
    if address != "ray":
        raise BadInput(
            f"host {address}: with --replicas the driver must be on a node of the cluster, since Ray Data reads the "
            "prompts there: run the same command on one, with `--set host=ray`"
        )
    # Else each pool is told that its arguments are in the object store, as those of every pool of Ray Data are.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"--replicas: Ray Data cannot be imported ({error}); install it: pip install 'spectune[ray]'"
        ) from error


def desk_here(cluster: Cluster, kind: type) -> Worker:
    """An actor beside the driver, without resources, that holds a ``kind()``; it ends with the driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node_id = ray.get_runtime_context().get_node_id()
    node = next((n for n in cluster.nodes() if n.node_id == node_id), Node(node_id, "this node", {}))
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = ray.remote(kind).options(num_cpus=0, scheduling_strategy=where).remote()
    return Worker(node, actor)


def ask_here(desk: Worker, method: str) -> Any:
    """What a method of an actor returns, for a process of Ray that has no event loop."""
    import ray

    return ray.get(getattr(desk.handle, method).remote())


async def stream(batches: Callable[[], Iterator[str]], pool: Pool) -> AsyncIterator[str]:
    """What the pool makes of each batch, as it comes; ``batches`` is called in a process on this node.

    Every batch is answered at least once if nothing is raised, and may be answered twice. Raises
    ``EnvironmentFailed``. Ends when ``batches`` has, and all of it is answered: until then the actors stay.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[str | None] = asyncio.Queue(maxsize=_AHEAD)
    ended: Future[None] = Future()

    def give(text: str | None) -> None:
        asyncio.run_coroutine_threadsafe(arrived.put(text), loop).result()

    def pull() -> None:
        try:
            for table in _dataset(batches, pool).iter_batches(
                batch_size=None, prefetch_batches=0, batch_format="pyarrow"
            ):
                for text in table[_COLUMN].to_pylist():
                    give(text)
            ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the end
            ended.set_exception(error)
        finally:
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                give(None)

    # A daemon, unlike the threads of a pool: one that Ray Data keeps waiting must not keep this process from its end.
    threading.Thread(target=pull, name="ray-data", daemon=True).start()
    while (text := await arrived.get()) is not None:
        yield text
    error = ended.exception()
    if error is not None:
        raise EnvironmentFailed(f"Ray Data ended: {first_lines(error)}") from error


def _dataset(batches: Callable[[], Iterator[str]], pool: Pool) -> Any:
    import pyarrow as pa
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    def read() -> Iterator[Any]:
        for text in batches():
            yield pa.table({_COLUMN: [text]})

    class Batches(Datasource):  # type: ignore[misc]
        """One task, which reads on and on: what it is ahead of the pool, Ray Data bounds."""

        def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> Sequence[Any]:
            unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
            return [ReadTask(read, unknown)]

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        @property
        def supports_distributed_reads(self) -> bool:
            return False  # the prompts are on this machine

    _silence()
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # bytes: a row is a block
    context.execution_no_progress_timeout_s = -1  # a large model may take longer to load
    amounts = dict(pool.bundle)
    with DataContext.current(context):
        dataset = ray.data.read_datasource(Batches(), override_num_blocks=1, num_cpus=0)
        return dataset.map_batches(
            _worker_class(pool.kind),
            fn_constructor_args=pool.args,
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                size=pool.size,
                max_tasks_in_flight_per_actor=pool.calls_at_once,
                max_concurrent_calls_per_actor=pool.calls_at_once,
            ),
            num_cpus=amounts.pop("CPU", 0),
            num_gpus=amounts.pop("GPU", 0),
            resources=amounts or None,
        )


def _worker_class(kind: type) -> type:
    class OnTexts(kind):  # type: ignore[misc]
        """Tables of one row in and out. Asynchronous, so that several calls of one actor are under way at once."""

        async def __call__(self, table: Any) -> AsyncIterator[dict[str, list[str]]]:
            for text in table[_COLUMN].to_pylist():
                async for answer in super().__call__(text):
                    yield {_COLUMN: [answer]}

    return OnTexts


def _silence() -> None:
    """Ray Data says much about what is meant here: few inputs, a reader that waits, actors that are killed."""
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"ray\.data")
