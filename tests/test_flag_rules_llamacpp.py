"""llama.cpp's flag rules. What the engine does was measured on xllamacpp 2026.10.11549."""

import pytest
from flag_judging import alarms, finding, judged

from spectune.checkpoints.facts import CheckpointFacts
from spectune.embedded.flags import FLAGS
from spectune.preflight.flags.table import table_for

BASE = "llama-server -m x.gguf "
DRAFT = BASE + "-md d.gguf --spec-type draft-simple "


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--draft-max 16", "--spec-draft-n-max"),
        ("--draft 16", "--spec-draft-n-max"),
        ("--draft-min 1", "--spec-draft-n-min"),
        ("--spec-ngram-size-n 4", "--spec-ngram-"),
    ],
)
def test_f23_removed_flags_name_their_successor(old: str, new: str) -> None:
    found = finding(DRAFT + old, "flag-removed")
    assert found.severity == "error"
    assert new in (found.remedy or "")
    assert finding(DRAFT + old, "flag-removed", version=None).severity == "warning"
    assert alarms(DRAFT + old, version="b5000") == {}


def test_f23_draft_p_min_is_still_an_alias() -> None:
    assert alarms(DRAFT + "--spec-draft-n-max 3 --draft-p-min 0") == {}


def test_f23_the_type_mtp_became_draft_mtp() -> None:
    found = finding(BASE + "--spec-type mtp", "spec-type-unknown")
    assert "draft-mtp" in (found.remedy or "")
    assert alarms(BASE + "--spec-type mtp", version="b8407") == {}
    assert any("draft-mtp" in r for r in judged(BASE + "--spec-type mtp", version="b8407").not_checked)


def test_types_are_a_comma_separated_list() -> None:
    assert alarms(BASE + "-md d.gguf --spec-type ngram-mod,draft-eagle3") == {}
    assert alarms(BASE + "--spec-type ngram-mod,drafty") == {"spec-type-unknown": "error"}


def test_an_eagle3_draft_by_its_name_is_not_for_draft_simple() -> None:
    text = BASE + "-md llama3-EAGLE-3-q8.gguf --spec-type draft-simple"
    assert alarms(text) == {"spec-type-for-another-draft": "warning"}
    assert alarms(text.replace("draft-simple", "draft-eagle3")) == {}


def test_an_eagle3_file_without_a_type_drafts_nothing() -> None:
    eagle3 = CheckpointFacts(source="d.gguf", kind="gguf", model_type="eagle3")
    assert alarms(BASE + "-md d.gguf", draft=eagle3) == {"speculation-not-switched-on": "warning"}


def test_a_draft_without_a_type_depends_on_the_build() -> None:
    judgement = judged(BASE + "-md d.gguf")
    assert [f.severity for f in judgement.findings] == ["note"]
    assert any("--spec-type" in reason for reason in judgement.not_checked)


def test_ngram_flags_without_a_type_switch_nothing_on() -> None:
    assert alarms(BASE + "--spec-ngram-mod-n-max 64") == {"speculation-not-switched-on": "warning"}


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k", "ngram-map-k4v"])
def test_a_draft_shorter_than_its_key_is_never_made(kind: str) -> None:
    text = BASE + f"--spec-type {kind} --spec-{kind}-size-n {{}} --spec-{kind}-size-m {{}}"
    assert alarms(text.format(12, 11)) == {"ngram-draft-shorter-than-key": "warning"}
    assert alarms(text.format(12, 12)) == {}


def test_the_default_key_of_12_counts() -> None:
    text = BASE + "--spec-type ngram-simple --spec-ngram-simple-size-m 8"
    assert alarms(text) == {"ngram-draft-shorter-than-key": "warning"}


@pytest.mark.parametrize(
    "flags",
    [
        "--spec-draft-n-max 0",
        "--spec-draft-n-max 4 --spec-draft-n-min 5",
        "--spec-draft-n-min 4",  # the default n-max is 3
        "--spec-draft-p-min 1.5",
    ],
)
def test_draft_lengths_that_contradict_each_other_are_an_error(flags: str) -> None:
    assert alarms(DRAFT + flags) == {"draft-length-bounds": "error"}


def test_ngram_mod_bounds() -> None:
    assert alarms(BASE + "--spec-type ngram-mod --spec-ngram-mod-n-max 32") == {
        "draft-length-bounds": "error"
    }


def test_a38_long_drafts_without_p_min_are_noted() -> None:
    assert finding(DRAFT + "--spec-draft-n-max 16", "draft-p-min-default").severity == "note"
    assert not [
        f
        for f in judged(DRAFT + "--spec-draft-n-max 16 --spec-draft-p-min 0.75").findings
        if f.code == "draft-p-min-default"
    ]


def test_slots_share_the_context() -> None:
    text = BASE + "-c 8192 -np 4"
    assert alarms(text, max_prompt_tokens=2000, max_tokens=100) == {"context-shared-by-slots": "warning"}
    assert alarms(text, max_prompt_tokens=1900, max_tokens=148) == {}
    assert alarms(text + " -kvu", max_prompt_tokens=2000, max_tokens=100) == {}


def test_a_draft_kept_off_the_gpu_is_a_warning() -> None:
    assert alarms(DRAFT + "-ngl 99 -ngld 0") == {"draft-on-cpu": "warning"}
    assert alarms(DRAFT + "-ngl 99") == {}


def test_imposed_acceptance_is_a_warning_and_nonsense_an_error() -> None:
    assert alarms(DRAFT + "--spec-synth-len 2.5") == {"synthetic-acceptance": "warning"}
    assert alarms(DRAFT + "--spec-synth-rates 0.8,0.5") == {"synthetic-acceptance": "warning"}
    assert alarms(DRAFT + "--spec-synth-len 0.5") == {"spec-synth-refused": "error"}
    assert alarms(DRAFT + "--spec-synth-rates 0.8,x") == {"spec-synth-refused": "error"}


def test_an_unknown_flag_is_not_checked_and_a_slip_is_a_warning() -> None:
    judgement = judged(BASE + "--no-mmap")
    assert judgement.findings == ()
    assert any("no-mmap" in reason for reason in judgement.not_checked)
    assert alarms(DRAFT + "--spec-draft-nmax 4") == {"flag-unknown": "warning"}


def test_the_table_knows_every_flag_of_the_embedded_server_with_its_arity() -> None:
    known = table_for("llamacpp").by_spelling
    for flag in FLAGS:
        for name in flag.names:
            assert (known[name].takes == "none") == (flag.metavar is None), name
