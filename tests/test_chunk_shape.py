"""Reading a chunk's text by comparing bytes gives what parsing would give."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.bench.answer import Answer
from spectune.bench.chunk_shape import learn_shape

RECORDED = Path(__file__).parent / "recorded"


def chunk(text: str, key: str = "content", **more: Any) -> dict[str, Any]:
    choice = {"text": text} if key == "text" else {"delta": {"role": None, key: text}}
    return {"id": "a", "created": 1, "choices": [{"index": 0, **choice, "finish_reason": None}], **more}


def encode(event: dict[str, Any], *, ascii_only: bool = True) -> bytes:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=ascii_only).encode()


def shape_of(event: dict[str, Any]) -> Any:
    return learn_shape(encode(event))


@pytest.mark.parametrize("key", ["content", "text", "reasoning_content", "reasoning"])
def test_a_chunk_of_the_same_shape_is_read(key: str) -> None:
    shape = shape_of(chunk(" rain", key))
    assert shape.key == key
    assert shape.text_of(encode(chunk(" Wölken", key), ascii_only=False)) == " Wölken"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(chunk('say "hi"'), id="a quote"),
        pytest.param(chunk("a\\b"), id="a backslash"),
        pytest.param(chunk("line\n"), id="an escape"),
        pytest.param(chunk(""), id="no text"),
        pytest.param(chunk("x", usage={"completion_tokens": 3}), id="usage behind it"),
        pytest.param({**chunk("x"), "created": 2}, id="another second"),
        pytest.param({"error": "x"}, id="an error"),
    ],
)
def test_a_chunk_of_another_shape_is_left_to_the_parser(other: dict[str, Any]) -> None:
    assert shape_of(chunk(" rain")).text_of(encode(other)) is None


def test_text_that_is_no_utf8_is_left_to_the_parser() -> None:
    shape = shape_of(chunk(" rain"))
    assert shape.text_of(shape.head + b"\xff" + shape.tail) is None


def test_head_and_tail_may_not_overlap() -> None:
    shape = shape_of(chunk("x"))
    assert shape.text_of(shape.head + shape.tail[1:]) is None


@pytest.mark.parametrize(
    "event",
    [
        {"note": {"content": "x"}, **chunk("y")},
        {"choices": [{"message": {"content": "x"}}]},
        {"choices": [{"delta": [{"content": "x"}]}]},
        {"choices": [{"delta": {"content": "x", "reasoning_content": "y"}}]},
        {"choices": [{"delta": {"content": "x", "tool_calls": [{"function": {"arguments": "y"}}]}}]},
        {"choices": []},
        {"content": "x"},
    ],
)
def test_a_field_of_the_same_name_elsewhere_teaches_nothing(event: dict[str, Any]) -> None:
    assert shape_of(event) is None


def test_a_shape_is_of_the_answer_only_if_the_first_choice_changes() -> None:
    two = {"choices": [{"delta": {"role": "x"}}, {"delta": {"content": "second choice"}}]}
    assert shape_of(two) is None


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)


@given(
    st.lists(
        st.tuples(texts, st.sampled_from(["content", "reasoning_content"]), st.booleans(), st.integers(0, 1))
    ),
    st.booleans(),
)
def test_an_answer_holds_every_text_whatever_the_order_of_shapes(
    parts: list[tuple[str, str, bool, int]], ascii_only: bool
) -> None:
    answer = Answer()
    for number, (text, key, has_usage, second) in enumerate(parts):
        event = {**chunk(text, key), "created": second}
        if has_usage:
            event["usage"] = {"completion_tokens": number}
        assert answer.take(encode(event, ascii_only=ascii_only), float(number)) is False
    content = "".join(text for text, key, *_ in parts if key == "content")
    whole = "".join(text for text, *_ in parts)
    assert answer.content == (content or whole)
    assert len(answer.payloads) == min(64, sum(not text for text, *_ in parts))


@pytest.mark.parametrize(
    "path", sorted(RECORDED.glob("*/*/*.sse")), ids=lambda p: "-".join(p.with_suffix("").parts[-3:])
)
def test_recorded_streams_are_read_whole(path: Path) -> None:
    payloads = [
        line.removeprefix(b"data: ") for line in path.read_bytes().splitlines() if line.startswith(b"data: {")
    ]
    answer = Answer()
    for payload in payloads:
        assert answer.take(payload, 0.0) is False
    choices = [choice for payload in payloads for choice in json.loads(payload)["choices"]]
    texts = [c.get("text") or (c.get("delta") or {}).get("content") or "" for c in choices]
    assert answer.content == "".join(texts)
