"""GPUs as their programs tell of them: stand-ins print what real ones were seen to print."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spectune.domain.trial import StopProof
from spectune.engines.adapter import Command
from spectune.engines.containers import given_gpus
from spectune.errors import LaunchRefused, TeardownUnproven
from spectune.hosts.facts import Gpu, GpuHolder, HostFacts, memory_bytes_of, read_host_facts
from spectune.hosts.host import ServerSpec
from spectune.hosts.local import local_host
from spectune.hosts.machine_facts import read_machine
from spectune.hosts.seen_gpus import gpus_of_launch, visible_gpus
from spectune.hosts.supervisor import command_of, gpu_facts, host_facts
from spectune.preflight.command.reading import read_command
from spectune.server import lifecycle
from spectune.server.admission import admit
from spectune.server.neighbours import come_between, watching_neighbours
from spectune.server.proof import prove_gpu_memory, still_held
from spectune.server.ranks import gpu_label

NVIDIA = """
case "$*" in
  -L) cat "$here/list" ;;
  *query-gpu*) cat "$here/devices" ;;
  *query-compute-apps*) cat "$here/holders" ;;
  *) exit 6 ;;
esac
"""
EIGHT = "".join(
    f"{i}, GPU-1111111{i}-aaaa-bbbb-cccc-00000000000{i}, NVIDIA H200, 580.95.05, 4, 143771, 0\n"
    for i in range(8)
)


class Box:
    """A machine whose PATH begins with stand-ins."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        patch.setenv("PATH", str(folder))
        for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            patch.delenv(name, raising=False)

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin\nhere=$(dirname "$0")\n{body}', encoding="utf-8")
        path.chmod(0o755)

    def nvidia(self, devices: str, holders: str = "", parts: str = "") -> None:
        for name, text in (("devices", devices), ("holders", holders), ("list", parts)):
            (self.folder / name).write_text(text, encoding="utf-8")
        self.program("nvidia-smi", NVIDIA)

    def facts(self) -> HostFacts:
        return read_host_facts(host_facts({"gpus": True}))

    def gpus(self) -> tuple[Gpu, ...]:
        gpus = self.facts().gpus
        assert gpus is not None
        return gpus


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    return Box(tmp_path, monkeypatch)


def gpu(**changes: Any) -> Gpu:
    fields: dict[str, Any] = {"used_mib": 4, "total_mib": 143_771, "held_mib": 0}
    return Gpu(index=0, uuid="GPU-0", name="H200", driver="580", use_percent=0, **{**fields, **changes})


class TestWhatTheProgramsSay:
    def test_a_figure_that_the_device_has_not_is_not_known(self, box: Box) -> None:
        # NVIDIA GB10 shares the machine's memory; a device that has fallen off the bus answers [Unknown Error]
        box.nvidia(
            "0, GPU-2dee1e25, NVIDIA GB10, 580.126.09, [N/A], [N/A], 0\n"
            "1, GPU-11111111, NVIDIA H200, 580.95.05, [Unknown Error], 143771, [Unknown Error]\n"
        )
        first, second = box.gpus()
        assert (first.used_mib, first.total_mib, first.use_percent) == (None, None, 0)
        assert (second.used_mib, second.total_mib, second.use_percent) == (None, 143_771, None)
        assert memory_bytes_of((first, second)) is None
        assert memory_bytes_of((second,)) == (143_771 << 20,)

    def test_a_comma_in_a_name_hides_no_device(self, box: Box) -> None:
        box.nvidia("0, GPU-a, NVIDIA Thor, rev 2, 580.95.05, 4, 143771, 7\n")
        (only,) = box.gpus()
        assert (only.name, only.driver, only.used_mib, only.use_percent) == (
            "NVIDIA Thor, rev 2",
            "580.95.05",
            4,
            7,
        )

    def test_devices_are_known_where_their_processes_cannot_be_listed(self, box: Box) -> None:
        box.nvidia(EIGHT)
        box.program("nvidia-smi", NVIDIA.replace('cat "$here/holders"', "exit 9"))
        assert [gpu.used_mib for gpu in box.gpus()] == [4] * 8
        assert box.facts().gpu_error is None and not box.facts().gpu_holders

    def test_mig_instances_belong_to_their_device_and_have_no_figures_of_their_own(self, box: Box) -> None:
        box.nvidia(
            "0, GPU-a, NVIDIA H100 80GB HBM3, 570.124.06, 14394, 81559, [N/A]\n"
            "1, GPU-b, NVIDIA H100 80GB HBM3, 570.124.06, 9, 81559, 0\n",
            parts=(
                "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)\n"
                "  MIG 3g.40gb     Device  0: (UUID: MIG-1c2d)\n"
                "  MIG 3g.40gb     Device  1: (UUID: MIG-77fe)\n"
                "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)\n"
            ),
        )
        gpus = box.gpus()
        (seen,) = visible_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-77fe"})
        assert (seen.index, seen.used_mib, seen.total_mib) == (0, None, None)
        assert visible_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-unheard-of"}) == list(gpus)

    def test_amd_smi_is_read(self, box: Box) -> None:
        answers: dict[str, Any] = {
            "static": [
                {
                    "gpu": i,
                    "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": f"0x5F2EC3D4B21C9F5{i}"},
                    "driver": {"name": "amdgpu", "version": "6.10.5"},
                }
                for i in range(2)
            ],
            "metric": {
                "gpu_data": [
                    {
                        "gpu": i,
                        "usage": {"gfx_activity": {"value": 97 * i, "unit": "%"}, "umc_activity": "N/A"},
                        "mem_usage": {
                            "total_vram": {"value": 196592, "unit": "MB"},
                            "used_vram": {"value": 283 + i, "unit": "MB"},
                        },
                    }
                    for i in range(2)
                ]
            },
            "process": [
                {
                    "gpu": 1,
                    "process_list": [
                        {
                            "process_info": {
                                "name": "python",
                                "pid": os.getpid(),
                                "memory_usage": {"vram_mem": {"value": 3 << 30, "unit": "B"}},
                            }
                        }
                    ],
                },
                {"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]},
            ],
        }
        for name, answer in answers.items():
            (box.folder / name).write_text(json.dumps(answer), encoding="utf-8")
        box.program("amd-smi", 'cat "$here/$1"\n')
        facts = box.facts()
        assert facts.gpus is not None
        assert [(g.used_mib, g.total_mib, g.use_percent, g.held_mib) for g in facts.gpus] == [
            (283, 196_592, 0, 0),
            (284, 196_592, 97, 3072),
        ]
        assert facts.machine.gpus == ("AMD Instinct MI300X, 6.10.5",) * 2
        assert [holder.pid for holder in facts.gpu_holders] == [os.getpid()]
        chosen = visible_gpus(
            facts.gpus, {"ROCR_VISIBLE_DEVICES": "GPU-5f2ec3d4b21c9f51", "HIP_VISIBLE_DEVICES": "0"}
        )
        assert [g.index for g in chosen] == [1]

    def test_rocm_smi_is_read_where_amd_smi_is_not_understood(self, box: Box) -> None:
        box.program("amd-smi", "echo no such command\n")
        text = (
            "============================ ROCm System Management Interface ============================\n"
            "Driver version: 6.10.5\n"
            "GPU[0]\t\t: GPU use (%): 3\n"
            "GPU[0]\t\t: VRAM Total Memory (B): 206141652992\n"
            "GPU[0]\t\t: VRAM Total Used Memory (B): 180388626432\n"
            "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X\n"
            "GPU[0]\t\t: Unique ID: 0x5f2ec3d4b21c9f56\n"
        )
        (box.folder / "text").write_text(text, encoding="utf-8")
        box.program("rocm-smi", 'cat "$here/text"\n')
        (seen,) = box.gpus()
        assert (seen.name, seen.driver, seen.uuid) == (
            "AMD Instinct MI300X",
            "6.10.5",
            "GPU-5f2ec3d4b21c9f56",
        )
        assert (seen.used_mib, seen.total_mib, seen.use_percent) == (172_032, 196_592, 3)

    def test_no_gpu_is_said_only_where_no_device_is_there(self, box: Box) -> None:
        node = box.folder / "kfd"
        assert gpu_facts([str(node)])["gpus"] == []
        node.touch()
        facts = gpu_facts([str(node)])
        assert facts["gpus"] is None
        assert facts["gpu_error"] == f"{node} is there, and none of nvidia-smi, amd-smi and rocm-smi lists it"
        box.program("rocm-smi", "exit 3\n")
        assert "rocm-smi" in gpu_facts([])["gpu_error"]


class TestTheDevicesAServerMayUse:
    @pytest.mark.parametrize(
        ("env", "indexes"),
        [
            ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
            ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
            ({"CUDA_VISIBLE_DEVICES": "GPU-11111115,GPU-11111113-aaaa-bbbb-cccc-000000000003"}, [5, 3]),
            ({"CUDA_VISIBLE_DEVICES": ""}, []),
            ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, [1]),
            ({"CUDA_VISIBLE_DEVICES": "GPU-99999999"}, [0, 1, 2, 3, 4, 5, 6, 7]),
            ({"ROCR_VISIBLE_DEVICES": "1"}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ],
    )
    def test_by_cuda(self, box: Box, env: Mapping[str, str], indexes: list[int]) -> None:
        box.nvidia(EIGHT)
        assert [seen.index for seen in visible_gpus(box.gpus(), env)] == indexes

    @pytest.mark.parametrize(
        ("env", "indexes"),
        [
            ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [3]),
            ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, [1]),
            ({"CUDA_VISIBLE_DEVICES": "0"}, [0]),
        ],
    )
    def test_by_rocm(self, env: Mapping[str, str], indexes: list[int]) -> None:
        gpus = [Gpu(i, f"GPU-{i}abc", "MI300X", "6", 1, 2, 0, maker="amd") for i in range(4)]
        assert [seen.index for seen in visible_gpus(gpus, env)] == indexes

    def test_an_exported_variable_counts_and_the_servers_own_comes_first(
        self, box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        box.nvidia(EIGHT, holders=f"GPU-11111115-aaaa-bbbb-cccc-000000000005, {os.getpid()}, 97990\n")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

        async def indexes(env: Mapping[str, str]) -> list[int]:
            async with local_host(tmp_path) as host:
                admission = await admit(
                    host, subject="a", port=None, paths=[], command=Command(("vllm",), env)
                )
            return [seen.index for seen in admission.gpus or ()]

        assert asyncio.run(indexes({})) == [0, 1]
        assert asyncio.run(indexes({"CUDA_VISIBLE_DEVICES": "6"})) == [6]
        with pytest.raises(LaunchRefused, match=f"GPU 5: pid {os.getpid()} holds 97990 MiB"):
            asyncio.run(indexes({"CUDA_VISIBLE_DEVICES": "5"}))

    @pytest.mark.parametrize(
        ("options", "indexes"),
        [
            ("--gpus all", [0, 1, 2, 3, 4, 5, 6, 7]),
            ("--gpus device=3", [3]),
            ('--gpus "device=0,2"', [0, 2]),
            ("--gpus=device=GPU-11111115-aaaa-bbbb-cccc-000000000005", [5]),
            ("--gpus 2", [0, 1]),
            ("--gpus count=3,capabilities=utility", [0, 1, 2]),
            ("--gpus device=6,7 -e CUDA_VISIBLE_DEVICES=1", [7]),
            ("--gpus all --env=CUDA_VISIBLE_DEVICES=5", [5]),
            ("--device nvidia.com/gpu=1 --device=nvidia.com/gpu=4 --device /dev/fuse", [1, 4]),
            ("--device nvidia.com/gpu=all", [0, 1, 2, 3, 4, 5, 6, 7]),
            ("--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=2", [2]),
            ("-eNVIDIA_VISIBLE_DEVICES=void", [0, 1, 2, 3, 4, 5, 6, 7]),
            ("--gpus device=1 --privileged", [0, 1, 2, 3, 4, 5, 6, 7]),
            ("--gpus device=0:1", [0, 1, 2, 3, 4, 5, 6, 7]),
            ("", [0, 1, 2, 3, 4, 5, 6, 7]),
        ],
    )
    def test_by_the_options_of_a_container_and_not_by_what_is_exported(
        self, box: Box, options: str, indexes: list[int]
    ) -> None:
        box.nvidia(EIGHT)
        argv = ["docker", "run", *options.replace('"', "'\"'").split(), "image", "--device", "cuda"]
        seen = gpus_of_launch(box.gpus(), argv, {}, exported={"CUDA_VISIBLE_DEVICES": "4"})
        assert [gpu.index for gpu in seen] == indexes
        read = read_command(f"docker run {options} vllm/vllm-openai --model m").container
        assert read is not None and read.gpus == given_gpus(argv)

    def test_a_container_gets_variables_from_its_command_alone(self, box: Box) -> None:
        box.nvidia(EIGHT)
        env = {"CUDA_VISIBLE_DEVICES": "0"}
        for option, indexes in (("-e CUDA_VISIBLE_DEVICES", [2]), ("-e A=1", [2, 3])):
            argv = ["podman", "run", "--gpus", "device=2,3", *option.split(), "image"]
            assert [g.index for g in gpus_of_launch(box.gpus(), argv, env, exported={})] == indexes


class TestTheProofOfAStop:
    @pytest.mark.parametrize(
        ("before", "now"),
        [
            (gpu(), gpu(used_mib=200)),
            (gpu(), gpu(used_mib=98_000, held_mib=97_990)),  # a neighbour's, that is listed
            (gpu(), gpu(used_mib=98_000, held_mib=None)),  # a neighbour's, of an amount that is not
            (gpu(used_mib=40_000, held_mib=39_990), gpu(used_mib=98_000, held_mib=97_990)),
            (gpu(used_mib=None, total_mib=None), gpu(used_mib=None, total_mib=None)),
            (gpu(), gpu(used_mib=None)),
        ],
    )
    def test_nobody_is_accused(self, before: Gpu, now: Gpu) -> None:
        assert still_held(before, now) is None

    @pytest.mark.parametrize(
        ("before", "now"),
        [
            (gpu(), gpu(used_mib=98_000)),  # no process has it: it did not come back
            (gpu(), gpu(used_mib=98_000, held_mib=20_000)),
            (gpu(used_mib=40_000, held_mib=39_990), gpu(used_mib=40_000 + 9000, held_mib=39_990)),
            # a neighbour that ended gives no credit to what is left of the server
            (gpu(used_mib=40_000, held_mib=39_990), gpu(used_mib=49_000, held_mib=0)),
        ],
    )
    def test_memory_that_nobody_else_has_is_the_servers(self, before: Gpu, now: Gpu) -> None:
        assert still_held(before, now) == (
            f"GPU 0: {now.used_mib} MiB in use, {before.used_mib} MiB before the launch"
        )

    def test_of_a_container_a_listed_process_may_be_its_own(self) -> None:
        assert still_held(gpu(), gpu(used_mib=98_000, held_mib=97_990), told=False) is not None

    def prove(self, tmp_path: Path, before: tuple[Gpu, ...]) -> str:
        async def proven() -> str:
            async with local_host(tmp_path) as host:
                return (await prove_gpu_memory(host, StopProof(took_s=0.1), before=before, wait_s=0)).gpu

        return asyncio.run(proven())

    def test_a_neighbour_is_named_in_the_record_and_its_device_is_not_ours_if_not_used(
        self, box: Box, tmp_path: Path
    ) -> None:
        box.nvidia(EIGHT)
        used = tuple(visible_gpus(box.gpus(), {"CUDA_VISIBLE_DEVICES": "0,5"}))
        unused = tuple(visible_gpus(box.gpus(), {"CUDA_VISIBLE_DEVICES": "0,1"}))
        later = EIGHT.replace("5, GPU-11111115-aaaa-bbbb-cccc-000000000005, NVIDIA H200, 580.95.05, 4,", "")
        later += "5, GPU-11111115-aaaa-bbbb-cccc-000000000005, NVIDIA H200, 580.95.05, 98000, 143771, 98\n"
        box.nvidia(later, holders=f"GPU-11111115-aaaa-bbbb-cccc-000000000005, {os.getpid()}, 97990\n")
        assert self.prove(tmp_path, unused) == "GPU 0: 4 MiB before, 4 after, GPU 1: 4 MiB before, 4 after"
        assert self.prove(tmp_path, used) == (
            "GPU 0: 4 MiB before, 4 after, GPU 5: 4 MiB before, 98000 after, of which other processes took 97990 MiB"
        )
        box.nvidia(later)
        with pytest.raises(TeardownUnproven, match="GPU 5: 98000 MiB in use, 4 MiB before the launch"):
            self.prove(tmp_path, used)

    def test_devices_without_figures_prove_nothing_and_end_nothing(self, box: Box, tmp_path: Path) -> None:
        box.nvidia("0, GPU-2dee1e25, NVIDIA GB10, 580.126.09, [N/A], [N/A], 0\n")
        assert self.prove(tmp_path, box.gpus()).startswith("unknown: ")

    @pytest.mark.parametrize("in_container", [False, True])
    def test_what_a_stopped_container_still_holds_is_no_neighbours(
        self, box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_container: bool
    ) -> None:
        """The stop of a server by its record alone, as `down` does it: a process is listed that is not in its tree."""
        row = "0, GPU-0, NVIDIA H200, 580.95.05, 4, 143771, 0\n"
        box.nvidia(row)
        label = gpu_label(box.gpus(), in_container=in_container)
        monkeypatch.setattr(lifecycle, "prove_gpu_memory", partial(prove_gpu_memory, wait_s=0))

        async def stopped() -> str:
            async with local_host(tmp_path) as host:
                spec = ServerSpec(
                    argv=[sys.executable, "-S", "-c", "import signal; signal.pause()"], label=label
                )
                await host.start(spec, log_path=tmp_path / "server.log")
                box.nvidia(row.replace(" 4,", " 98000,"), holders=f"GPU-0, {os.getpid()}, 97990\n")
                (status,) = await host.servers()
                proof = await lifecycle.end_server(host, status)
                assert proof is not None
                return proof.gpu

        if in_container:
            with pytest.raises(TeardownUnproven, match="GPU 0: 98000 MiB in use"):
                asyncio.run(stopped())
        else:
            assert "of which other processes took 97990 MiB" in asyncio.run(stopped())

    @pytest.mark.parametrize(("in_container", "num_found"), [(False, 1), (True, 0)])
    def test_a_containers_own_processes_are_no_neighbours_of_it(
        self, box: Box, tmp_path: Path, in_container: bool, num_found: int
    ) -> None:
        row = "0, GPU-0, NVIDIA H200, 580.95.05, 4, 143771, 0\n"
        box.nvidia(row)
        label = gpu_label(box.gpus(), in_container=in_container)

        async def found() -> int:
            async with local_host(tmp_path) as host:
                spec = ServerSpec(
                    argv=[sys.executable, "-S", "-c", "import signal; signal.pause()"], label=label
                )
                server = await host.start(spec, log_path=tmp_path / "server.log")
                async with watching_neighbours(server, subject="arm") as neighbours:
                    box.nvidia(row, holders=f"GPU-0, {os.getpid()}, 9000\n")
                await server.stop(grace_s=5)
                return len(neighbours)

        assert asyncio.run(found()) == num_found


class TestANeighbourThatComesWhileWeMeasure:
    def facts(self, *holders: tuple[str, int | None, int | None]) -> HostFacts:
        rows = [{"gpu_uuid": u, "pid": p, "used_mib": m, "command": "train"} for u, p, m in holders]
        return HostFacts(
            machine=read_machine(),
            available_bytes=None,
            shm_free_bytes=None,
            disk_free_bytes={},
            port_owners={},
            gpu_holders=tuple(GpuHolder(**row) for row in rows),
        )

    @pytest.mark.parametrize(
        ("before", "after", "said"),
        [
            ([], [("GPU-0", 7, 9000)], ["pid 7 (train) came to GPU 0 and holds 9000 MiB"]),
            ([], [("GPU-0", 7, None)], ["pid 7 (train) came to GPU 0 and holds an unknown amount"]),
            ([("GPU-0", 7, 300)], [("GPU-0", 7, 900)], ["pid 7 (train) grew on GPU 0 from 300 to 900 MiB"]),
            ([("GPU-0", 7, 900)], [("GPU-0", 7, 1000)], []),
            ([("GPU-0", 7, 900)], [], []),
            ([], [("GPU-1", 7, 9000)], []),  # not a device of the server
            ([], [("GPU-0", 42, 9000)], []),  # the server's own
            ([], [("GPU-0", None, 9000)], []),  # whose it is cannot be told
            ([], [("GPU-0", 7, 20)], []),
        ],
    )
    def test_what_is_said(self, before: list[Any], after: list[Any], said: list[str]) -> None:
        found = come_between(self.facts(*before), self.facts(*after), gpus=[gpu()], ours=[42])
        assert found == said

    def test_it_is_a_finding_of_the_trial(self, box: Box, tmp_path: Path) -> None:
        box.nvidia("0, GPU-0, NVIDIA H200, 580.95.05, 4, 143771, 0\n")
        comes = f'ls "$here"/out/trials/*/requests.jsonl >/dev/null 2>&1 && echo "GPU-0, {os.getpid()}, 9000"; true'
        box.program("nvidia-smi", NVIDIA.replace('cat "$here/holders"', comes))
        (tmp_path / "study.yaml").write_text(
            "question: q\nengine: {name: fake, flags: {tokens-per-s: 2000}}\ntarget: fake-model\n"
            "arms: [{method: eagle3, drafter: fake-draft, num_draft_tokens: 3}]\nnoise_floor: false\n"
            "workload: {prompts: builtin, num_prompts: 4, max_tokens: 16, ignore_eos: true, warmup_requests: 1}\n"
            "budget: {max_trials: 1}\n",
            encoding="utf-8",
        )
        words = [
            sys.executable,
            "-m",
            "spectune",
            "run",
            "study.yaml",
            "--dir",
            "out",
            "--no-check",
            "--noisy",
        ]
        env = {**os.environ, "SPECTUNE_HOME": str(tmp_path / "home"), "PATH": str(box.folder)}
        subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, timeout=100, check=False)
        (record,) = tmp_path.glob("out/trials/*/trial.json")
        trial = json.loads(record.read_text(encoding="utf-8"))
        assert [f["message"] for f in trial["findings"] if f["code"] == "gpu-neighbour"] == [
            f"pid {os.getpid()} ({command_of(os.getpid())}) came to GPU 0 and holds 9000 MiB"
        ]
