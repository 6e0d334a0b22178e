"""Ports: that they exist, and that two parts of one server do not share one."""

from __future__ import annotations

from spectune.domain.findings import Finding
from spectune.engines.registry import traits_for
from spectune.findings.catalogue import finding_kind
from spectune.preflight.flags.every_engine import Flags, attention_dp, flag_evidence, whole_number
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation

MIN_PORT, MAX_PORT = 1, 65535
_SGLANG_ZMQ_DELTA = 233
_SGLANG_DERIVED_PORTS = 6

PORT_CONFLICT = finding_kind("port-conflict")
PORT_OUT_OF_RANGE = finding_kind("port-out-of-range")


def ports_exist(situation: Situation) -> Judgement:
    """Port numbers within the range; 0 lets the system choose one."""
    flags = Flags(situation)
    findings = []
    not_checked = []
    for name in ("port", "nccl-port", "grpc-port", "data-parallel-rpc-port", "master-port"):
        value = flags.integer(name)
        if value is None or MIN_PORT <= value <= MAX_PORT:
            continue
        if value == 0:
            if situation.engine != "llamacpp" and name == "port":
                not_checked.append("--port 0: whether the engine says which port it took")
            continue
        findings.append(
            PORT_OUT_OF_RANGE.found(
                situation.subject,
                f"--{name} {value}: must be {MIN_PORT} to {MAX_PORT}",
                evidence=flag_evidence(situation, name),
                remedy=f"choose a port of 1024 to {MAX_PORT}",
            )
        )
    return Judgement(tuple(findings), tuple(not_checked))


def http_port(situation: Situation) -> int | None:
    """The port clients use, with the engine's default."""
    flags = Flags(situation)
    return flags.integer("port") if flags.given("port") else traits_for(situation.engine).port


def ports_differ(situation: Situation) -> Judgement:
    """The HTTP port against the others the same server opens."""
    flags = Flags(situation)
    port = http_port(situation)
    if port is None:
        return Judgement()
    taken: dict[int, str] = {port: "--port" if flags.given("port") else "the default HTTP port"}
    findings = []
    for name in ("nccl-port", "grpc-port", "data-parallel-rpc-port", "master-port", "dist-init-addr"):
        if name == "grpc-port" and flags.integer(name) == 0:
            continue
        value = flags.integer(name)
        if name == "dist-init-addr":
            value = whole_number((flags.text(name) or "").rpartition(":")[2] or None)
        if value is None:
            continue
        if value in taken:
            findings.append(_conflict(situation, f"--{name} {value} is also {taken[value]}", "port", name))
        taken.setdefault(value, f"--{name}")
    if attention_dp(situation) and not flags.given("dist-init-addr") and flags.integer("nnodes") in (None, 1):
        base = port + _SGLANG_ZMQ_DELTA
        base = base if base <= MAX_PORT else port - _SGLANG_ZMQ_DELTA
        nccl = flags.integer("nccl-port")
        if nccl is not None and base <= nccl <= base + _SGLANG_DERIVED_PORTS:
            message = (
                f"--nccl-port {nccl} lies in {base}..{base + _SGLANG_DERIVED_PORTS}, which attention data "
                f"parallelism takes (HTTP port + {_SGLANG_ZMQ_DELTA} and the six behind it)"
            )
            findings.append(_conflict(situation, message, "port", "nccl-port", "attn-dp-size", "dp-size"))
    return Judgement(tuple(findings))


def _conflict(situation: Situation, message: str, *names: str) -> Finding:
    return PORT_CONFLICT.found(
        situation.subject, message, evidence=flag_evidence(situation, *names), remedy="give each its own port"
    )


RULES = (ports_exist, ports_differ)
