"""Arrows between packages never point back, and steps do not import each other."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "spectune"

# Lowest first; a package may import those below it. Packages of one level do not import each other.
LEVELS = [
    {"errors"},
    {"domain"},
    {"engines", "explain", "findings", "search"},
    {"checkpoints", "embedded", "hosts", "transport"},
    {"bench", "preflight", "server", "store", "study_file"},
    {"diagnose", "drafter", "report"},
    {"exchange", "runner"},
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
