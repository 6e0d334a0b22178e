"""``run_on_cluster``: a study whose arms run side by side on the nodes of a Ray cluster.

Each node, or set of nodes that serve together, is a lane: the baseline first, then arms as the queue gives them, the
baseline again after every few and at the end. Measuring happens on the node;
this process alone writes the record. A trial counts once its record has been
received and is on disk. Whatever was under way on a node that is lost is put
back into the queue, and nothing else is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from spectune.analysis.noise import describe_equal_launches
from spectune.analysis.pooling import speed_by_prompt
from spectune.cluster.node import NodeProgress, NodeReply, TrialOrder
from spectune.cluster.nodes import NodePool
from spectune.cluster.ray_cluster import Cluster, Node, Worker
from spectune.cluster.schedule import ClusterSchedule
from spectune.cluster.team import Team, TeamSetup, Unfit, team_on
from spectune.domain.findings import Finding
from spectune.domain.machine import Machine
from spectune.domain.study import PlannedTrial
from spectune.domain.trial import Trial
from spectune.errors import EnvironmentFailed, NodeLost, TeardownUnproven
from spectune.runner.events import NodeRow, Watcher
from spectune.runner.hypotheses import judged
from spectune.runner.lanes import bundle_of_all, place_of, sets_of
from spectune.runner.schedule import SOAK_REPETITION, StudyOutcome
from spectune.runner.study import one_run, record_can_be_written, until_asked_to_end
from spectune.server.lifecycle import to_the_end
from spectune.statistics.intervals import SpeedSample
from spectune.store.abort import is_abort_asked
from spectune.store.progress import ProgressFile
from spectune.store.study_dir import StudyDir, TrialDir

_LOOK_EVERY_S = 1.0
_ASK_EVERY_S = 1.0
_ANSWER_S = 30.0
_NODES_BACK_S = 60.0


async def run_on_cluster(
    directory: StudyDir,
    *,
    cluster: Cluster,
    watcher: Watcher,
    retry_failed: bool = False,
    findings: Mapping[str, Sequence[Finding]] | None = None,
) -> StudyOutcome:
    """Runs what is left of the study; the same record, and the same guarantees, as ``run_study`` on one host.

    Raises ``EnvironmentFailed`` if no node can go on, and ``TeardownUnproven``,
    after the other nodes have done the work, if one could not prove a stop.
    """
    with one_run(directory):
        run = _ClusterRun(directory, cluster, watcher, retry_failed=retry_failed, findings=findings or {})
        outcome = await until_asked_to_end(run.to_its_end(), directory)
        if run.unproven is not None:
            raise run.unproven
        return outcome


class _ClusterRun:
    """The lanes of one run."""

    def __init__(
        self,
        directory: StudyDir,
        cluster: Cluster,
        watcher: Watcher,
        *,
        retry_failed: bool,
        findings: Mapping[str, Sequence[Finding]],
    ) -> None:
        self.unproven: TeardownUnproven | None = None
        self._directory = directory
        self._cluster = cluster
        self._watcher = watcher
        self._findings = findings
        self._wake = asyncio.Event()
        self._work = ClusterSchedule(
            directory, retry_failed=retry_failed, findings=findings, on_message=watcher.on_message
        )
        self._nodes = NodePool(
            cluster, self._work.study, on_message=watcher.on_message, on_change=self._wake.set
        )
        self._lanes: dict[str, asyncio.Task[None]] = {}
        """By place; ``_nodes_of`` says on which nodes that is."""
        self._nodes_of: dict[str, frozenset[str]] = {}
        self._rows: dict[str, NodeRow] = {}
        self._faults: list[BaseException] = []
        self._without_nodes_since: float | None = None

    async def to_its_end(self) -> StudyOutcome:
        work = self._work
        self._watcher.on_study(
            work.study, done=len(work.study.plan) - work.num_open, total=len(work.study.plan)
        )
        try:
            await self._until_over()
            if self._sets() and work.ask_for_soak():
                nodes = self._sets()[0]
                await self._lane(nodes, self._places(nodes)[0])
        finally:
            await to_the_end(self._end_lanes())
        return work.outcome()

    async def _until_over(self) -> None:
        while True:
            self._nodes.look()
            self._start_lanes()
            if not self._lanes and not self._nodes.is_asking and self._is_over():
                return
            self._watcher.on_nodes([row for _, row in sorted(self._rows.items())])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._faults:
                raise self._faults[0]

    def _is_over(self) -> bool:
        """Whether the study can end here; raises if there is work, and no node for it."""
        work = self._work
        if (
            not work.arms_wait()
            or work.over_budget()
            or self.unproven is not None
            or work.is_without_baseline
        ):
            return True
        size = work.study.nodes_per_server
        if len(self._nodes.usable) >= size:
            self._without_nodes_since = None
            return False
        if self._nodes.most_usable >= size:  # they may come back: a restart, or what starts nodes on demand
            now = asyncio.get_running_loop().time()
            if self._without_nodes_since is None:
                self._without_nodes_since = now
                left = "no node is left" if size == 1 else f"fewer than {size} nodes are left"
                self._watcher.on_message(f"{left}; waiting {_NODES_BACK_S:.0f} s for more")
            if now - self._without_nodes_since < _NODES_BACK_S:
                return False
        usable = [f"  {node.name}: it can be used" for node in self._nodes.usable]
        reasons = (
            "\n".join([*usable, *(f"  {reason}" for reason in self._nodes.reasons)]) or "  none is alive"
        )
        enough = "no node" if size == 1 else f"no {size} nodes"
        raise EnvironmentFailed(
            f"{self._cluster.address}: {enough} of the cluster can go on with this study:\n{reasons}\n"
            "What was measured is kept. A trial asks for all processors of a node unless the study says "
            "`ray: {cpus: N}`, and with vLLM and SGLang for a GPU unless `ray: {gpus: 0}`"
        )

    # lanes

    def _sets(self) -> list[tuple[Node, ...]]:
        """Nodes that serve together, out of those that are in no lane; each alone where a server needs one."""
        work = self._work
        nodes = sorted(self._nodes.usable, key=lambda n: (n.name != work.noise_place, n.name))
        size = work.study.nodes_per_server
        if size == 1:
            return [(node,) for node in nodes]
        busy = {node_id for ids in self._nodes_of.values() for node_id in ids}
        by_name = {node.name: node for node in nodes if node.node_id not in busy}
        before = dict.fromkeys([*filter(None, [work.noise_place]), *(t.place for t in work.trials)])
        return [
            tuple(by_name[name] for name in names) for names in sets_of(list(by_name), size, before=before)
        ]

    def _places(self, nodes: Sequence[Node]) -> list[str]:
        """A place for each trial that runs on these nodes at once."""
        settings = self._work.study.cluster
        count = 1 if settings is None else settings.trials_per_node
        name = place_of([node.name for node in nodes])
        return [name] if count == 1 else [f"{name}/{slot}" for slot in range(count)]

    def _start_lanes(self) -> None:
        settings = self._work.study.cluster
        most = None if settings is None else settings.max_nodes
        for nodes in self._sets():
            ids = {node.node_id for node in nodes}
            if most is not None and len(ids.union(*self._nodes_of.values())) > most:
                continue
            for place in self._places(nodes):
                if place not in self._lanes and self._work.wants_lane(place, list(self._lanes)):
                    self._nodes_of[place] = frozenset(ids)
                    self._lanes[place] = asyncio.create_task(self._lane(nodes, place))
                    self._lanes[place].add_done_callback(self._lane_ended)

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._faults.append(fault)
        self._wake.set()

    async def _lane(self, nodes: tuple[Node, ...], place: str) -> None:
        """Takes work and has it done until there is none for it; what a lost node did not do goes back."""
        work = self._work
        if work.study.noise_floor and work.noise_place is None:
            work.noise_place = place
        bundle = bundle_of_all(work.study, [node.resources for node in nodes])
        assert bundle is not None
        with record_can_be_written(self._directory):
            try:
                facts = await self._cluster.facts(nodes[0])
                async with self._cluster.reserve(
                    nodes, bundle=bundle, on_message=self._watcher.on_message
                ) as held:
                    team = team_on(held, nodes, self._setup(nodes, place, bundle))
                    try:
                        async with team.heard():
                            if await self._begin(team, place):
                                await self._work_through(team, place, facts.machine)
                    finally:
                        for unfit in await to_the_end(team.stop()):
                            self._give_up(unfit)
            except NodeLost as error:
                self._watcher.on_message(f"lost: {error}")
                trial = work.lost(place)
                if trial is not None:
                    self._watcher.on_trial_end(trial, work.trials)
            except EnvironmentFailed as error:
                for node in nodes:
                    self._nodes.leave_out(node, str(error))
            finally:
                work.put_back(place)
                self._lanes.pop(place, None)
                self._nodes_of.pop(place, None)
                self._rows.pop(place, None)

    def _setup(self, nodes: Sequence[Node], place: str, bundle: Mapping[str, float]) -> TeamSetup:
        return TeamSetup(
            study=self._work.study,
            owner=str(self._directory.path.resolve()),
            place=place,
            places=tuple(self._places(nodes)),
            findings=self._findings,
            num_gpus=bundle.get("GPU", 0.0),
        )

    async def _begin(self, team: Team, place: str) -> bool:
        """Whether the workers can be given trials."""
        alive = [n.node_id for n in self._cluster.nodes()]
        unfit = await team.begin_followers(alive)
        for text in team.messages:
            self._watcher.on_message(text)
        if unfit is None:
            reply = await self._watched(team.worker, place, "begin", alive, team.facts)
            unfit = None if reply.error is None else Unfit(team.nodes[:1], reply)
        if unfit is None:
            return True
        self._give_up(unfit)
        return False

    async def _work_through(self, team: Team, place: str, machine: Machine) -> None:
        baseline = self._work.study.baseline.arm_id
        while block := self._work.take(place):
            for index, planned in enumerate(block):
                goes_on = index + 1 < len(block)
                trial = await self._one_trial(team, place, machine, planned, goes_on=goes_on)
                if trial is None:
                    return
                if trial.status == "failed" and planned.arm_id == baseline:
                    failure = trial.failure
                    cause = failure.cause if failure is not None else "cause unknown"
                    for node in team.at_fault(None if failure is None else failure.node):
                        self._nodes.leave_out(node, f"the baseline fails on it: {cause}")
                    return

    async def _one_trial(
        self, team: Team, place: str, machine: Machine, planned: PlannedTrial, *, goes_on: bool
    ) -> Trial | None:
        """The trial, on disk; ``None`` if the nodes can do no more. Raises ``NodeLost``."""
        work = self._work
        study, arm = work.study, work.study.arm(planned.arm_id)
        is_soak = planned.repetition == SOAK_REPETITION
        hypothesis = work.hypothesis(planned)
        number, folder = self._directory.new_trial(arm.arm_id)
        work.num_lanes = max(1, len(self._lanes))
        self._watcher.on_trial_start(work.start(number, planned, hypothesis, place))
        order = TrialOrder(
            name=folder.path.name,
            number=number,
            arm_id=arm.arm_id,
            repetition=planned.repetition,
            hypothesis=hypothesis.model_dump_json(),
            goes_on=goes_on,
            is_soak=is_soak,
        )
        reply = await self._watched(team.worker, place, "run", order, arm=arm.name, folder=folder)
        trial = folder.receive(reply.files)
        if trial is not None:
            own = SpeedSample(arm.arm_id, number, speed_by_prompt(trial.loads[:1]), place)
            if trial.failure is None and not is_soak:
                hypothesis = judged(hypothesis, own, trial.loads, study=study, trials=work.trials)
            trial = trial.model_copy(update={"node": place, "machine": machine, "hypothesis": hypothesis})
            folder.finish(trial)
            work.count(trial, planned, place)
            self._tell(trial, place)
        if reply.error is not None:
            self._give_up(Unfit(team.nodes, reply))
            return None
        return trial

    async def _watched(
        self,
        worker: Worker,
        place: str,
        method: str,
        *arguments: object,
        arm: str = "",
        folder: TrialDir | None = None,
    ) -> NodeReply:
        """The answer, while the node is asked for its progress: that is what tells it that we are there."""
        working = asyncio.ensure_future(worker.call(method, *arguments))
        file = None if folder is None else ProgressFile(folder.path, hostname=place)
        try:
            while True:
                await asyncio.wait({working}, timeout=_ASK_EVERY_S)
                if working.done():
                    reply: NodeReply = working.result()
                    if reply.is_lost:
                        raise NodeLost(reply.error or "a node is gone")
                    return reply
                with contextlib.suppress(NodeLost, TimeoutError):  # if it is lost, `working` says so
                    async with asyncio.timeout(_ANSWER_S):
                        await self._follow(worker, place, arm, folder, file)
        finally:
            working.cancel()

    async def _follow(
        self, worker: Worker, place: str, arm: str, folder: TrialDir | None, file: ProgressFile | None
    ) -> None:
        """One look at the node: its progress, what it says, the next piece of the log, and a wish to abort it."""
        have = 0
        if folder is not None:
            if is_abort_asked(folder.path):
                await worker.call("abort")
            have = folder.log_path.stat().st_size if folder.log_path.exists() else 0
        progress: NodeProgress = await worker.call("progress", have)
        before = self._rows.get(place)
        self._rows[place] = NodeRow(place, arm, progress.phase, progress.done, progress.total)
        if folder is not None and progress.log:
            with folder.log_path.open("ab") as log:
                log.write(progress.log)
        if file is not None:
            if before is None or before.phase != progress.phase:
                file.note_phase(progress.phase or "launch")
            file.note_requests(progress.done, progress.total)
            file.beat()
        for text in progress.messages:
            self._watcher.on_message(f"{place}: {text}")

    # what is told

    def _tell(self, trial: Trial, place: str) -> None:
        work = self._work
        self._watcher.on_trial_end(trial, work.trials)
        baseline = work.study.baseline.arm_id
        own = [t for t in work.trials if t.arm_id == baseline and t.place == place]
        if place == work.noise_place and trial.arm_id == baseline and len(own) == 2:
            self._watcher.on_message(describe_equal_launches(work.study, own))

    def _give_up(self, unfit: Unfit) -> None:
        """The nodes cannot be trusted with more; the others go on."""
        reply = unfit.reply
        if reply.left is not None:
            names = place_of([node.name for node in unfit.nodes])
            self.unproven = TeardownUnproven(f"{names}: {reply.error}", reply.left)
        elif reply.is_stopped:
            return
        for node in unfit.nodes:
            self._nodes.leave_out(node, reply.error or "it can do no more")

    async def _end_lanes(self) -> None:
        """Every worker stops its server and proves it, or its node is lost."""
        lanes = list(self._lanes.values())
        for task in lanes:
            task.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)  # faults are in `_faults`
        await self._nodes.aclose()
