"""The pages of the command line and of the Python API, from the parser and the code. Used by ``make_docs.py``."""

from __future__ import annotations

import argparse
import ast
import enum
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cached_property
from typing import Any, get_args

from pydantic import BaseModel

import spectune
from spectune.cli.main import build_parser
from spectune.exchange.exports.formats import Form
from spectune.exchange.exports.options import Rows

CLI_HEAD = """\
# The command line

<!-- Written by tools/make_docs.py from the parser: edit that. -->

`--json` prints one JSON document on standard output; progress and notes go to standard error. {epilog}
Files of a study that exist are never overwritten by a run: the same command resumes. `SPECTUNE_HOME` (default: the
platform's folder for user data) holds what outlives a study: running supervisors, and the embedded model.
"""
API_HEAD = """\
# The Python API

<!-- Written by tools/make_docs.py from the code: edit that. -->

{about}

```python
{example}
```

{rest}

Every error is a `SpectuneError`. Notebooks: [a study from Python](notebooks/study-from-python.ipynb),
[reading results](notebooks/reading-results.ipynb). Measuring a running server (`spectune bench`), reading logs
(`spectune diagnose`), single servers and the drafter are [commands](cli.md) only.

In signatures:

- `Overrides`: a mapping of dotted keys to values, or texts `key=value`
- `Place`: the path of a study directory, or a `StudyResults`
- `Rows`: {rows}
- `Form`: {forms}
"""
GROUPS = (
    ("A study before it runs", ("load_study", "PlannedStudy", "Preview", "PreparedStudy", "check_command")),
    ("Results", ("open_study", "StudyResults", "explain_table", "to_frame")),
    ("Several studies", ("list_studies", "compare", "gate", "query", "import_results")),
    (
        "Records",
        (
            "Study", "Arm", "Knobs", "Trial", "StudyOutcome", "StudySummary", "ArmSummary", "Explanation", "Interval",
            "CheckResult", "Finding", "StudyComparison", "GateResult", "QueryResult", "ListedStudy", "ExportOptions",
            "ArmHints", "Watcher",
        ),
    ),
    (
        "Errors",
        ("SpectuneError", "BadInput", "StudyFileError", "CheckRefused", "EnvironmentFailed", "Interrupted"),
    ),
)  # fmt: skip


def cli_page() -> str:
    parser = build_parser()
    parts = [CLI_HEAD.format(epilog=parser.epilog)]
    commands = _commands(parser)
    parts.append("\n| command | what it does |\n|---|---|")
    parts += [f"| [`{name}`](#{name.replace(' ', '-')}) | {_flat(help_)} |" for name, help_, _ in commands]
    for name, help_, command in commands:
        parts += _command(name, help_, command)
    return "\n".join(parts) + "\n"


def _commands(parser: argparse.ArgumentParser) -> list[tuple[str, str, argparse.ArgumentParser]]:
    """Each command that does something, with its help; a group of commands stands for its members."""
    found = []
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            full = command.prog.removeprefix("spectune ")
            found += _commands(command) or [(full, helps.get(name, ""), command)]
    return found


def _command(name: str, help_: str, command: argparse.ArgumentParser) -> Iterable[str]:
    yield f"\n## {name}\n"
    yield f"{_sentence(command.description or help_)}\n"
    usage = command.usage or " ".join([command.prog, "[options]", *_positionals(command)])
    yield "\n".join(f"    {line.strip()}" for line in usage.split(" | spectune")[:1])
    for more in usage.split(" | spectune")[1:]:
        yield f"    spectune{more}"
    yield "\n| argument | meaning |\n|---|---|"
    for action in command._actions:
        if not isinstance(action, argparse._HelpAction):
            yield f"| {_names(action)} | {_meaning(action, command)} |"
    if command.epilog:
        yield f"\n{_sentence(_flat(command.epilog))}"


def _positionals(command: argparse.ArgumentParser) -> list[str]:
    words = []
    for action in command._actions:
        if not action.option_strings:
            word = str(action.metavar or action.dest)
            word = {"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} ..."}.get(str(action.nargs), word)
            words.append(word)
    return words


def _names(action: argparse.Action) -> str:
    value = action.metavar or (None if action.nargs == 0 else action.dest.upper())
    if action.choices is not None and action.option_strings:
        value = "{" + ",".join(map(str, action.choices)) + "}" if len(list(action.choices)) < 6 else value
    shown = [f"`{option}{f' {value}' if value else ''}`" for option in action.option_strings]
    return ", ".join(shown or [f"`{value}`"]).replace("|", "\\|")


def _meaning(action: argparse.Action, command: argparse.ArgumentParser) -> str:
    text = action.help or ""
    if "%(" in text:
        text = text % {**vars(action), "prog": command.prog}
    elif "%%" in text:
        text = text.replace("%%", "%")
    repeat = "; repeatable" if isinstance(action, argparse._AppendAction) and "repeat" not in text else ""
    return _flat(f"{text}{repeat}").replace("|", "\\|")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _sentence(text: str) -> str:
    text = _flat(text)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ":")) else f"{text}."


def api_page() -> str:
    about, _, below = inspect.cleandoc(spectune.__doc__ or "").partition("::\n")
    code, _, rest = below.strip("\n").partition("\nThe command line")
    example = inspect.cleandoc("\n" + code)
    head = API_HEAD.format(
        about=_prose(about),
        example=example,
        rest=_prose("The command line" + rest),
        rows=_words(Rows),
        forms=_words(Form),
    )
    parts = [head]
    named = [name for _, names in GROUPS for name in names]
    assert set(named) == set(spectune.__all__) - {"__version__"}, set(named) ^ set(spectune.__all__)
    for title, names in GROUPS:
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += _entry(name, getattr(spectune, name))
    return "\n".join(parts).rstrip() + "\n"


def _words(literal: Any) -> str:
    return ", ".join(f'`"{word}"`' for word in get_args(literal))


def _entry(name: str, thing: Any) -> Iterable[str]:
    yield f"### {name}\n"
    if inspect.isfunction(thing):
        yield _code(_signature(name, thing))
        yield _doc(thing)
        return
    if issubclass(thing, Exception):
        above = thing.__mro__[1].__name__
        yield f"A `{above}`; exit code of the command line: {thing.exit_code}.\n"  # type: ignore[attr-defined]
    yield _doc(thing)
    fields = _fields(thing)
    if fields:
        yield "| field | type | meaning |\n|---|---|---|"
        yield from (f"| `{field}` | `{kind}` | {meaning} |" for field, kind, meaning in fields)
        yield ""
    if issubclass(thing, BaseModel | Exception | enum.Enum):
        members = [m for m in _members(thing) if not inspect.isfunction(m[1])]
    else:
        members = _members(thing)
    for member, value in members:
        if inspect.isfunction(value):
            yield f"\n#### {name}.{member}\n"
            yield _code(_signature(member, value))
            yield _doc(value)
        else:
            yield f"- **{member}** (`{_returns(value)}`): {_doc(_getter(value)).strip()}"
    yield ""


def _members(thing: type) -> list[tuple[str, Any]]:
    """Properties first, then methods, each in the order of the source."""
    own = [
        (name, value)
        for name, value in vars(thing).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | cached_property))
        and inspect.getdoc(_getter(value))
    ]
    return sorted(own, key=lambda pair: inspect.isfunction(pair[1]))


def _getter(value: Any) -> Any:
    return value.fget if isinstance(value, property) else getattr(value, "func", value)


def _returns(value: Any) -> str:
    return str(_getter(value).__annotations__.get("return", "Any"))


def _fields(thing: type) -> list[tuple[str, str, str]]:
    """Annotated attributes of a record or a dataclass, with the docstring below each."""
    if not (issubclass(thing, BaseModel) or hasattr(thing, "__dataclass_fields__")):
        return []
    tree = ast.parse(inspect.getsource(sys.modules[thing.__module__]))
    body = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == thing.__name__).body
    found = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        meaning = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = _prose(str(after.value.value))
        kind = _in_plain_types(ast.unparse(node.annotation)).replace("|", "\\|")
        found.append((node.target.id, kind, _flat(meaning).replace("|", "\\|")))
    return [row for row in found if not row[0].startswith("_")]


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    words = [str(p) for n, p in signature.parameters.items() if n != "self"]
    star = [i for i, p in enumerate(signature.parameters.values()) if p.kind is p.KEYWORD_ONLY]
    shift = "self" in signature.parameters
    if star:
        words.insert(star[0] - shift, "*")
    words = [re.sub(r"^(\w+): '([^']*)'", r"\1: \2", word) for word in words]
    returns = str(signature.return_annotation).strip("'")
    line = f"{name}({', '.join(words)}) -> {returns}"
    if len(line) <= 100:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{inner}) -> {returns}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _doc(thing: Any) -> str:
    return _prose(inspect.getdoc(thing) or "") + "\n"


def _prose(text: str) -> str:
    """Docstrings quote code in two backticks, Markdown in one."""
    return re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(text)).strip()


_PLAIN_TYPES = {
    "SafeText": "str",
    "SafeArgv": "tuple[str, ...]",
    "SafeEnv": "dict[str, str]",
    "SafeFields": "dict[str, Any]",
}


def _in_plain_types(words: str) -> str:
    """Without the names that only say that credentials are left out."""
    for name, plain in _PLAIN_TYPES.items():
        words = words.replace(name, plain)
    return words
