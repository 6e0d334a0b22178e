"""Values of YAML from anywhere: whatever is wrong with a text, one error says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

_T = TypeVar("_T")
_BEYOND = re.compile(r"chr\(\)|integer string conversion")


class NotYaml(ValueError):
    """The text, or a value in it, is not YAML; ``line`` counts from 1 where it is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(" ".join(message.split())[:300])


def yaml_values(text: str) -> Any:
    """The values of one document; raises ``NotYaml``."""
    return guarded(lambda: yaml.safe_load(text))


def guarded(read: Callable[[], _T]) -> _T:
    """What ``read`` gives; raises ``NotYaml`` for every error of PyYAML's.

    Its constructors fail with whatever Python raised: ``KeyError`` for ``!!bool maybe``, ``IndexError`` for
    ``!!int ''``, ``OverflowError`` for a character beyond Unicode.
    """
    try:
        return read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part)
        raise NotYaml(message, None if mark is None else mark.line + 1) from error
    except RecursionError as error:
        raise NotYaml("is nested too deeply") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise NotYaml(_in_words(error)) from error


def _in_words(error: Exception) -> str:
    if isinstance(error, yaml.YAMLError):
        return str(error)
    if isinstance(error, OverflowError) or _BEYOND.search(str(error)):
        return "holds a number or a character beyond what there is"
    return "holds a value that is none of its kind"
