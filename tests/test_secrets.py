"""Credentials do not reach records."""

import pytest

from spectune.domain.secrets import is_secret, redact_argv, redact_env


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "api-key", "DB_PASSWORD", "client_secret", "hf-token"]
)
def test_names_of_credentials_are_recognised(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["max-model-len", "TOKENIZERS_PARALLELISM", "num-draft-tokens", "KEYBOARD", "monkey"]
)
def test_names_of_other_things_are_not(name: str) -> None:
    assert not is_secret(name)


def test_values_are_replaced_in_both_forms() -> None:
    assert redact_argv(["s", "--api-key", "abc", "--hf-token=def", "--port", "1"]) == (
        "s",
        "--api-key",
        "***",
        "--hf-token=***",
        "--port",
        "1",
    )
    assert redact_env({"HF_TOKEN": "x", "A": "b"}) == {"HF_TOKEN": "***", "A": "b"}
