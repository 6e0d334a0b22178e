"""Credentials: what they look like, in one list, and the same text without them.

Two things give a credential away: the name of what it is assigned to (``HF_TOKEN=...``, ``--api-key ...``, a header, a
field of JSON), and its own shape (``hf_...``, a URL with a password). A name that only looks like one is worse than
a name that is missed in a rare form: ``--max-tokens`` and ``eos_token`` stay readable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "***"

_SECRET_WORDS = frozenset(
    {
        *("key", "apikey", "token", "secret", "secrets", "pass", "passwd", "password", "passphrase"),
        *("pat", "credential", "credentials", "authorization", "auth", "cookie", "cookies", "dsn", "jwt"),
    }
)
"""The last word of a name that holds a credential."""
_ENDS_OF_ONE_WORD = re.compile(r"[a-z](?:password|passwd|passphrase|secret|token|apikey)$")
_OTHER_KINDS = re.compile(
    r"(?:bos|eos|pad|unk|sep|cls|mask|image|img|audio|video|start|stop|begin|end|eot|eom|special|bonus|draft|next"
    r"|first|last|per|output|input|prompt|new|added|think|tool|decoder|forced) token"
    r"|(?:cache|sort|primary|foreign|group|dict|json|map|hash|routing|partition|state|metric|label) key"
    r"|(?:single|one|two|first|second|multi|forward|backward|per|num|fusion) pass"
)
"""A word before the last that makes it something else: ``eos_token``, ``sort-key``."""

_LOGIN = r"(?:docker|podman|nerdctl|buildah|skopeo|oras|helm\s{1,9}registry|hf\s{1,9}auth|huggingface-cli)\s{1,9}login"
_BY_PROGRAM = re.compile(
    r"(?<![\w-])(?:"
    r"curl\s(?:[^|;&\n]{0,400}?\s)??(?:(?:-[uU]|--(?:proxy-)?user)\s{0,9}=?(?=[^\s:]{1,99}:))"
    rf"|{_LOGIN}\s(?:[^|;&\n]{{0,400}}?\s)??-p\s{{0,9}}"
    r"|sshpass\s{1,9}-p\s{0,9}|redis-cli\s(?:[^|;&\n]{0,400}?\s)??-a\s{1,9}"
    r"|(?:mysql|mysqldump|mysqladmin|mariadb)\s(?:[^|;&\n]{0,400}?\s)??-p(?=\S)"
    r")"
)
"""Programs with short options for a credential, which elsewhere mean a port, a user or a prompt."""

_SCRIPT = re.compile(r"-[a-z]{0,3}c")
"""``bash -c``: the word behind it is a command of its own."""
_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_ASSIGNMENT = re.compile(r"(?<!\w)([A-Za-z_][\w.-]{0,99})=")
_FLAG = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]{0,99})\s{1,9}(?!-)")
_FIELD = re.compile(r"""(?<!\w)(["'])([A-Za-z_][\w.-]{0,99})\1\s{0,9}:\s{0,9}(?=[\["'])""")
_HEADER = re.compile(
    r"\b(?:(?:proxy-)?authorization|(?:set-)?cookie|(?:x-)?(?:[a-z]{1,20}-){0,3}(?:api-key|auth-token))\s{0,9}:\s{0,9}"
    r"(?:(?:bearer|basic|token)\s{1,9})?",
    re.IGNORECASE,
)
_VALUE = re.compile(r"""[\[(]*("[^"]*"|'[^']*'|[^\s"'`&;,)}\]|<>]+)""")
_HEADER_VALUE = re.compile(r"""([^\s"'][^"'\n]*)""")
_NO_VALUE = re.compile(
    r"""["']?(?:none|null|true|false|\d{1,6}|\*+|[$%{].*|<.*|\.{3})?["']?""", re.IGNORECASE | re.DOTALL
)
_SHAPES = (
    (
        re.compile(r"""(\b[A-Za-z][A-Za-z0-9+.-]{0,19}://[^\s/:@"'?#]{0,99}:)[^\s/"'?#]{1,999}@"""),
        rf"\1{REDACTED}@",
    ),
    (re.compile(r"""(https?://)[^\s/:@"'?#]{1,999}@""", re.IGNORECASE), rf"\1{REDACTED}@"),
    (re.compile(r"(\bBearer\s{1,9})(?=[\w.~+/-]{0,999}\d)[\w.~+/-]{16,}=*", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), REDACTED),
    (
        re.compile(
            r"\b(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|xox[abprs]-|nvapi-|AIza|dckr_pat_|pypi-)[A-Za-z0-9_-]{16,}"
            r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
        ),
        REDACTED,
    ),
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        REDACTED,
    ),
)


def is_secret(name: str) -> bool:
    """Whether a variable, flag or field of this name holds a credential, judged by its last two words.

    A number at the end tells several of one kind apart: ``HF_TOKEN_2``, ``password1``.
    """
    words = [word.lower() for word in _WORDS.split(name[-200:].rstrip("0123456789_-")) if word]
    if words[-1:] == ["base"]:
        words.pop()  # SECRET_KEY_BASE
    if not words:
        return False
    *before, last = words
    if last == "pwd":
        return before not in ([], ["old"])  # PWD is the folder
    if _OTHER_KINDS.fullmatch(" ".join(words[-2:])):
        return False
    return last in _SECRET_WORDS or bool(_ENDS_OF_ONE_WORD.search(last))


def redact_text(text: str) -> str:
    """``text`` as it may be recorded or shown: each credential in it is replaced."""
    for pattern, put in _SHAPES:
        text = pattern.sub(put, text)
    text = _without_values(text, _ASSIGNMENT, _VALUE)
    text = _without_values(text, _FLAG, _VALUE)
    text = _without_values(text, _FIELD, _VALUE)
    text = _without_values(text, _BY_PROGRAM, _VALUE)
    return _without_values(text, _HEADER, _HEADER_VALUE)


def _without_values(text: str, names: re.Pattern[str], values: re.Pattern[str]) -> str:
    """Hides the value behind each name that holds a credential; the last group of ``names`` is the name."""
    pieces, at = [], 0
    for found in names.finditer(text):
        if found.start() < at or (found.lastindex and not is_secret(found[found.lastindex])):
            continue
        value = values.match(text, found.end())
        if value is None or _NO_VALUE.fullmatch(value[1]):
            continue
        quote = value[1][0] if value[1][0] in "\"'" else ""
        pieces += [text[at : value.start(1)], quote, REDACTED, quote]
        at = value.end(1)
    return "".join([*pieces, text[at:]]) if pieces else text


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be recorded."""
    return {
        name: REDACTED if value and is_secret(name) else redact_text(value) for name, value in env.items()
    }


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be recorded: values of flags such as ``--api-key``, and credentials within words."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("--"):
            shown.append(REDACTED)
            hide_next = False
            continue
        name, equals, value = word.rpartition("=") if word.startswith("--env=") else word.partition("=")
        secret = " " not in name and is_secret(name)
        is_script = bool(shown) and bool(_SCRIPT.fullmatch(shown[-1])) and " " in word
        if secret and equals and not is_script and not _NO_VALUE.fullmatch(value):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(redact_text(word))
        hide_next = secret and not equals and word.startswith("-")
    return _with_programs(shown)


def _with_programs(words: Sequence[str]) -> tuple[str, ...]:
    """Hides what follows a short option for a credential, which depends on the program before it."""
    kept, at = [], 0
    hidden = [found.end() for found in _BY_PROGRAM.finditer(" ".join(words))]
    for word in words:
        begin = next((place - at for place in hidden if at <= place < at + len(word)), None)
        kept.append(word if begin is None else word[:begin] + REDACTED)
        at += len(word) + 1
    return tuple(kept)


def redacted(value: Any) -> Any:
    """The same with every text in it redacted, and with the values of fields whose names give them away."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {
            name: REDACTED if is_secret(str(name)) and _is_value(inner) else redacted(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        is_words = all(isinstance(inner, str) for inner in value)
        return type(value)(redact_argv(value) if is_words else map(redacted, value))
    return value


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | float | list | tuple) and not isinstance(value, bool) and value != ""


def url_as_shown(text: str) -> str:
    """An address for a message: without user, password and query, which may all hold a credential."""
    scheme, found, rest = text.partition("://")
    place = rest if found else scheme
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    host, slash, path = place.partition("/")
    return f"{scheme}://" * bool(found) + host.rpartition("@")[2] + slash + path
