"""The base of every record that is written to disk."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable; unknown keys are errors; NaN is refused (unknown is ``None``)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
