"""From a conversation to training rows: token ids, and a mask over exactly what the target generated."""

from __future__ import annotations

from dataclasses import dataclass, field

from spectune.drafter.data.answers import Answer, Asker, Message
from spectune.drafter.data.plan_records import DataSampling, PlannedPrompt


@dataclass(frozen=True)
class Row:
    """One training sequence. ``spans`` are the half-open ranges of ``input_ids`` that the target generated."""

    prompt_id: str
    input_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    text: str
    finish_reason: str

    @property
    def loss_mask(self) -> list[int]:
        mask = [0] * len(self.input_ids)
        for begin, end in self.spans:
            mask[begin:end] = [1] * (end - begin)
        return mask

    @property
    def num_answer_tokens(self) -> int:
        return sum(end - begin for begin, end in self.spans)


@dataclass(frozen=True)
class Conversation:
    """The rows of one planned prompt; none: the target said nothing."""

    rows: tuple[Row, ...]
    seed: int
    num_empty: int
    ids_from: str | None
    completion_tokens: int


@dataclass
class _Rows:
    prompt_id: str
    done: list[Row] = field(default_factory=list)

    def add(self, answer: Answer, *, turn: int) -> None:
        """Extends the last row where the template shows earlier turns unchanged, else begins a new one.

        Templates that strip the reasoning of earlier turns render another
        history, and a row must hold what the server really read.
        """
        ids = (*answer.prompt_ids, *answer.answer_ids)
        span = (len(answer.prompt_ids), len(ids))
        text = answer.reasoning + answer.text
        last = self.done[-1] if self.done else None
        if last is not None and answer.prompt_ids[: len(last.input_ids)] == last.input_ids:
            self.done[-1] = Row(
                last.prompt_id, ids, (*last.spans, span), f"{last.text}\n\n{text}", answer.finish_reason
            )
            return
        name = self.prompt_id if last is None else f"{self.prompt_id}#{turn + 1}"
        self.done.append(Row(name, ids, (span,), text, answer.finish_reason))


async def converse(asker: Asker, planned: PlannedPrompt, sampling: DataSampling) -> Conversation:
    """All turns of one prompt, each answered by the target; ends at a turn without an answer."""
    prompt = planned.prompt
    seed = sampling.seed_of(prompt.prompt_id)
    messages: list[Message] = (
        [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
    )
    rows = _Rows(prompt.prompt_id)
    answers: list[Answer] = []
    num_empty = 0
    for turn, question in enumerate(prompt.turns):
        messages.append({"role": "user", "content": question})
        answer = await asker.ask(
            messages,
            max_tokens=prompt.output_tokens or sampling.max_tokens,
            temperature=sampling.temperature_of(prompt.prompt_id),
            top_p=sampling.top_p,
            seed=seed + turn,
            extra=sampling.extra_body,
        )
        answers.append(answer)
        if not answer.answer_ids or not (answer.text + answer.reasoning).strip():
            num_empty += 1
            break
        rows.add(answer, turn=turn)
        messages.append({"role": "assistant", "content": answer.text})
    return Conversation(
        rows=tuple(rows.done),
        seed=seed,
        num_empty=num_empty,
        ids_from=answers[0].ids_from if answers else None,
        completion_tokens=sum(answer.completion_tokens for answer in answers),
    )
