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
        *(
            "key",
            "apikey",
            "authkey",
            "accesskey",
            "secretkey",
            "privatekey",
            "token",
            "secret",
            "secrets",
            "pass",
            "passwd",
            "password",
            "passphrase",
        ),
        *(
            "pat",
            "credential",
            "credentials",
            "authorization",
            "auth",
            "cookie",
            "cookies",
            "dsn",
            "jwt",
            "bearer",
        ),
    }
)
"""The last word of a name that holds a credential."""
_ENDS_OF_ONE_WORD = re.compile(
    r"[a-z](?:password|passwd|passphrase|secret|token|(?:api|auth|access|secret|private)key)$"
)
_OTHER_KINDS = re.compile(
    r"(?:bos|eos|pad|unk|sep|cls|mask|image|img|audio|video|start|stop|begin|end|eot|eom|special|bonus|draft|next"
    r"|first|last|per|output|input|prompt|new|added|think|tool|decoder|forced) token"
    r"|(?:cache|sort|primary|foreign|group|dict|json|map|hash|routing|partition|state|metric|label) key"
    r"|(?:single|one|two|first|second|multi|forward|backward|per|num|fusion) pass"
)
"""A word before the last that makes it something else: ``eos_token``, ``sort-key``."""

_LOGIN = (
    r"(?:(?:docker|podman|nerdctl|buildah|skopeo|oras|helm\s{1,9}registry|hf\s{1,9}auth|huggingface-cli|az|oc)\s{1,9}"
    r"login|twine\s{1,9}upload|mongo(?:sh|dump|restore)?)"
)
_OPTIONS = r"\s(?:[^|;&\n]{0,400}?\s)??"
_BY_PROGRAM = re.compile(
    r"(?<![\w-])(?:"
    rf"curl{_OPTIONS}(?:(?:-[a-zA-Z]{{0,9}}[uU]|--(?:proxy-)?user)\s{{0,9}}=?(?=[^\s:]{{1,99}}:)|-b\s{{0,9}}(?=[^\s=]{{1,99}}=))"
    rf"|(?:https?|xh){_OPTIONS}-a\s{{0,9}}(?=[^\s:]{{1,99}}:)"
    rf"|{_LOGIN}{_OPTIONS}-p\s{{0,9}}(?!\s|-)"
    rf"|sshpass\s{{1,9}}-p\s{{0,9}}|redis-cli{_OPTIONS}-a\s{{1,9}}"
    rf"|(?:mysql|mysqldump|mysqladmin|mariadb){_OPTIONS}-p(?=\S)"
    rf"|ldap(?:search|add|modify|delete|whoami|passwd){_OPTIONS}-w\s{{0,9}}|(?:sqlcmd|zip|unzip){_OPTIONS}-P\s{{0,9}}"
    rf"|plink{_OPTIONS}-pw\s{{1,9}}|ssh-keygen{_OPTIONS}-[NP]\s{{1,9}}(?!\s|-)"
    rf"|openssl{_OPTIONS}-(?:k\s{{1,9}}|pass(?:in|out)?\s{{1,9}}pass:)"
    rf"|smbclient{_OPTIONS}-U\s{{0,9}}(?=[^\s%]{{1,99}}%)|lftp{_OPTIONS}-u\s{{0,9}}[^\s,]{{1,99}},"
    rf"|(?:wandb|vault|cargo)\s{{1,9}}login\s(?:[^|;&\n]{{0,99}}\s)??(?![-\s|;&])"
    r"|ngrok\s{1,9}(?:config\s{1,9}add-)?authtoken\s{1,9}"
    rf"|nmcli{_OPTIONS}password\s{{1,9}}|login\s{{1,9}}\S{{1,99}}\s{{1,9}}password\s{{1,9}}"
    r"|(?:echo|printf)\s{1,9}(?:-n\s{1,9}|%s\s{1,9})?(?=[^|;\n]{1,400}\|[^|;\n]{0,400}--(?:password-stdin|with-token))"
    r")"
)
"""Programs with short options for a credential, which elsewhere mean a port, a user or a prompt."""
_SET = re.compile(
    r"(?<![\w-])(?:setenv|set|ENV|ARG|(?:git|npm|yarn|pip|poetry|aws|gcloud)\s{1,9}config(?:ure)?(?:\s{1,9}set)?)\s{1,9}"
    r"(?:--\w{1,20}\s{1,9})?([A-Za-z_][\w.-]{0,99})\s{1,9}(?![-=\s])"
)
"""A command that sets a variable by its name and value."""

_SCRIPT = re.compile(r"-[a-z]{0,3}c")
"""``bash -c``: the word behind it is a command of its own."""
_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_ASSIGNMENT = re.compile(r"(?<!\w)([A-Za-z_][\w.-]{0,99})=")
_FLAG = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]{0,99})\s{1,9}(?!-)")
_FIELD = re.compile(r"""(?<!\w)(["'])([A-Za-z_][\w.-]{0,99})\1\s{0,9}:\s{0,9}(?=[\["'])""")
_LINE = re.compile(
    r"^[ \t]{0,40}(?:- )?(?!key\b|pass\b)([A-Za-z][\w.-]{1,99})[ \t]{0,9}[:=][ \t]{1,9}"
    r"(?=\S{1,999}[ \t\r]{0,9}(?:#.*)?$)",
    re.M,
)
"""A setting alone on its line, as in YAML or an INI file, with one word as its value."""
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
    (
        re.compile(r"([?&](?:x-(?:amz|goog)-)?sig(?:nature)?=)[^&\s\"'#]{8,}", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(://hooks\.slack\.com/|://discord(?:app)?\.com/api/webhooks/)[^\s\"']+"), rf"\1{REDACTED}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), REDACTED),
    (
        re.compile(
            r"\b(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|xox[abprs]-|nvapi-|AIza|dckr_pat_|pypi-"
            r"|gsk_|r8_|tskey-|npm_|xai-|pplx-|lsv2_|dop_v1_|shpat_|[sr]k_live_|ya29\.|fw_)[A-Za-z0-9_-]{16,}"
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
    text = _without_values(text, _LINE, _VALUE)
    text = _without_values(text, _SET, _VALUE)
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
    kept, at, line = [], 0, " ".join(words)
    hidden = [found.end() for found in _BY_PROGRAM.finditer(line)]
    hidden += [found.end() for found in _SET.finditer(line) if is_secret(found[1])]
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
