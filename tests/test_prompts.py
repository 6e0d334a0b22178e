"""The built-in prompts, and prompt files in every format, right and wrong."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.bench.prompts import builtin_prompts, load_prompts, merge_prompts, warmup_prompts
from spectune.domain.workload import Prompt
from spectune.errors import BadInput, StudyFileError

SIX = ["code", "maths", "chat", "summary", "translation", "structured"]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    """Every run of ``length`` consecutive words."""
    found = words(text)
    return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)}


def write_lines(path: Path, *records: Any, newline: str = "\n") -> str:
    path.write_bytes("".join(json.dumps(record) + newline for record in records).encode())
    return str(path)


def problems_of(path: Path, content: str | bytes, **options: Any) -> list[str]:
    """``where: message`` of each problem, with its line in front where it has one."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(StudyFileError) as caught:
        load_prompts(str(path), **options)
    assert caught.value.exit_code == 2
    assert caught.value.path == str(path)
    return [
        (f"{problem.line}: " if problem.line is not None else "") + f"{problem.where}: {problem.message}"
        for problem in caught.value.problems
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


# The built-in set


def test_each_of_the_six_categories_has_eight_prompts() -> None:
    assert Counter(prompt.category for prompt in builtin_prompts()) == dict.fromkeys(SIX, 8)


def test_every_prefix_is_balanced_over_the_categories() -> None:
    for length in range(1, 49):
        counts = Counter(prompt.category for prompt in load_prompts("builtin", limit=length))
        per_category = [counts[category] for category in SIX]
        assert max(per_category) - min(per_category) <= 1


def test_ids_number_the_prompts_of_a_category_in_order() -> None:
    expected = [f"{category}-{number:02d}" for number in range(1, 9) for category in SIX]
    assert [prompt.prompt_id for prompt in builtin_prompts()] == expected


def test_builtin_prompts_have_15_to_120_words_and_summaries_at_most_170() -> None:
    for prompt in builtin_prompts():
        assert len(prompt.turns) == 1
        count = len(prompt.turns[0].split())
        assert 15 <= count <= (170 if prompt.category == "summary" else 120), prompt.prompt_id


def test_summaries_carry_a_passage_of_80_to_150_words() -> None:
    for prompt in load_prompts("builtin:summary"):
        _, passage = prompt.turns[0].split("\n\n", 1)
        assert 80 <= len(passage.split()) <= 150, prompt.prompt_id


def test_lengths_vary_over_the_set() -> None:
    counts = sorted(len(prompt.turns[0].split()) for prompt in builtin_prompts())
    assert counts[4] < 40
    assert counts[-5] > 130


def test_no_two_prompts_of_a_category_are_nearly_the_same() -> None:
    for category in SIX:
        for one, other in itertools.combinations(load_prompts(f"builtin:{category}"), 2):
            ours, theirs = runs(one.turns[0], 3), runs(other.turns[0], 3)
            assert len(ours & theirs) / len(ours | theirs) < 0.05, (one.prompt_id, other.prompt_id)


def test_no_two_prompts_share_eight_words_in_a_row() -> None:
    """Shared text would come out of a prefix cache, or out of an n-gram table filled by another prompt."""
    everything = [*builtin_prompts(), *warmup_prompts()]
    for one, other in itertools.combinations(everything, 2):
        assert not runs(one.turns[0], 8) & runs(other.turns[0], 8), (one.prompt_id, other.prompt_id)


def test_no_two_prompts_begin_with_the_same_four_words() -> None:
    everything = [*builtin_prompts(), *warmup_prompts()]
    assert len({tuple(words(prompt.turns[0])[:4]) for prompt in everything}) == 52


def test_code_prompts_give_snippets_to_edit_or_describe_what_to_write() -> None:
    with_snippet = [prompt for prompt in load_prompts("builtin:code") if "\n    " in prompt.turns[0]]
    assert len(with_snippet) >= 5


def test_structured_prompts_ask_for_all_three_notations() -> None:
    texts = [prompt.turns[0] for prompt in load_prompts("builtin:structured")]
    assert all(re.search(r"\b(JSON|CSV|YAML)\b", text) for text in texts)
    for notation in ("JSON", "CSV", "YAML"):
        assert sum(notation in text for text in texts) >= 2


def test_translations_go_to_three_languages() -> None:
    languages = Counter(
        re.findall(r"French|German|Spanish", prompt.turns[0])[0]
        for prompt in load_prompts("builtin:translation")
    )
    assert set(languages) == {"French", "German", "Spanish"}
    assert min(languages.values()) >= 2


def test_four_warm_up_prompts_are_in_no_measured_category() -> None:
    prompts = warmup_prompts()
    assert [prompt.prompt_id for prompt in prompts] == ["warmup-01", "warmup-02", "warmup-03", "warmup-04"]
    assert not {prompt.category for prompt in prompts} & set(SIX)


def test_named_categories_are_taken_in_the_order_of_the_file() -> None:
    prompts = load_prompts("builtin: maths,code", limit=3)
    assert [prompt.prompt_id for prompt in prompts] == ["code-01", "maths-01", "code-02"]


@pytest.mark.parametrize("source", ["builtin:code,poetry", "builtin:poetry"])
def test_an_unknown_category_is_refused_with_the_valid_ones(source: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_prompts(source)
    assert "no built-in category 'poetry'" in str(caught.value)
    assert "code, maths, chat, summary, translation, structured" in str(caught.value)


def test_a_colon_without_categories_is_refused() -> None:
    with pytest.raises(BadInput, match="no built-in category ''"):
        load_prompts("builtin:")


# Formats


def test_custom_records_keep_system_category_id_and_output_tokens(file: Path) -> None:
    source = write_lines(
        file,
        {"prompt": "Hello", "output_tokens": 128},
        {"prompt": "Bye", "prompt_id": "b", "category": "chat", "system": "Be brief.", "output_tokens": None},
    )
    assert load_prompts(source) == (
        Prompt(prompt_id="line-1", turns=("Hello",), output_tokens=128),
        Prompt(prompt_id="b", turns=("Bye",), category="chat", system="Be brief."),
    )


MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["One.", "Two."], "reference": ["x"]}


def test_mt_bench_gives_the_first_turn_unless_all_are_asked_for(file: Path) -> None:
    source = write_lines(file, MT_BENCH)
    assert load_prompts(source) == (Prompt(prompt_id="81", turns=("One.",), category="writing"),)
    assert load_prompts(source, turns="all")[0].turns == ("One.", "Two.")


SHAREGPT = [
    {
        "id": "abc_0",
        "conversations": [
            {"from": "human", "value": "First question"},
            {"from": "gpt", "value": "An answer"},
            {"from": "human", "value": "Second question"},
        ],
    },
    {"id": "abc_1", "conversations": [{"from": "gpt", "value": "Left over from a split"}]},
    {
        "id": "def_0",
        "conversations": [
            {"from": "system", "value": ""},
            {"from": "user", "value": "Hi"},
            {"from": "assistant", "value": "Hello"},
        ],
    },
    {"id": "ghi_0", "conversations": []},
]


@pytest.mark.parametrize("indent", [None, 2])
def test_sharegpt_gives_the_human_turns_and_leaves_out_conversations_without_one(
    file: Path, indent: int | None
) -> None:
    file.write_text(json.dumps(SHAREGPT, indent=indent))
    assert load_prompts(str(file), turns="all") == (
        Prompt(prompt_id="abc_0", turns=("First question", "Second question")),
        Prompt(prompt_id="def_0", turns=("Hi",)),
    )
    assert [prompt.turns for prompt in load_prompts(str(file))] == [("First question",), ("Hi",)]


def test_sharegpt_without_ids_numbers_the_items_even_on_one_line(file: Path) -> None:
    file.write_text(json.dumps([{"conversations": [{"from": "human", "value": text}]} for text in "ab"]))
    assert [prompt.prompt_id for prompt in load_prompts(str(file))] == ["item-1", "item-2"]


def test_sharegpt_may_also_come_as_json_lines(file: Path) -> None:
    source = write_lines(file, *SHAREGPT)
    assert [prompt.prompt_id for prompt in load_prompts(source)] == ["abc_0", "def_0"]


def test_chat_messages_give_user_turns_and_keep_the_system_message(file: Path) -> None:
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Where is the gold?"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "And the rum?"},
    ]
    source = write_lines(file, {"messages": messages, "prompt": "Where is the gold?"})
    assert load_prompts(source, turns="all") == (
        Prompt(prompt_id="line-1", turns=("Where is the gold?", "And the rum?"), system="You are a pirate."),
    )


def test_a_byte_order_mark_crlf_and_blank_lines_change_nothing_but_line_numbers(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf\r\n{"prompt": "a"}\r\n\r\n  \r\n{"prompt": "b"}')
    assert [(p.prompt_id, p.turns) for p in load_prompts(str(file))] == [
        ("line-2", ("a",)),
        ("line-5", ("b",)),
    ]


def test_unicode_line_separators_inside_a_prompt_do_not_split_it(file: Path) -> None:
    text = "one\u2028two\u0085three\x0cfour 你好"
    file.write_text(json.dumps({"prompt": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert load_prompts(str(file))[0].turns == (text,)


def test_a_line_of_twenty_million_characters_is_one_prompt(file: Path) -> None:
    text = "word " * 4_000_000
    source = write_lines(file, {"prompt": text}, {"prompt": "b"})
    assert [len(prompt.turns[0]) for prompt in load_prompts(source)] == [20_000_000, 1]


@pytest.mark.timeout(20)
def test_a_limit_reads_no_further_than_it_needs() -> None:
    """The writing end of the pipe stays open, so reading on would wait forever."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b'{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": ')
        assert [p.turns for p in load_prompts(f"/dev/fd/{reading}", limit=2)] == [("a",), ("b",)]
    finally:
        os.close(reading)
        os.close(writing)


def test_a_limit_stops_a_list_before_its_broken_end(file: Path) -> None:
    file.write_text('[{"prompt": "a"}, {"prompt": "b"}, {"prompt": ')
    assert len(load_prompts(str(file), limit=2)) == 2


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize("source", ["builtin", "nowhere.jsonl"])
def test_a_limit_below_one_is_refused(source: str, limit: int) -> None:
    with pytest.raises(BadInput, match=f"limit must be >= 1, got {limit}"):
        load_prompts(source, limit=limit)


def test_a_limit_above_the_size_of_the_set_gives_all_of_it() -> None:
    assert len(load_prompts("builtin", limit=1000)) == 48


def test_a_relative_path_starts_at_base_dir(file: Path) -> None:
    write_lines(file, {"prompt": "a"})
    assert load_prompts("prompts.jsonl", base_dir=file.parent) == load_prompts(str(file))
    assert load_prompts(str(file), base_dir=Path("/nowhere")) == load_prompts(str(file))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip)
PROMPTS = st.lists(
    st.builds(
        Prompt,
        prompt_id=TEXT,
        turns=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
        category=st.none() | TEXT,
        system=st.none() | TEXT,
        output_tokens=st.none() | st.integers(min_value=1),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda prompt: prompt.prompt_id,
)


@settings(max_examples=200, deadline=None)
@given(prompts=PROMPTS, newline=st.sampled_from(["\n", "\r\n", "\n\n"]), escape=st.booleans())
def test_prompts_written_as_json_lines_come_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[Prompt], newline: str, escape: bool
) -> None:
    path = tmp_path_factory.mktemp("round") / "set.jsonl"
    lines = [json.dumps(prompt.model_dump(), ensure_ascii=escape) + newline for prompt in prompts]
    path.write_bytes("".join(lines).encode())
    assert load_prompts(str(path), turns="all") == tuple(prompts)
    assert load_prompts(str(path), limit=2) == tuple(
        prompt.model_copy(update={"turns": prompt.turns[:1]}) for prompt in prompts[:2]
    )


@settings(max_examples=100, deadline=None)
@given(prompts=PROMPTS, indent=st.sampled_from([None, 0, 3]))
def test_prompts_written_as_one_list_of_messages_come_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[Prompt], indent: int | None
) -> None:
    def record(prompt: Prompt) -> dict[str, Any]:
        said = [{"role": "user", "content": turn} for turn in prompt.turns]
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        answered = [part for turn in said for part in (turn, {"role": "assistant", "content": "ok"})]
        rest = prompt.model_dump(include={"prompt_id", "category", "output_tokens"})
        return {**rest, "messages": [*system, *answered]}

    path = tmp_path_factory.mktemp("round") / "set.json"
    path.write_text(json.dumps([record(prompt) for prompt in prompts], indent=indent))
    assert load_prompts(str(path), turns="all") == tuple(prompts)


VALID = json.dumps(
    [SHAREGPT[0], {"conversations": [{"from": "human", "value": "caf\u00e9"}]}], indent=1
).encode()
CUSTOM = b'{"prompt": "a", "output_tokens": 5}\r\n\n{"prompt": "\\ud83d\\ude00", "prompt_id": 7}\n'
NOISE = st.binary(max_size=6) | st.text('[]{}",:\\ \n1-.e', max_size=6).map(str.encode)


@settings(max_examples=500, deadline=None)
@given(valid=st.sampled_from([VALID, CUSTOM, b""]), noise=NOISE, data=st.data())
def test_no_damage_to_a_file_raises_anything_but_a_file_error(
    tmp_path_factory: pytest.TempPathFactory, valid: bytes, noise: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(valid)))
    end = data.draw(st.integers(start, len(valid)))
    path = tmp_path_factory.mktemp("noise") / "noise"
    path.write_bytes(valid[:start] + noise + valid[end:])
    try:
        prompts = load_prompts(str(path), turns="all")
    except StudyFileError as error:
        assert 1 <= len(error.problems) <= 21
    else:
        assert prompts


# Mistakes


def test_a_missing_file_is_named_with_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_prompts("gone.jsonl", base_dir=tmp_path)
    assert str(tmp_path / "gone.jsonl") in str(caught.value)
    assert "No such file" in str(caught.value)
    assert "'builtin'" in str(caught.value)


@pytest.mark.parametrize(("source", "reason"), [(".", "directory"), ("a\0b", "null byte"), ("", "directory")])
def test_what_cannot_be_opened_is_bad_input(tmp_path: Path, source: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        load_prompts(source, base_dir=tmp_path)


def test_all_problems_of_a_file_come_together_each_with_its_line(file: Path) -> None:
    lines = [
        '{"prompt": "fine", "prompt_id": "a"}',
        '{"prompt": "  "}',
        '{"prompt": "x", "output_tokens": true}',
        '{"prompt": "x", "output_tokens": 0, "category": 3}',
        '{"prompt": "x", "output_tokens": 12.0}',
        '{"prompt": ["x"]}',
        '{"text": "x"}',
        '{"prompt": "x"',
        "17",
        '{"prompt": "again", "prompt_id": "a"}',
        '{"prompt": "x", "prompt_id": ""}',
        '{"prompt": "x", "prompt_id": 1.5}',
        '{"prompt": "x", "system": {"a": 1}}',
        '{"prompt": "\\ud83d"}',
    ]
    assert problems_of(file, "\n".join(lines)) == [
        "2: prompt: is empty",
        "3: output_tokens: must be a whole number >= 1, got True",
        "4: category: must be text, got 3",
        "4: output_tokens: must be a whole number >= 1, got 0",
        "5: output_tokens: must be a whole number >= 1, got 12.0",
        "6: prompt: must be text, got ['x']",
        "7: prompt: is missing, though the first record has it",
        "8: record: is not JSON: Expecting ',' delimiter at column 15",
        "9: record: must be a JSON object, got 17",
        "10: prompt_id: 'a' is already that of line-1",
        "11: prompt_id: is empty",
        "12: prompt_id: must be text, got 1.5",
        "13: system: must be text, got {'a': 1}",
        "14: prompt: holds half of a surrogate pair, which cannot be sent as UTF-8",
    ]


def test_the_message_names_the_file_the_line_and_the_field(file: Path) -> None:
    file.write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    with pytest.raises(StudyFileError) as caught:
        load_prompts(str(file))
    assert str(caught.value) == f"{file}: 1 problem\n  line 2: prompt: is empty"


def test_twenty_problems_are_listed_and_the_others_counted(file: Path) -> None:
    file.write_text('{"prompt": "a"}\n' + '{"prompt": ""}\n' * 33)
    with pytest.raises(StudyFileError) as caught:
        load_prompts(str(file))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{file}: 33 problems"
    assert lines[20] == "  line 21: prompt: is empty"
    assert lines[21:] == ["  and 13 more"]


def test_exactly_twenty_problems_are_all_listed(file: Path) -> None:
    assert len(problems_of(file, '{"prompt": ""}\n' * 20)) == 20


def test_an_unknown_format_names_the_keys_found_and_those_understood(file: Path) -> None:
    (problem,) = problems_of(file, '{"question": "a", "answer": "b"}\n' * 30)
    assert problem.startswith("1: format: unknown; keys found: 'question', 'answer'; understood are ")
    for key in ("prompt", "turns", "conversations", "messages"):
        assert f'"{key}"' in problem


def test_an_unknown_format_with_a_thousand_keys_stays_readable(file: Path) -> None:
    (problem,) = problems_of(file, json.dumps({f"{'k' * 500}{i}": i for i in range(1000)}))
    assert len(problem) < 1500


@pytest.mark.parametrize("content", ["", "\n \r\n", "\ufeff", "[]", " [\n]\n"])
def test_an_empty_file_is_refused(file: Path, content: str) -> None:
    (problem,) = problems_of(file, content)
    assert problem.startswith("file: is empty; understood are ")


def test_plain_text_gives_one_mistake_and_the_formats_rather_than_one_per_line(file: Path) -> None:
    first, second = problems_of(file, "Tell me a joke.\n" * 500)
    assert first == "1: record: is not JSON: Expecting value at column 1"
    assert second.startswith("file: holds no record that can be read; understood are ")


def test_bytes_that_are_not_utf8_are_placed(file: Path) -> None:
    latin = b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n'
    assert problems_of(file, latin) == ["2: text: byte 0xe9 is not UTF-8; save the file as UTF-8"]
    as_list = b'[{"prompt": "a"},\n\n{"prompt": "caf\xe9"}]'
    assert problems_of(file, as_list)[0] == "3: text: byte 0xe9 is not UTF-8; save the file as UTF-8"


def test_a_file_in_utf16_says_what_to_do(file: Path) -> None:
    first, _ = problems_of(file, '{"prompt": "a"}\n'.encode("utf-16"))
    assert first == "1: text: byte 0xff is not UTF-8; save the file as UTF-8"


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5_000])
def test_json_that_python_refuses_to_read_is_a_problem_of_its_line(file: Path, value: str) -> None:
    (problem,) = problems_of(file, '{"prompt": "a"}\n{"prompt": ' + value + "}\n")
    assert problem.startswith("2: record: is not JSON that can be read: ")
    problems = problems_of(file, '[{"prompt": "a"},\n{"prompt": ' + value + "}]")
    assert problems[0].startswith("2: item-2: is not JSON that can be read: ")


def test_a_list_gives_item_and_line_of_each_problem(file: Path) -> None:
    content = '[{"prompt": "a"},\n 5, {"prompt": ""},\n\n{"prompt": "b", "output_tokens": "9"}]'
    assert problems_of(file, content) == [
        "2: item-2: must be a JSON object, got 5",
        "2: item-3, prompt: is empty",
        "4: item-4, output_tokens: must be a whole number >= 1, got '9'",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('[{"prompt": "a"},\n{"prompt": "b"', "2: item-2: is not JSON: Expecting ',' delimiter at column 15"),
        ('[{"prompt":\n "a"},\n', "3: item-2: is not JSON: Expecting value at column 1"),
        (
            '[\n{"prompt": "a"},\n{\n"prompt" "b"}]',
            "4: item-2: is not JSON: Expecting ':' delimiter at column 10",
        ),
        ('[{"prompt": "a"},]', "1: item-2: is not JSON: Expecting value at column 18"),
        ('[{"prompt": "a"}\n {"prompt": "b"}]', "2: list: must go on"),
        ('[{"prompt": "a"}\n', "2: list: must go on"),
        ('[{"prompt": "a"}]\n[]', "1: list: must go on"),
    ],
)
def test_a_list_that_is_cut_off_or_broken_is_refused(file: Path, content: str, expected: str) -> None:
    (problem,) = problems_of(file, content)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"turns": []}, "turns: must be a list of user messages, got []"),
        ({"turns": "Hello"}, "turns: must be a list of user messages, got 'Hello'"),
        ({"turns": ["a", " "]}, "turns[1]: is empty"),
        ({"turns": ["a", 5]}, "turns[1]: must be text, got 5"),
        ({"messages": {}}, "messages: must be a list, got {}"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages: has no message with role 'user'"),
        ({"messages": ["a", {"role": "user", "content": "b"}]}, "messages[0]: must be an object with"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: must be text, got None"),
        ({"conversations": [{"from": "human", "value": ""}]}, "conversations[0].value: is empty"),
        ({"conversations": [{"value": "a"}]}, "conversations[0]: must be an object with 'from' and 'value'"),
        ({"conversations": None}, "conversations: must be a list, got None"),
    ],
)
def test_a_malformed_record_is_placed_to_the_field(file: Path, record: Any, expected: str) -> None:
    problems = problems_of(file, json.dumps(record) + "\n", turns="all")
    assert problems[0].startswith(f"1: {expected}")


def test_a_bad_later_turn_does_not_matter_when_only_the_first_is_sent(file: Path) -> None:
    source = write_lines(file, {"turns": ["a", ""]})
    assert load_prompts(source)[0].turns == ("a",)


def test_an_id_that_equals_the_number_given_to_another_line_is_a_duplicate(file: Path) -> None:
    assert problems_of(file, '{"prompt": "a", "prompt_id": "line-2"}\n{"prompt": "b"}') == [
        "2: prompt_id: 'line-2' is already that of line-1"
    ]


def test_a_file_in_which_no_user_speaks_is_refused(file: Path) -> None:
    content = json.dumps([{"conversations": []}, {"conversations": [{"from": "gpt", "value": "x"}]}])
    assert problems_of(file, content) == ["file: a user speaks in none of its conversations"]


def test_several_sources_take_turns_and_keep_ids_apart(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    second.write_text('{"prompt": "three"}\n')
    sets = [load_prompts(str(first)), load_prompts(str(second))]
    merged = merge_prompts(sets)
    assert [(p.prompt_id, p.turns[0]) for p in merged] == [
        ("line-1", "one"),
        ("line-1@2", "three"),
        ("line-2", "two"),
    ]
    assert [p.turns[0] for p in merge_prompts(sets, limit=2)] == ["one", "three"]
    assert merge_prompts([]) == ()
