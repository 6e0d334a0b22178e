"""The replicas of one run as their driver knows them, by what they said and by the answers that came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spectune.cluster.replica import ReplicaNews
from spectune.drafter.data.manifest import ReplicaRecord

SILENT_AFTER_S = 20.0
"""A replica that has said nothing for so long is killed, or its node is."""


@dataclass
class ReplicaRow:
    """One replica, through all its starts."""

    number: int
    news: ReplicaNews
    heard_s: float
    nodes: list[str] = field(default_factory=list)
    num_starts: int = 0
    starts_since_answer: int = 0
    num_samples: int = 0
    completion_tokens: int = 0
    _server_starts: dict[str, int] = field(default_factory=dict)
    """By process, as those of each replica and of each process count from one; the same holds for ``_compared``."""
    _compared: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"replica {self.number} on {self.nodes[-1]}"

    @property
    def handle(self) -> Any:
        return self.news.handle

    @property
    def num_compared(self) -> int:
        return sum(self._compared.values())

    def is_silent(self, now_s: float) -> bool:
        return now_s - self.heard_s > SILENT_AFTER_S

    def record(self) -> ReplicaRecord:
        return ReplicaRecord(
            nodes=tuple(self.nodes),
            num_starts=self.num_starts,
            num_server_starts=sum(self._server_starts.values()),
            num_samples=self.num_samples,
            completion_tokens=self.completion_tokens,
        )

    def note(self, news: ReplicaNews, *, node: str, now_s: float) -> bool:
        """True: the replica has been started, for the first time or again."""
        is_new = news.process not in self._server_starts
        self.news, self.heard_s = news, now_s
        self._server_starts[news.process] = news.num_server_starts
        self._compared[news.process] = news.num_compared
        if is_new:
            self.num_starts += 1
            self.starts_since_answer += 1
            if not self.nodes or self.nodes[-1] != node:
                self.nodes.append(node)
        return is_new


class ReplicaTable:
    """Rows by actor id, in the order in which the replicas came."""

    def __init__(self) -> None:
        self._rows: dict[str, ReplicaRow] = {}

    @property
    def rows(self) -> list[ReplicaRow]:
        return list(self._rows.values())

    def note(self, news: ReplicaNews, *, node: str, now_s: float) -> tuple[ReplicaRow, bool]:
        """The replica's row, and whether it has been started."""
        row = self._rows.get(news.actor_id)
        if row is None:
            row = self._rows[news.actor_id] = ReplicaRow(len(self._rows) + 1, news, now_s)
        return row, row.note(news, node=node, now_s=now_s)

    def note_answers(self, actor_id: str, *, num_samples: int, completion_tokens: int) -> None:
        row = self._rows.get(actor_id)
        if row is not None and num_samples:
            row.starts_since_answer = 0
            row.num_samples += num_samples
            row.completion_tokens += completion_tokens

    def alive(self, now_s: float) -> list[ReplicaRow]:
        """Those that have or start a server."""
        return [row for row in self.rows if row.news.phase != "gone" and not row.is_silent(now_s)]

    def is_idle(self, now_s: float) -> bool:
        """Whether replicas serve, and none of those that do has a prompt that is not answered."""
        alive = self.alive(now_s)
        return bool(alive) and all(row.news.phase == "serving" and not row.news.num_open for row in alive)

    def records(self) -> tuple[ReplicaRecord, ...]:
        return tuple(row.record() for row in self.rows)
