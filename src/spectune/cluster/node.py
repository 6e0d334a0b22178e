"""What runs on a node of a cluster: the trials of one study, one after another, beside the servers they measure.

The driver asks for its progress all the time. When it no longer does, the
trial is cancelled, its server proven gone, and this process ends; when this
process is killed, the server's supervisor ends it by its lease.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spectune.cluster.follower import FollowerFacts, follower_place
from spectune.cluster.relay import Line
from spectune.cluster.worker import (
    end_servers_of_the_dead,
    models_here,
    on_these_gpus,
    owner_of,
    undo_niceness_of_ray,
    undo_variables_of_ray,
)
from spectune.cluster.worker_folders import Scratch
from spectune.domain.findings import Finding
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import EnvironmentFailed, NodeLost, SpectuneError, TeardownUnproven
from spectune.home import data_home
from spectune.hosts.local import local_host
from spectune.runner.events import TrialStart
from spectune.runner.launch import (
    ModelPaths,
    Place,
    end_kept,
    kept_server,
    launch_key,
    place_on,
    stop_leftovers,
    without_other_servers,
)
from spectune.runner.optional_flags import without_flags
from spectune.runner.order import block_of
from spectune.runner.trial import TrialTask, run_trial
from spectune.server.lifecycle import to_the_end
from spectune.store.abort import ask_to_abort
from spectune.store.study_dir import TrialDir

_LEAST_SILENCE_S = 20.0
_LOG_PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class NodeSetup:
    """What a node must know of the study; everything crosses as text."""

    study: str
    owner: str
    """The study's directory on the driver."""
    node_id: str
    place: str
    """The node's name, or one of several on the node."""
    places: tuple[str, ...]
    """All of the node; several of them work at the same time."""
    findings: str
    """By arm id: what a check found before the launch."""
    num_gpus: float
    name: str = ""
    address: str = ""
    """As the other nodes of a server reach this one."""


@dataclass(frozen=True)
class TrialOrder:
    """One trial to run. Its number and folder are the driver's."""

    name: str
    number: int
    arm_id: str
    repetition: int
    hypothesis: str
    goes_on: bool
    """Whether the next order is for the same server."""
    is_soak: bool = False


@dataclass(frozen=True)
class NodeReply:
    """What came of an order: the files of the trial's folder, and why the node can do no more, if so."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    error: str | None = None
    left: tuple[str, ...] | None = None
    """Set where a teardown could not be proven: what is left."""
    is_stopped: bool = False
    """It was told to stop."""
    is_lost: bool = False
    """Another node of its server was lost; nothing stands against this one."""


@dataclass
class NodeProgress:
    """What a node is doing."""

    phase: str = ""
    done: int = 0
    total: int = 0
    messages: list[str] = field(default_factory=list)
    log: bytes = b""
    """The server's log from where the driver has it on."""


class NodeRunner:
    """Made on the node by Ray; its methods never raise, since what they raised would have to be understood there."""

    def __init__(self, setup: NodeSetup, followers: Sequence[Line] = ()) -> None:
        """``followers``: to the ``NodeFollower`` of each other node of a server that spans several."""
        self._study = Study.model_validate_json(setup.study)
        self._setup = setup
        self._lines = tuple(followers)
        self._findings = {
            arm_id: tuple(Finding.model_validate(row) for row in rows)
            for arm_id, rows in json.loads(setup.findings).items()
        }
        self._progress = NodeProgress()
        self._num_heard = 0
        self._place: Place | None = None
        self._models = ModelPaths({})
        self._folder: Path | None = None
        """Of the trial that runs."""
        self._work: asyncio.Task[NodeReply] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        undo_variables_of_ray()
        if setup.num_gpus:
            self._study = on_these_gpus(self._study)

    async def begin(self, alive: Sequence[str], followers: Sequence[FollowerFacts] = ()) -> NodeReply:
        """Clears what earlier workers left here and finds the models. ``alive``: ids of the nodes that are.

        ``followers``: what the other nodes of a server have answered to the same.
        """
        self._watchdog = asyncio.create_task(self._end_when_forgotten())
        left = undo_niceness_of_ray()
        if left is not None:
            self._say(left)
        return await self._answer(self._begin(alive, followers))

    async def run(self, order: TrialOrder) -> NodeReply:
        """One trial to its record."""
        return await self._answer(self._run(order))

    async def progress(self, log_bytes: int = 0) -> NodeProgress:
        """What it is doing; messages are given once, and so much of the log is there already."""
        self._num_heard += 1
        now = self._progress
        self._progress = NodeProgress(now.phase, now.done, now.total)
        if self._folder is not None:
            now.log = _read_from(TrialDir(self._folder).log_path, log_bytes)
        return now

    async def abort(self) -> None:
        """Ends the trial that runs, as ``spectune watch`` ends one on this machine."""
        if self._folder is not None:
            ask_to_abort(self._folder)

    async def stop(self) -> NodeReply:
        """Cancels what runs; returns when no server is left. Nothing more may be asked of it."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        return await self._answer(self._end_kept())

    async def _answer(self, work: Coroutine[Any, Any, NodeReply]) -> NodeReply:
        self._num_heard += 1
        task = self._work = asyncio.ensure_future(work)
        try:
            return await task
        except asyncio.CancelledError:
            return NodeReply(error="stopped", is_stopped=True)
        except TeardownUnproven as error:
            return NodeReply(error=str(error), left=error.left)
        except NodeLost as error:
            return NodeReply(error=str(error), is_lost=True)
        except SpectuneError as error:
            return NodeReply(error=str(error))
        except OSError as error:
            return NodeReply(error=f"{error.filename or 'this node'}: {error.strerror or error}")
        finally:
            if self._work is task:
                self._work = None

    async def _begin(self, alive: Sequence[str], followers: Sequence[FollowerFacts]) -> NodeReply:
        setup = self._setup
        host = local_host(data_home())
        await end_servers_of_the_dead(
            host, study=setup.owner, node_id=setup.node_id, places=setup.places, alive=alive, say=self._say
        )
        mine = owner_of(setup.owner, setup.place, setup.node_id)
        place = await place_on(host, owner=mine, known=self._findings)
        if followers:  # whether the ranks that are left there belong together is not worth asking
            await stop_leftovers(place, on_message=self._say)
            places = (follower_place(line, facts) for line, facts in zip(self._lines, followers, strict=True))
            place = replace(place, alive=(), node=setup.name, address=setup.address, followers=tuple(places))
        self._place = place
        self._models = await models_here(self._study)
        return NodeReply()

    async def _run(self, order: TrialOrder) -> NodeReply:
        assert self._place is not None
        arm = self._study.arm(order.arm_id)
        if self._place.kept.server_id is not None:
            alive = await kept_server(self._place, on_message=self._say)
            self._place = replace(self._place, alive=alive)
        self._place = await without_other_servers(
            self._place,
            key=launch_key(arm, without_flags(self._study, self._place.lacking), self._models),
            block=block_of(arm, order.repetition, self._study),
            on_message=self._say,
        )
        hypothesis = Hypothesis.model_validate_json(order.hypothesis)
        scratch = Scratch("spectune-trial-")
        try:
            folder = scratch.folder / order.name
            folder.mkdir()
            self._folder = folder
            try:
                task = TrialTask(
                    arm=arm,
                    repetition=order.repetition,
                    number=order.number,
                    study=self._study,
                    hypothesis=hypothesis,
                    folder=TrialDir(folder),
                    models=self._models,
                    watcher=_NodeWatcher(self._progress_now, self._say),
                    is_soak=order.is_soak,
                )
                await run_trial(task, self._place, keeps=_keeps if order.goes_on else None)
            except TeardownUnproven as error:
                return NodeReply(_files_of(folder), str(error), error.left)
            finally:
                self._folder = None
                self._place = replace(self._place, alive=())
            return NodeReply(_files_of(folder))
        finally:
            scratch.remove()

    async def _end_kept(self) -> NodeReply:
        if self._place is not None:
            await to_the_end(end_kept(self._place))
        return NodeReply()

    async def _end_when_forgotten(self) -> None:
        """Nobody asks any more: the driver is dead or cut off, and its study goes on without this node.

        Seconds are counted, not read off a clock: a machine that was suspended, and its driver with it, is no silence.
        """
        limit_s = max(_LEAST_SILENCE_S, self._study.lease_s)
        silent_s, heard = 0.0, self._num_heard
        while silent_s < limit_s:
            await asyncio.sleep(1.0)
            silent_s, heard = (silent_s + 1.0 if heard == self._num_heard else 0.0), self._num_heard
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        try:
            await self._end_kept()
        except EnvironmentFailed:
            pass  # its supervisor ends it by its lease, and the next worker here looks for it
        finally:
            os._exit(1)

    def _progress_now(self) -> NodeProgress:
        return self._progress

    def _say(self, text: str) -> None:
        self._progress.messages.append(text)


class _NodeWatcher:
    """Keeps what the driver will ask for."""

    def __init__(self, progress: Callable[[], NodeProgress], say: Callable[[str], None]) -> None:
        self._progress = progress
        self.on_message = say

    def on_fetch(self, what: str, done_bytes: int, total_bytes: int | None) -> None: ...

    def on_study(self, study: Study, *, done: int, total: int) -> None: ...

    def on_trial_start(self, start: TrialStart) -> None: ...

    def on_nodes(self, rows: Sequence[Any]) -> None: ...

    def on_phase(self, phase: str) -> None:
        self._progress().phase = phase

    def on_progress(self, share: float) -> None: ...

    def on_request(self, done: int, total: int) -> None:
        progress = self._progress()
        progress.done, progress.total = done, total

    def on_trial_end(self, trial: Trial, trials: list[Trial]) -> None: ...


def _keeps(_trial: Trial) -> bool:
    return True


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_LOG_PIECE_BYTES)
    except OSError:
        return b""


def _files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
