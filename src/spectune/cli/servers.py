"""``spectune up | wait | ps | down``: one server by hand, with the guarantees of a study."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from spectune.cli.interrupt import run_interruptible
from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.embedded.models import data_home, resolve_model
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, EnvironmentFailed, ServerDied
from spectune.hosts.local import LocalProcess, StopProof, free_port, port_is_free
from spectune.hosts.machine_facts import read_machine
from spectune.runner.plan import resolve_study, sample_launch
from spectune.server.lifecycle import ServerHandle, finish_stop, wait_ready
from spectune.server.phases import PhaseClock
from spectune.server.registry import RunningServer, ServerRegistry
from spectune.study_file.load import load_study_file

_STOP_GRACE_S = 20.0


def up(args: argparse.Namespace) -> int:
    path = Path(args.study)
    spec, _, document = load_study_file(path, overrides=args.overrides)
    study = resolve_study(spec, document, path=path.absolute(), machine=read_machine())
    arm = _arm_called(study, args.arm)
    port = args.port or free_port()
    if not port_is_free(port):
        raise EnvironmentFailed(f"port {port} is taken by another program; choose another with --port")
    registry = ServerRegistry(data_home())
    server = _start(study, arm, port=port, registry=registry)
    if not args.no_wait:
        run_interruptible(
            _ready_or_stopped(server, registry), on_signal=_say, resume_hint="The server was stopped"
        )
    _show(server, as_json=args.json)
    return 0


def wait(args: argparse.Namespace) -> int:
    server = ServerRegistry(data_home()).get(args.server)
    run_interruptible(
        _ready(server, args.timeout or server.ready_timeout_s),
        on_signal=_say,
        resume_hint=f"The server was left running; `spectune down {server.server_id}` stops it",
    )
    _show(server, as_json=args.json)
    return 0


def ps(args: argparse.Namespace) -> int:
    servers = ServerRegistry(data_home()).servers()
    if args.json:
        rows = [{**_public(s), "alive": s.is_alive} for s in servers]
        sys.stdout.write(json.dumps({"schema_version": 1, "servers": rows}, indent=1) + "\n")
        return 0
    if not servers:
        sys.stdout.write("no servers\n")
    for server in servers:
        state = "running" if server.is_alive else "ended"
        sys.stdout.write(
            f"{server.server_id}  {state:8} {server.engine:9} {server.base_url:28} pid {server.pid:<8} {server.arm}\n"
        )
    return 0


def down(args: argparse.Namespace) -> int:
    registry = ServerRegistry(data_home())
    if bool(args.servers) == args.all:
        raise BadInput("name the servers to stop (see `spectune ps`), or give --all")
    chosen = registry.servers() if args.all else [registry.get(server_id) for server_id in args.servers]
    stopped = []
    for server in chosen:
        proof = run_interruptible(
            _stop(server, registry), on_signal=_say, resume_hint="See `spectune ps` for what is left"
        )
        stopped.append({"server_id": server.server_id, "took_s": proof.took_s, "killed": list(proof.killed)})
        if not args.json:
            sys.stdout.write(f"{server.server_id}: gone after {proof.took_s:.1f} s, no process left\n")
    if args.json:
        sys.stdout.write(json.dumps({"schema_version": 1, "stopped": stopped}, indent=1) + "\n")
    return 0


def _arm_called(study: Study, name: str) -> Arm:
    for arm in study.arms:
        if name in (arm.name, arm.arm_id):
            return arm
    raise BadInput(f"--arm {name}: no such arm; valid: {', '.join(arm.name for arm in study.arms)}")


def _start(study: Study, arm: Arm, *, port: int, registry: ServerRegistry) -> RunningServer:
    adapter = adapter_for(arm.engine)
    home = data_home()

    def path_of(reference: str) -> str:
        return resolve_model(reference, model_format=adapter.model_format, home=home)

    drafter = arm.knobs.drafter
    launch = sample_launch(
        arm,
        study.engine,
        study.workload,
        port=port,
        target_path=path_of(arm.target),
        drafter_path=None if drafter is None else path_of(drafter),
    )
    command = adapter.command(launch)
    server_id = uuid.uuid4().hex[:8]
    log_path = registry.folder(server_id) / "server.log"
    process = LocalProcess.start(command.argv, env=command.env, log_path=log_path)
    server = RunningServer(
        server_id=server_id,
        engine=arm.engine,
        arm=arm.name,
        base_url=f"http://{launch.host}:{port}",
        pid=process.identity.leader.pid,
        start_time=process.identity.leader.start_time,
        session=process.identity.session,
        marker=process.identity.marker,
        log_path=str(log_path),
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        ready_timeout_s=study.engine.ready_timeout_s or adapter.ready_timeout_s,
    )
    registry.add(server)
    return server


async def _ready_or_stopped(server: RunningServer, registry: ServerRegistry) -> None:
    """Ready, or, whatever went wrong, gone: in one event loop, so that no signal falls between the two."""
    ready = False
    try:
        await _ready(server, server.ready_timeout_s)
        ready = True
    finally:
        if not ready:
            await _stop(server, registry)


async def _stop(server: RunningServer, registry: ServerRegistry) -> StopProof:
    """Runs to its end even when interrupted; a server that cannot be shown to be gone stays listed."""

    async def stop() -> StopProof:
        proof = await server.process.stop(grace_s=_STOP_GRACE_S)
        registry.remove(server.server_id)
        return proof

    return await finish_stop(stop())


async def _ready(server: RunningServer, timeout_s: float) -> ServerHandle:
    if not server.is_alive:
        raise ServerDied(
            exit_code_of_server=None,
            after_s=0.0,
            phase="running",
            log_tail=(),
            cause="the server has ended",
            log_path=server.log_path,
        )
    clock = PhaseClock(on_change=_say)
    clock.enter("launch")
    return await wait_ready(
        server.process,
        adapter=adapter_for(server.engine),
        base_url=server.base_url,
        timeout_s=timeout_s,
        clock=clock,
    )


def _public(server: RunningServer) -> dict[str, object]:
    return {
        "server_id": server.server_id,
        "engine": server.engine,
        "arm": server.arm,
        "base_url": server.base_url,
        "pid": server.pid,
        "log_path": server.log_path,
        "started_at": server.started_at,
    }


def _show(server: RunningServer, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, **_public(server)}, indent=1) + "\n")
    else:
        sys.stdout.write(f"{server.server_id}  {server.base_url}  log: {server.log_path}\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
