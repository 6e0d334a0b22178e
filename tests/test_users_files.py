"""What lies in /dev/shm is the user's, but for the segments that a server made there and left behind."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from spectune.domain.trial import StopProof
from spectune.hosts.host import ServerSpec
from spectune.hosts.local import local_host
from spectune.hosts.supervisor import (
    IS_LINUX,
    Process,
    Segments,
    read_process,
    segments_now,
    segments_recorded,
)

pytestmark = pytest.mark.skipif(not IS_LINUX, reason="/dev/shm is Linux's")

SHM = Path("/dev/shm")
NUMBER = secrets.randbelow(9 * 10**7) + 10**7
DIGITS = str(NUMBER)  # hexadecimal digits as well

SERVER = """
import json, mmap, os, socket, sys, time
shm, names = "/dev/shm/", json.loads(sys.argv[1])
kept = []
def segment(name):
    file = os.open(shm + name, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(file, 4096)
    kept.append(mmap.mmap(file, 4096))
    os.close(file)
for name in names["made"]:
    segment(name.replace("PID", str(os.getpid())))
for name in names["read"]:
    file = open(shm + name, "rb")
    kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
for name in names["filled"]:
    os.makedirs(os.path.dirname(shm + name), exist_ok=True)
    kept.append(open(shm + name, "w"))
for name in names["sockets"]:
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(shm + name)
print("holding", flush=True)
time.sleep(600)
"""
"""Makes, reads and fills what its argument names, and holds it open."""


@pytest.fixture
def shm() -> Iterator[Path]:
    """/dev/shm; what the test made there is gone afterwards."""
    yield SHM
    for path in SHM.glob(f"*{DIGITS[:6]}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def left_by(
    tmp_path: Path,
    *,
    made: tuple[str, ...] = (),
    read: tuple[str, ...] = (),
    filled: tuple[str, ...] = (),
    sockets: tuple[str, ...] = (),
    kill_supervisor: bool = False,
) -> tuple[StopProof, int]:
    """The proof of a stop of a server that held these and was killed; and its pid."""
    names = {"made": made, "read": read, "filled": filled, "sockets": sockets}
    spec = ServerSpec(argv=[sys.executable, "-c", textwrap.dedent(SERVER), json.dumps(names)], lease_s=30.0)

    async def all_of_it() -> tuple[StopProof, int]:
        log = tmp_path / "server.log"
        async with local_host(tmp_path) as host:
            server = await host.start(spec, log_path=log)
            async with asyncio.timeout(20):
                while not log.exists() or "holding" not in log.read_text(encoding="utf-8"):
                    await asyncio.sleep(0.01)
            await server.mark_ready()
            if kill_supervisor:
                os.kill(server.supervisor_pid, signal.SIGKILL)
                await server.wait_ended()
                return await host.sweep(server.server_id), server.leader_pid
            os.kill(server.leader_pid, signal.SIGKILL)
            await server.wait_ended()
            return await server.stop(grace_s=5), server.leader_pid

    return asyncio.run(all_of_it())


@pytest.mark.parametrize("kill_supervisor", [False, True])
def test_segments_that_a_killed_server_made_are_removed(
    tmp_path: Path, shm: Path, kill_supervisor: bool
) -> None:
    # the names as each maker's code forms them: NCCL's mkstemp, PyTorch, Python, vLLM 0.32, SGLang 0.5.23
    made = (
        f"nccl-{DIGITS[:6]}",
        f"torch_PID_{NUMBER}_0",
        f"psm_{DIGITS}",
        f"sem.mp-{DIGITS}",
        f"VLLM_OBJECT_STORAGE_SHM_BUFFER_{DIGITS * 4}",
        f"vllm_offload_{DIGITS}.mmap",
        f"sgl_shm_mm_PID_{DIGITS}",
        f"sglang_loads_tokenizer_{DIGITS}.shm",
    )
    proof, pid = left_by(tmp_path, made=made, kill_supervisor=kill_supervisor)
    expected = sorted(f"/dev/shm/{name}".replace("PID", str(pid)) for name in made)
    assert sorted(proof.segments_removed) == expected
    assert proof.segments_left == ()
    assert not [path for path in expected if Path(path).exists()]


def test_the_users_files_in_shared_memory_outlive_every_stop(tmp_path: Path, shm: Path) -> None:
    model = shm / f"models-{DIGITS}" / "model.safetensors"
    model.parent.mkdir()
    model.write_bytes(b"weights")
    flat = shm / f"psm_{DIGITS[:6]}01"  # whatever its name: it was there before
    flat.write_bytes(b"there before")
    home = shm / f"hf-{DIGITS}"
    home.mkdir()
    proof, _ = left_by(
        tmp_path,
        read=(f"models-{DIGITS}/model.safetensors", flat.name),
        filled=(f"hf-{DIGITS}/hub/blob", f"cache-{DIGITS}/kernel.so", f"{DIGITS}.lock", f"{DIGITS}.log"),
        sockets=(f"{DIGITS}.sock",),
    )
    assert model.read_bytes() == b"weights"
    assert flat.read_bytes() == b"there before"
    for name in (f"hf-{DIGITS}/hub/blob", f"cache-{DIGITS}/kernel.so", f"{DIGITS}.lock", f"{DIGITS}.log"):
        assert (shm / name).exists()
    assert (shm / f"{DIGITS}.sock").is_socket()
    assert proof.segments_removed == ()
    # what is new is named; the folders that were there before are nobody's news
    assert sorted(line.partition(":")[0] for line in proof.segments_left) == sorted(
        f"/dev/shm/{name}" for name in (f"cache-{DIGITS}", f"{DIGITS}.lock", f"{DIGITS}.log")
    )


class TestTheMakerOfASegment:
    """With one process of ours and one of somebody else, both real."""

    @pytest.fixture
    def other(self) -> Iterator[subprocess.Popen[str]]:
        code = """if True:
            import os, sys
            for name in sys.stdin:
                print(os.open("/dev/shm/" + name.strip(), os.O_CREAT | os.O_RDWR, 0o600), flush=True)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with process:
            yield process
            process.kill()

    def opens(self, process: subprocess.Popen[str], name: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(name + "\n")
        process.stdin.flush()
        process.stdout.readline()

    def members(self) -> list[Process]:
        process = read_process(os.getpid())
        assert process is not None
        return [process]

    def test_what_was_first_seen_without_us_is_never_ours(self, shm: Path) -> None:
        segments = Segments(segments_now())
        path = shm / f"psm_{DIGITS}"
        path.touch(mode=0o600)
        segments.look(self.members, set())
        with path.open("rb"):  # only now do we read it
            segments.look(self.members, set())
        assert segments.remove(set()) == ([], [])
        assert path.exists()

    def test_what_another_process_has_open_as_it_is_first_seen_is_its_own(
        self, shm: Path, other: subprocess.Popen[str]
    ) -> None:
        segments = Segments(segments_now())
        path = shm / f"psm_{DIGITS}"
        self.opens(other, path.name)
        with path.open("rb"):
            segments.look(self.members, set())
        other.kill()
        other.wait()
        assert segments.remove(set()) == ([], [])
        assert path.exists()

    def test_what_another_process_has_open_at_the_end_is_left_and_named(
        self, shm: Path, other: subprocess.Popen[str]
    ) -> None:
        segments = Segments(segments_now())
        path = shm / f"psm_{DIGITS}"
        path.touch(mode=0o600)
        with path.open("wb"):
            segments.look(self.members, set())
        self.opens(other, path.name)
        removed, (left,) = segments.remove(set())
        assert removed == []
        assert left.startswith(f"{path}: open in pid {other.pid} (")
        assert path.exists()

    def test_a_segment_with_the_pid_of_a_stranger_in_its_name_is_left(self, shm: Path) -> None:
        segments = Segments(segments_now())
        path = shm / f"torch_1_{NUMBER}_0"
        path.touch(mode=0o600)
        with path.open("wb"):
            segments.look(self.members, {os.getpid()})
        assert segments.remove({os.getpid()}) == ([], [f"{path}: made by pid 1"])
        assert path.exists()

    @pytest.mark.parametrize("record", [{}, {"existed": None, "segments": {}}, {"segments": {}}])
    def test_without_a_record_of_what_was_there_nothing_is_the_servers(
        self, shm: Path, record: dict[str, object]
    ) -> None:
        path = shm / f"psm_{DIGITS}"
        path.touch(mode=0o600)
        segments = segments_recorded(record)
        with path.open("rb"):
            segments.look(self.members, {os.getpid()})
        assert segments.remove({os.getpid()}) == ([], [])
        assert path.exists()

    def test_a_link_in_the_place_of_a_segment_is_left(self, tmp_path: Path, shm: Path) -> None:
        precious = tmp_path / "precious"
        precious.write_text("the user's")
        path = shm / f"psm_{DIGITS}"
        segments = Segments(segments_now())
        path.symlink_to(precious)
        segments.used[str(path)] = path.lstat().st_ino
        assert segments.remove(set())[0] == []
        assert path.is_symlink()
        assert precious.read_text() == "the user's"
