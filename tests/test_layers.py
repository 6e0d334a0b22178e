"""Arrows between packages never point back, and steps do not import each other."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "spectune"

# Lowest first; a package may import those below it. Packages of one level do not import each other.
LEVELS = [
    {"errors", "home", "race"},
    {"domain"},
    {"statistics"},
    {"models"},
    {"engines", "findings", "search"},
    {"analysis", "checkpoints", "embedded", "hosts", "transport"},
    {"bench", "preflight", "server", "store", "study_file"},
    {"diagnose", "drafter", "report"},
    {"exchange", "runner"},
    {"check", "cluster"},
    {"api", "watch"},
    {"cli", "demo"},
    {"__main__", "__init__"},
]
# `__init__` offers names of every level to those who use spectune, and none of its own to those below it.
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == "spectune":
                names = [f"spectune.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "spectune" and len(parts) > 1:
                found.add(parts[1])
    return found


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert package in LEVEL_OF, f"give {package} a level"
    for imported in imports_of(path) - {package}:
        if imported.startswith("__"):
            continue
        assert LEVEL_OF[imported] < LEVEL_OF[package], f"{package} must not import {imported}"


def test_the_core_knows_neither_the_cluster_nor_the_trainer() -> None:
    extras = {"cluster", "drafter"}
    for path in modules():
        package = path.relative_to(SOURCE).parts[0]
        if package not in {"api", "cli", *extras}:
            assert not imports_of(path) & extras, f"{path} must do without {extras}"


def test_no_engine_is_ever_imported_outside_the_launcher() -> None:
    engines = {"vllm", "sglang", "xllamacpp", "torch"}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            found = {name.split(".")[0] for name in names} & engines
            trains = path.is_relative_to(SOURCE / "drafter") and found == {"torch"}
            assert not found or trains or path.name == "llama_server.py", f"{path} imports {found}"


ENGINES = {"vllm", "sglang", "llamacpp"}
ENGINE_PLACES = ("engines/", "preflight/flags", "preflight/draft", "exchange/imports/")
"""Where an engine may be named; everybody else asks the engine's adapter or its traits."""
NAMED_ELSEWHERE = {
    "cli/drafter/data_args.py": 3,
    "diagnose/live.py": 1,
    "diagnose/log/other_lines.py": 6,
    "diagnose/log/reader.py": 6,
    "diagnose/log/run_builder.py": 5,
    "diagnose/log/triggers.py": 14,
    "diagnose/rules/acceptance.py": 6,
    "diagnose/rules/settings.py": 5,
    "drafter/data/answers.py": 1,
    "drafter/export/writer.py": 9,
    "preflight/command/arguments.py": 4,
    "preflight/command/reading.py": 2,
    "preflight/memory/estimate.py": 2,
    "preflight/memory/fit.py": 3,
}
"""How often the files beyond those places still name an engine: a list that may only shrink."""


def engine_names_in(path: Path) -> int:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return sum(isinstance(value, str) and value in ENGINES for value in values)


def test_an_engine_is_named_in_its_own_places() -> None:
    named = {str(path.relative_to(SOURCE)): engine_names_in(path) for path in modules()}
    assert {
        place: count for place, count in named.items() if count and not place.startswith(ENGINE_PLACES)
    } == NAMED_ELSEWHERE, (
        "ask `engines.registry.traits_for` or `adapter_for`; where a count fell, lower it here too"
    )
