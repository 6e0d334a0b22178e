"""The target's own tokenizer and chat template, for servers that return no token ids (needs transformers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spectune.drafter.data.answers import Message
from spectune.drafter.extra import needed
from spectune.errors import BadInput


class TokenizerEncoder:
    """Renders messages as the server does, with ``template_kwargs`` such as ``enable_thinking``."""

    def __init__(self, tokenizer: Any, *, template_kwargs: Mapping[str, Any] | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise BadInput(
                "--tokenizer: it has no chat template, so prompts cannot be rendered as they are served"
            )
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        self._end_ids: tuple[int, ...] | None = None

    @classmethod
    def load(cls, folder: str, *, template_kwargs: Mapping[str, Any] | None = None) -> TokenizerEncoder:
        """From a local folder. Code inside it is never run."""
        transformers = needed("transformers")
        if not Path(folder).is_dir():
            raise BadInput(
                f"--tokenizer {folder}: no such folder; give the target's folder with tokenizer.json"
            )
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"--tokenizer {folder}: {' '.join(str(error).split())[:300]}") from error
        return cls(tokenizer, template_kwargs=template_kwargs)

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the rendered prompt, up to where the answer begins."""
        return self._encode(self._render(messages, prompt=True))

    def answer_ids(self, text: str, *, ended: bool) -> tuple[int, ...]:
        """Ids of an answer, with the template's end-of-turn token if the target ended it itself."""
        ids = self._encode(text)
        return (*ids, *self._end()) if ended else ids

    def _render(self, messages: Sequence[Message], *, prompt: bool) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=prompt, **self._kwargs
                )
            )
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(f"--tokenizer: the chat template fails: {error}") from error

    def _encode(self, text: str) -> tuple[int, ...]:
        # The template writes special tokens itself.
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _end(self) -> tuple[int, ...]:
        """The first token that the template puts behind an answer, where that is a special one."""
        if self._end_ids is None:
            mark = "spectune-answer-mark"
            whole = self._render(
                [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}], prompt=False
            )
            behind = self._encode(whole.rpartition(mark)[2])
            special = set(self._tokenizer.all_special_ids)
            self._end_ids = behind[:1] if behind and behind[0] in special else ()
        return self._end_ids
