"""``spectune up | wait | ps | down``: one server by hand, with the guarantees of a study."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spectune.analysis.fault_findings import differing_knobs
from spectune.api.blocking import run_interruptible
from spectune.cli.output import say, show, show_json
from spectune.cluster.machine import machine_of
from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.domain.trial import StopProof
from spectune.engines.adapter import Command
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.home import data_home
from spectune.hosts.choose import LOCAL, host_called
from spectune.hosts.facts import ServerStatus
from spectune.hosts.host import Host, new_server_id
from spectune.runner.adopt import check_is_arm
from spectune.runner.launch import ModelPaths, arm_called, launch_plan
from spectune.runner.plan import resolve_study
from spectune.runner.ports import PortPool
from spectune.runner.study import fetch_models
from spectune.server.admission import admit
from spectune.server.death import died_before
from spectune.server.lifecycle import (
    LaunchPlan,
    Limits,
    ServerHandle,
    end_server,
    spec_of,
    to_the_end,
    wait_ready,
)
from spectune.server.phases import PhaseClock
from spectune.study_file.load import load_study_file

_OWNER = "up"


@dataclass(frozen=True)
class _Wanted:
    """What ``up`` is asked for."""

    study: Study
    arm: Arm
    models: ModelPaths


def up(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    if args.adopt:
        if not args.port:
            raise BadInput("--adopt goes with --port: the port of the server that is already running")
        if wanted.study.host != LOCAL:
            raise BadInput("--adopt looks at a server on this machine; run spectune on the host itself")
        run_interruptible(
            _adopt(wanted, args.port), on_signal=say, resume_hint="The server was left as it is"
        )
        _show_url(f"http://127.0.0.1:{args.port}", as_json=args.json)
        return 0
    host = host_called(wanted.study.host, home=data_home())
    status = run_interruptible(_up(host, wanted, args), on_signal=say, resume_hint="The server was stopped")
    _show(status, as_json=args.json)
    return 0


def wait(args: argparse.Namespace) -> int:
    host = host_called(args.host, home=data_home())
    status = run_interruptible(
        _wait(host, args.server, args.timeout),
        on_signal=say,
        resume_hint=f"The server was left running; `spectune down {args.server}` stops it",
    )
    _show(status, as_json=args.json)
    return 0


def ps(args: argparse.Namespace) -> int:
    host = host_called(args.host, home=data_home())
    servers = run_interruptible(_servers(host), on_signal=say, resume_hint="")
    if args.json:
        rows = [_public(s) for s in servers]
        show_json(json.dumps({"schema_version": 1, "servers": rows}, indent=1) + "\n")
        return 0
    if not servers:
        sys.stdout.write("no servers\n")
    for server in servers:
        about = server.about
        line = (
            f"{server.server_id}  {server.state:8} {about.get('engine', '?'):9} {_url(server):28} "
            f"pid {server.leader_pid:<8} {about.get('arm', '?')}{_trouble(server)}"
        )
        show([line])
    return 0


def down(args: argparse.Namespace) -> int:
    if args.servers and args.all:
        raise BadInput("--all stops every server that `ps` lists: leave the names out, or leave --all out")
    if not args.servers and not args.all:
        raise BadInput("name the servers to stop (see `spectune ps`), or give --all")
    host = host_called(args.host, home=data_home())
    stopped = run_interruptible(
        _down(host, args.servers, every=args.all, quiet=args.json),
        on_signal=say,
        resume_hint="See `spectune ps` for what is left",
    )
    if args.json:
        rows = [
            {"server_id": name, **(proof.model_dump(mode="json") if proof else {})} for name, proof in stopped
        ]
        show_json(json.dumps({"schema_version": 1, "stopped": rows}, indent=1) + "\n")
    return 0


def _wanted(args: argparse.Namespace) -> _Wanted:
    path = Path(args.study)
    overrides = [*args.overrides, *([f"host={args.host}"] if args.host else [])]
    spec, _, document = load_study_file(path, overrides=overrides)
    machine = run_interruptible(machine_of(spec.host), on_signal=say, resume_hint="Nothing was started")
    study = resolve_study(spec, document, path=path.absolute(), machine=machine)
    arm = arm_called(study, args.arm)
    return _Wanted(study, arm, fetch_models(study, home=data_home(), on_fetch=lambda *_: None))


async def _up(host: Host, wanted: _Wanted, args: argparse.Namespace) -> ServerStatus:
    """Ready, or, whatever went wrong, gone: in one event loop, so that no signal falls between the two."""
    async with host:
        port = args.port or await PortPool(host).take()
        server_id = new_server_id()
        log_path = data_home() / "servers" / server_id / "server.log"
        plan = launch_plan(
            wanted.arm,
            wanted.study,
            models=wanted.models,
            host=host,
            port=port,
            log_path=log_path.absolute(),
            owner=_OWNER,
        )
        admission = await admit(
            host,
            subject=wanted.arm.name,
            port=port,
            paths=[],
            command=plan.command,
            needed_bytes=plan.model_bytes,
            allow_busy_gpus=plan.allow_busy_gpus,
        )
        for finding in admission.findings:
            say(f"warning: {finding.message}; {finding.remedy}")
        server = await to_the_end(
            host.start(spec_of(plan, gpus=admission.gpus), log_path=plan.log_path, server_id=server_id),
            then=lambda late: late.stop(grace_s=plan.limits.stop_grace_s),
        )
        kept = False
        try:
            if not args.no_wait:
                clock = PhaseClock(on_change=say)
                clock.enter("launch")
                handle = await wait_ready(server, plan=plan, clock=clock)
                await handle.watch.aclose()
                _tell_differences(handle, wanted.arm)
            await server.renew(lease_s=args.lease_s)
            status = await _status_of(host, server_id)
            await server.aclose()
            kept = True
            return status
        finally:
            if not kept:
                await to_the_end(server.stop(grace_s=plan.limits.stop_grace_s))
                await to_the_end(host.forget(server_id))


async def _wait(host: Host, server_id: str, timeout_s: float | None) -> ServerStatus:
    async with host:
        status = await _status_of(host, server_id)
        adapter = adapter_for(str(status.about.get("engine")))
        if status.state != "running":
            raise died_before(status, adapter)
        if status.owner != _OWNER:
            raise BadInput(
                f"{server_id} belongs to the study {status.owner}: the study waits for it, and a request of ours would "
                "disturb its measurement"
            )
        plan = LaunchPlan(
            command=Command(argv=()),
            adapter=adapter,
            host=host,
            port=status.ports[0],
            log_path=Path(status.log_path),
            limits=Limits(ready_s=timeout_s or adapter.ready_timeout_s, settle_s=adapter.settle_s),
        )
        server = await host.attach(server_id)
        try:
            clock = PhaseClock(on_change=say)
            clock.enter("launch")
            handle = await wait_ready(server, plan=plan, clock=clock)
            await handle.watch.aclose()
        finally:
            await server.aclose()
        return status


async def _servers(host: Host) -> list[ServerStatus]:
    async with host:
        return await host.servers()


async def _down(
    host: Host, names: Sequence[str], *, every: bool, quiet: bool
) -> list[tuple[str, StopProof | None]]:
    async with host:
        known = await host.servers()
        chosen = known if every else [_named(known, name) for name in dict.fromkeys(names)]
        done: list[tuple[str, StopProof | None]] = []
        for status in chosen:
            proof = await to_the_end(end_server(host, status))
            done.append((status.server_id, proof))
            if not quiet:
                show([f"{status.server_id}: {_proof_words(status, proof)}"])
                sys.stdout.flush()
        return done


async def _status_of(host: Host, server_id: str) -> ServerStatus:
    return _named(await host.servers(), server_id)


def _named(servers: Sequence[ServerStatus], server_id: str) -> ServerStatus:
    for server in servers:
        if server.server_id == server_id:
            return server
    known = ", ".join(s.server_id for s in servers) or "none"
    raise BadInput(f"no server {server_id!r}; known: {known} (see `spectune ps`)")


async def _adopt(wanted: _Wanted, port: int) -> None:
    await check_is_arm(wanted.arm, wanted.study, models=wanted.models, port=port)
    say(
        f"http://127.0.0.1:{port} runs arm {wanted.arm.name}; it is not ours: `spectune down` will not stop it"
    )


def _tell_differences(handle: ServerHandle, arm: Arm) -> None:
    if handle.facts.effective is not None:
        for name, asked, runs in differing_knobs(arm.knobs, handle.facts.effective):
            say(f"warning: {name}: asked for {asked!r}, runs {runs!r}")


def _public(server: ServerStatus) -> dict[str, Any]:
    return {
        "server_id": server.server_id,
        "state": server.state,
        "alive": server.state in ("running", "stopping"),
        "engine": server.about.get("engine"),
        "arm": server.about.get("arm"),
        "owner": server.owner,
        "base_url": _url(server),
        "pid": server.leader_pid,
        "orphans": list(server.orphans),
        "lease_s": server.lease_s,
        "log_path": server.log_path,
        "started_at": datetime.fromtimestamp(server.started_at, UTC).isoformat(timespec="milliseconds"),
        "ended": None if server.ended is None else server.ended.reason,
        "left": list(server.left),
    }


def _url(server: ServerStatus) -> str:
    return f"http://127.0.0.1:{server.ports[0]}" if server.ports else "?"


def _trouble(server: ServerStatus) -> str:
    if server.is_lost:
        return "  its record is gone or damaged; found by its processes"
    if server.state == "running" and not server.can_be_asked:
        return "  its supervisor is suspended or has lost its socket; `down` stops both"
    if server.state == "orphaned":
        return f"  its supervisor was killed; left: pids {', '.join(map(str, server.orphans))}"
    if server.left:
        return f"  still there: {', '.join(server.left)}"
    if server.state == "ended" and server.ended is not None:
        return f"  {server.ended.reason}"
    return ""


def _proof_words(status: ServerStatus, proof: StopProof | None) -> str:
    if proof is None:
        return "had ended; its record was removed"
    removed = (
        f", {len(proof.segments_removed)} shared-memory segments removed" if proof.segments_removed else ""
    )
    ports = ", ".join(map(str, proof.ports_closed)) or "none"
    left = f"; left alone: {'; '.join(proof.segments_left)}" if proof.segments_left else ""
    return f"gone after {proof.took_s:.1f} s: no process left, port {ports} closed{removed}, GPU: {proof.gpu}{left}"


def _show(server: ServerStatus, *, as_json: bool) -> None:
    if as_json:
        show_json(json.dumps({"schema_version": 1, **_public(server)}, indent=1) + "\n")
    else:
        show([f"{server.server_id}  {_url(server)}  log: {server.log_path}"])


def _show_url(url: str, *, as_json: bool) -> None:
    text = json.dumps({"schema_version": 1, "base_url": url, "adopted": True}, indent=1) if as_json else url
    show_json(text + "\n")
