"""The loss mask covers exactly what the target generated, under three kinds of chat template."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from drafter_data_server import Script, vllm_like

from spectune.drafter.data.chat_encoder import TokenizerEncoder
from spectune.drafter.data.plan_records import DataSampling, PlanRequest
from spectune.drafter.data.regenerate import regenerate
from spectune.drafter.data.request import DataRequest
from spectune.drafter.data.sources import PromptSource
from spectune.errors import BadInput

parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra drafter")
transformers = pytest.importorskip("transformers", reason="needs the extra drafter")
tokenizers = pytest.importorskip("tokenizers", reason="needs the extra drafter")
pytestmark = pytest.mark.drafter

CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As SmolLM2's: a system message of its own where none is given."""
HEADERS = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""As Llama 3's: the template writes the begin token itself, and trims."""
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].lstrip() }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3's: the reasoning of earlier turns is dropped, and an empty block stands for none."""


@dataclass(frozen=True)
class Family:
    template: str
    special: tuple[str, ...]
    end: str
    kwargs: tuple[tuple[str, Any], ...] = ()

    def tokenizer(self) -> Any:
        """Byte by byte, so that every text has one way to be tokenized."""
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        model = tokenizers.models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[])
        inner = tokenizers.Tokenizer(model)
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        inner.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in self.special])
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, eos_token=self.end, clean_up_tokenization_spaces=False
        )
        made.chat_template = self.template
        return made


_IM = ("<|im_start|>", "<|im_end|>")
FAMILIES = {
    "chatml": Family(CHATML, _IM, "<|im_end|>"),
    "llama3": Family(
        HEADERS, ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<|eot_id|>"
    ),
    "qwen3": Family(THINKING, (*_IM, "<think>", "</think>"), "<|im_end|>"),
    "qwen3, thinking off": Family(
        THINKING, (*_IM, "<think>", "</think>"), "<|im_end|>", (("enable_thinking", False),)
    ),
}
ANSWERS = {
    "Where is Kyoto?": "In Japan, west of Tōkyō.\n\nIts <|old|> name means «capital».",
    "And Nara?": "An hour south of it. ",
}


def answer(messages: list[dict[str, str]], seed: int) -> str:
    return ANSWERS[messages[-1]["content"]]


def thinking_answer(messages: list[dict[str, str]], seed: int) -> str:
    return f"<think>\nA city.\n</think>\n\n{ANSWERS[messages[-1]['content']]}"


def script_for(family: Family, tokenizer: Any, **more: Any) -> Script:
    """A server with this tokenizer and template; ids by the template's own tokenising, not by our encoder."""

    def render(messages: list[dict[str, str]]) -> list[int]:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **dict(family.kwargs)
        )
        return list(ids)

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    end = tokenizer.convert_tokens_to_ids(family.end)
    return Script(render=render, encode=encode, end=end, **{"answer": answer, **more})


def rows_from(script: Script, out: Path, turns: list[str], encoder: TokenizerEncoder | None) -> list[dict]:
    out.mkdir(parents=True)
    (out / "p.jsonl").write_text(json.dumps({"question_id": "q", "turns": turns}))
    plan = PlanRequest(
        (PromptSource(str(out / "p.jsonl")),), sampling=DataSampling(max_tokens=99), turns="all"
    )
    with vllm_like(script) as server:
        asyncio.run(regenerate(server.url, DataRequest(out / "d", plan), encoder=encoder))
    return [
        r for f in sorted((out / "d" / "parts").glob("*.parquet")) for r in parquet.read_table(f).to_pylist()
    ]


def masked(row: dict, value: int) -> list[int]:
    return [token for token, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m == value]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("ids_from", ["server", "tokenizer"])
def test_the_mask_is_over_the_answer_and_its_end_and_nothing_else(
    name: str, ids_from: str, tmp_path: Path
) -> None:
    family, question = FAMILIES[name], "Where is Kyoto?"
    tokenizer = family.tokenizer()
    encoder = (
        TokenizerEncoder(tokenizer, template_kwargs=dict(family.kwargs)) if ids_from == "tokenizer" else None
    )
    script = script_for(family, tokenizer, no_ids=ids_from == "tokenizer")
    (row,) = rows_from(script, tmp_path / "one", [question], encoder)
    assert tokenizer.decode(masked(row, 1)) == ANSWERS[question] + family.end
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        tokenize=False,
        **dict(family.kwargs),
    )
    assert tokenizer.decode(masked(row, 0)) == prompt
    switches = sum(a != b for a, b in zip(row["loss_mask"], row["loss_mask"][1:], strict=False))
    assert switches == 1 and row["loss_mask"][-1] == 1


def test_the_empty_thinking_block_belongs_to_the_prompt(tmp_path: Path) -> None:
    family = FAMILIES["qwen3, thinking off"]
    tokenizer = family.tokenizer()
    (row,) = rows_from(script_for(family, tokenizer), tmp_path / "one", ["Where is Kyoto?"], None)
    assert tokenizer.decode(masked(row, 0)).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert "think" not in tokenizer.decode(masked(row, 1))


@pytest.mark.parametrize("name", ["chatml", "llama3"])
def test_turns_shown_again_unchanged_make_one_row_that_is_the_whole_conversation(
    name: str, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    script = script_for(family, tokenizer, answer=lambda m, s: answer(m, s).strip())
    (row,) = rows_from(script, tmp_path / "two", list(ANSWERS), None)
    said = [text.strip() + family.end for text in ANSWERS.values()]
    assert tokenizer.decode(masked(row, 1)) == "".join(said)
    messages = []
    for question, reply in ANSWERS.items():
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply.strip()}]
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert whole.rstrip("\n") == tokenizer.decode(row["input_ids"])


def test_a_template_that_drops_earlier_reasoning_makes_a_row_per_turn_each_as_it_was_read(
    tmp_path: Path,
) -> None:
    family = FAMILIES["qwen3"]
    tokenizer = family.tokenizer()
    script = script_for(family, tokenizer, answer=thinking_answer)
    first, second = rows_from(script, tmp_path / "two", list(ANSWERS), None)
    assert (first["prompt_id"], second["prompt_id"]) == ("q", "q#2")
    questions = list(ANSWERS)
    for row, question in ((first, questions[0]), (second, questions[1])):
        expected = f"<think>\nA city.\n</think>\n\n{ANSWERS[question]}{family.end}"
        assert tokenizer.decode(masked(row, 1)) == expected
    assert "A city" in tokenizer.decode(first["input_ids"])
    assert "A city" not in tokenizer.decode(
        masked(second, 0)
    )  # history without reasoning, as the server read it


def test_an_answer_cut_at_its_limit_has_no_end_token(tmp_path: Path) -> None:
    family = FAMILIES["chatml"]
    tokenizer = family.tokenizer()
    script = script_for(family, tokenizer, no_ids=True, finish="length")
    (row,) = rows_from(script, tmp_path / "cut", ["Where is Kyoto?"], TokenizerEncoder(tokenizer))
    assert tokenizer.decode(masked(row, 1)) == ANSWERS["Where is Kyoto?"]
    assert row["finish_reason"] == "length"


def test_a_template_rendered_with_other_arguments_than_served_is_found_out(tmp_path: Path) -> None:
    family = FAMILIES["qwen3, thinking off"]
    tokenizer = family.tokenizer()
    with pytest.raises(BadInput, match="chat template: the tokenizer given renders"):
        rows_from(
            script_for(family, tokenizer), tmp_path / "one", ["Where is Kyoto?"], TokenizerEncoder(tokenizer)
        )


def test_a_tokenizer_without_a_template_is_refused() -> None:
    tokenizer = FAMILIES["chatml"].tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(BadInput, match="no chat template"):
        TokenizerEncoder(tokenizer)
