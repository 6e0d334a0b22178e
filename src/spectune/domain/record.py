"""The base of every record that is written to disk."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from spectune.domain.secrets import redact_argv, redact_env, redact_text, redacted

SafeText = Annotated[str, AfterValidator(redact_text)]
"""Text of others, of a log or an answer: a credential in it is never recorded. So of the types below."""
SafeArgv = Annotated[tuple[str, ...], AfterValidator(redact_argv)]
SafeEnv = Annotated[dict[str, str], AfterValidator(redact_env)]
SafeFields = Annotated[dict[str, Any], AfterValidator(redacted)]


class Record(BaseModel):
    """Immutable; unknown keys are errors; NaN is refused (unknown is ``None``)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
