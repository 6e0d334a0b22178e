"""An arm's command for bash, Docker, Kubernetes and Slurm. Names and values from anywhere stay text."""

from __future__ import annotations

import re
from typing import Any

import yaml

from spectune.exchange.exports.serving import Serving, Word, shell_command, shell_environment

_NOT_A_LABEL = re.compile(r"[^A-Za-z0-9]+")


def bash_script(serving: Serving) -> str:
    """Executable as it is; the server takes the script's place."""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *_comments(serving),
            "set -euo pipefail",
            *shell_environment(serving),
            shell_command(serving.words),
            "",
        ]
    )


def docker_script(serving: Serving, *, image: str) -> str:
    """``docker run`` in the foreground; local models are mounted read-only where they are, the port on 127.0.0.1."""
    words = [Word(w) for w in ("docker", "run", "--rm", "--name", dns_name(serving), "--ipc", "host")]
    words += [Word("--publish"), Word(f"127.0.0.1:{serving.port}:{serving.port}")]
    if serving.num_gpus:
        words += [Word("--gpus"), Word("all")]
    for path in serving.models:
        words += [Word("--mount"), Word(_mount(path))]
    for name, value in serving.env.items():
        words += [Word("--env"), Word(f"{name}={value}")]
    for name in serving.secret_env:
        words += [Word("--env"), Word(name)]  # from this shell
    words += [Word("--entrypoint"), Word(serving.program), Word(image)]
    tail = " \\\n  ".join(_argument_lines(serving.arguments))
    command = shell_command(words) + (f" \\\n  {tail}" if tail else "")
    required = [f': "${{{name}:?is not recorded, set it}}"' for name in serving.secret_env]
    required += [f"export {name}" for name in serving.secret_env]
    return "\n".join(
        ["#!/usr/bin/env bash", *_comments(serving), "set -euo pipefail", *required, command, ""]
    )


def _mount(path: str) -> str:
    """CSV, as ``docker --mount`` reads it: a field with a comma or a quote is quoted."""
    fields = ["type=bind", f"source={path}", f"target={path}", "readonly"]
    return ",".join(f'"{f.replace(chr(34), 2 * chr(34))}"' if re.search(r'[,"\n]', f) else f for f in fields)


def _argument_lines(arguments: tuple[Word, ...]) -> list[str]:
    lines: list[str] = []
    for word in arguments:
        if word.text.startswith("-") or not lines or " " in lines[-1]:
            lines.append(word.shell)
        else:
            lines[-1] += f" {word.shell}"
    return lines


def slurm_script(serving: Serving, *, time_limit: str) -> str:
    """For ``sbatch``; partition, account and the like are given to ``sbatch`` itself."""
    directives = [
        f"--job-name={dns_name(serving)}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={time_limit}",
        "--output=%x-%j.log",
    ]
    directives += [f"--gpus-per-node={serving.num_gpus}"] if serving.num_gpus else []
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {directive}" for directive in directives),
            *_comments(serving),
            "set -euo pipefail",
            *shell_environment(serving),
            f'echo "serving on $(hostname):{serving.port}"',
            shell_command(serving.words, before=("exec", "srun", "--ntasks=1", "--kill-on-bad-exit=1")),
            "",
        ]
    )


def kubernetes_manifest(serving: Serving, *, image: str) -> str:
    """A Deployment of one replica and a Service. Local models are host paths: pin the pod to their node."""
    name = dns_name(serving)
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "spectune"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {f"spectune/note-{i}": note for i, note in enumerate(serving.notes, start=1)},
        },
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {"metadata": {"labels": labels}, "spec": _pod(serving, image, name)},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": serving.port, "targetPort": "http"}],
        },
    }
    head = "".join(f"{line}\n" for line in _comments(serving))
    if serving.secrets:
        keys = " ".join(f"--from-literal={key}=..." for key in serving.secrets)
        head += f"# first: kubectl create secret generic {name} {keys}\n"
    return head + yaml.dump_all([deployment, service], Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """Without anchors, which readers of a manifest do not expect."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _pod(serving: Serving, image: str, name: str) -> dict[str, Any]:
    env: list[dict[str, Any]] = [
        {"name": key, "value": _no_expansion(value)} for key, value in serving.env.items()
    ]
    env += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}} for key in serving.secrets
    ]
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for i, path in enumerate(serving.models, start=1):
        volumes.append({"name": f"model-{i}", "hostPath": {"path": path}})
        mounts.append({"name": f"model-{i}", "mountPath": path, "readOnly": True})
    health = {"httpGet": {"path": "/health", "port": "http"}}
    container: dict[str, Any] = {
        "name": "server",
        "image": image,
        "command": [_no_expansion(serving.program)],
        "args": [_kubernetes_word(word) for word in serving.arguments],
        "ports": [{"name": "http", "containerPort": serving.port}],
        "startupProbe": {**health, "periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": {**health, "periodSeconds": 5},
        "volumeMounts": mounts,
    }
    if env:
        container["env"] = env
    if serving.num_gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(serving.num_gpus)}}
    return {"containers": [container], "volumes": volumes}


def _kubernetes_word(word: Word) -> str:
    return _no_expansion(word.text) + (f"$({word.secret})" if word.secret is not None else "")


def _no_expansion(text: str) -> str:
    """``$(NAME)`` in an argument would be replaced by a variable; ``$$`` is a dollar sign."""
    return text.replace("$", "$$")


def dns_name(serving: Serving) -> str:
    """A name that every system accepts: ``spectune-<arm>-<arm id>``, at most 63 characters (RFC 1035 label)."""
    arm = _NOT_A_LABEL.sub("-", serving.arm.name.encode("ascii", "ignore").decode().lower()).strip("-")
    return "-".join(part for part in ("spectune", arm[:40].strip("-"), serving.arm.arm_id) if part)


def _comments(serving: Serving) -> list[str]:
    """Foreign text was made one line before."""
    return [f"# {note}" for note in serving.notes]
