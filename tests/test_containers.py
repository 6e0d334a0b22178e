"""Variables that spectune sets reach a server that a container program starts."""

from __future__ import annotations

import pytest

from spectune.domain.arm import Arm, Knobs
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.containers import (
    container_call,
    failure_of_runtime,
    owned,
    why_not_ours,
    with_variables,
)
from spectune.engines.registry import adapter_for
from spectune.preflight.command.reading import read_command


def command(engine: str, prefix: str, **arm: object) -> tuple[list[str], dict[str, str]]:
    knobs = Knobs(method="eagle3", drafter="d", num_draft_tokens=3)
    launch = Launch(
        arm=Arm(**{"name": "a", "engine": engine, "target": "t", "knobs": knobs, **arm}),
        setup=EngineSetup(name=engine, command=tuple(prefix.split()), env={"DOCKER_HOST": "unix:///x"}),
        host="127.0.0.1",
        port=1,
        target_path="t",
        drafter_path="d",
        max_concurrency=1,
    )
    made = adapter_for(engine).command(launch)
    return list(made.argv), dict(made.env)


SGLANG = "docker run --rm --network host lmsysorg/sglang:v0.5.23 python3 -m sglang.launch_server"
VLLM = "podman run --rm --network host vllm/vllm-openai:v0.32.0"


def test_imposed_acceptance_and_the_arms_variables_are_passed_in_by_name_and_without_their_values():
    argv, env = command("sglang", SGLANG, synthetic_acceptance_length=2.0, env={"MY_TOKEN": "hf_secret"})
    assert argv[:2] == ["docker", "run"]
    passed = [argv[i + 1] for i, word in enumerate(argv) if word == "--env"]
    assert set(passed) == {"SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_TOKEN_MODE", "MY_TOKEN"}
    assert env["SGLANG_SIMULATE_ACC_LEN"] == "2" and "hf_secret" not in " ".join(argv)
    read = read_command(argv, env=env)  # as Docker reads it: a name alone takes the client's value
    assert read.env["SGLANG_SIMULATE_ACC_LEN"] == "2"
    assert "DOCKER_HOST" not in read.env  # the engine's variables are the client's


def test_vllms_reset_route_is_switched_on_inside():
    argv, _ = command("vllm", VLLM)
    assert argv[2:4] == ["--env", "VLLM_SERVER_DEV_MODE"]


@pytest.mark.parametrize(
    "prefix",
    [
        "docker run -e VLLM_SERVER_DEV_MODE=0 image",
        "docker run --env=VLLM_SERVER_DEV_MODE image",
        "docker run -eVLLM_SERVER_DEV_MODE=1 image",
        "python3 -m vllm.entrypoints.openai.api_server",
        "./run.sh docker run image",
        "docker compose up",
    ],
)
def test_what_the_user_names_and_what_is_no_container_stay_as_they_are(prefix: str):
    assert with_variables(prefix.split(), {"VLLM_SERVER_DEV_MODE": "1"}) == prefix.split()


@pytest.mark.parametrize(
    ("flags", "concurrency", "limit"),
    [
        ({}, 64, 64),
        ({}, 1, 48),
        ({"dp-size": 8}, 64, 64),  # each copy has a limit of its own
        ({"dp-size": 8, "enable-dp-attention": True}, 64, 512),  # SGLang divides it by the ranks
        ({"dp": "4", "enable-dp-attention": True}, 1, 192),
        ({"dp-size": 8, "enable-dp-attention": True, "max-running-requests": 100}, 64, 100),
    ],
)
def test_the_limit_of_running_requests_is_that_of_one_data_parallel_rank(flags, concurrency, limit):
    arm = Arm(name="a", engine="sglang", target="t", flags=flags)
    setup = EngineSetup(name="sglang")
    launch = Launch(arm, setup, "127.0.0.1", 1, "t", None, concurrency)
    argv = list(adapter_for("sglang").command(launch).argv)
    assert argv[argv.index("--max-running-requests") + 1] == str(limit)


def test_a_launch_has_a_name_and_a_label_of_its_own_and_the_runtime_keeps_how_it_ended():
    given = "docker --context far run --rm --name box -v /m:/m -e A=1 --gpus all image serve --name x --rm"
    argv, call = owned(given.split(), marker="0123456789abcdef", carried=("MARK",))
    assert argv == [
        "docker",
        "--context",
        "far",
        "run",
        "--name",
        "spectune-0123456789ab",
        "--label",
        "spectune.server=0123456789abcdef",
        "--init",
        "--env",
        "MARK",
        "-v",
        "/m:/m",
        "-e",
        "A=1",
        "--gpus",
        "all",
        "image",
        "serve",
        "--name",
        "x",
        "--rm",
    ]
    assert call == {"client": ["docker", "--context", "far"], "label": "spectune.server=0123456789abcdef"}


@pytest.mark.parametrize(
    ("given", "client", "verb"),
    [
        ("sudo -n docker run i", "sudo -n docker", "run"),
        ("docker compose -f c.yaml run svc", "docker", "run"),
        ("docker-compose run svc", "docker", "run"),
        ("/usr/bin/docker container run i", "/usr/bin/docker", "run"),
        ("nvidia-docker run i", "nvidia-docker", "run"),
        ("podman exec box python3", "podman", "exec"),
    ],
)
def test_the_same_runtime_is_reached_again_however_the_command_is_written(given, client, verb):
    call = container_call(given.split())
    assert call is not None
    assert (" ".join(call.client), call.verb) == (client, verb)


def test_sudo_hands_on_the_variables_that_are_passed_in():
    argv = with_variables(["sudo", "-n", "docker", "run", "i"], {"A": "1", "DOCKER_HOST": "unix:///x"})
    assert argv == ["sudo", "--preserve-env=A", "-n", "docker", "run", "--env", "A", "i"]


@pytest.mark.parametrize("given", ["docker ps", "python3 -m docker run", "bash -c docker", "./docker.sh run"])
def test_another_program_is_no_container(given):
    assert container_call(given.split()) is None


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("run -d i", "-d"),
        ("run -itd i", "-d"),
        ("run --detach=true i", "-d"),
        ("run --restart always i", "--restart"),
    ],
)
def test_a_container_that_nobody_would_watch_is_refused(given, word):
    assert word in str(why_not_ours(["docker", *given.split()]))


@pytest.mark.parametrize(
    "given", ["run -it i", "run --restart no i", "run --restart=no i", "run i python3 -d"]
)
def test_what_can_be_watched_is_not_refused(given):
    assert why_not_ours(["docker", *given.split()]) is None


# Said by Docker 20.10 and 28.2 here, the last four are the runtimes' words for what could not be brought about here.
RUNTIME_SAYS = {
    "docker: Cannot connect to the Docker daemon at unix:///nonexistent. Is the docker daemon running?.": "DOCKER_HOST",
    'docker: Error response from daemon: Get "https://registry.example/v2/": dial tcp: lookup '
    "registry.example on 10.0.0.1:53: no such host.": "fetched",
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].': "nvidia-ctk",
    "docker: nvidia.com/gpu=all is not an absolute path.": "nvidia-ctk",
    "docker: Error response from daemon: Unknown runtime specified nvidia.": "nvidia-ctk",
    'docker: Error response from daemon: Conflict. The container name "/t" is already in use by container "7c6e9".': (
        "--name"
    ),
    "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: exec: "nosuchprog": executable file not found in $PATH: unknown.': (
        "no such program"
    ),
    "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: exec: "/etc": permission denied: unknown.': "may not be run",
    "Error: No such container: nosuchbox": "docker ps",
    'invalid argument "1xx" for "--shm-size" flag: invalid size: \'1xx\'': "does not take",
    "docker: Error response from daemon: pull access denied for x, repository does not exist or may require "
    "'docker login': denied: requested access to the resource is denied.": "docker login",
    "docker: Error response from daemon: driver failed programming external connectivity on endpoint a (b): Bind for "
    "0.0.0.0:8000 failed: port is already allocated.": "published",
    "docker: Got permission denied while trying to connect to the Docker daemon socket at "
    "unix:///var/run/docker.sock": "group docker",
    "docker: failed to register layer: write /usr/lib/x.so: no space left on device.": "prune",
}


@pytest.mark.parametrize("line", RUNTIME_SAYS)
def test_a_failure_of_the_runtime_is_told_with_what_to_do_about_it(line):
    cause = failure_of_runtime(["Unable to find image 'x' locally", line, "See 'docker run --help'."])
    assert cause is not None and cause.message == line
    assert RUNTIME_SAYS[line] in str(cause.remedy)


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: [Errno 98] error while attempting to bind on address: address already in use",
        "OSError: [Errno 28] No space left on device",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/x'",
    ],
)
def test_what_the_server_inside_says_is_not_the_runtimes(line):
    assert failure_of_runtime([line]) is None
