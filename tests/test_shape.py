"""What still breaks the rules of the house is on a list that may only get shorter (``tests/data/shape.json``).

``python tests/test_shape.py`` writes the list as it is now; a change that makes it longer is not landed.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "spectune"
LIST = Path(__file__).parent / "data" / "shape.json"
MOST_PARAMETERS = 6
MOST_BRANCHES = 15

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FORKS = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)


@cache
def trees() -> dict[str, ast.Module]:
    """By the file's name."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def num_parameters(function: Function) -> int:
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(each.arg not in ("self", "cls") for each in named)


def num_branches(function: Function) -> int:
    return sum(
        len(node.values) - 1 if isinstance(node, ast.BoolOp) else isinstance(node, _FORKS)
        for node in ast.walk(function)
    )


@cache
def found() -> dict[str, list[str]]:
    """By rule: what breaks it."""
    many_parameters, many_branches = [], []
    homes: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                place = f"{name}: {node.name}"
                many_parameters += [place] if num_parameters(node) > MOST_PARAMETERS else []
                many_branches += [place] if num_branches(node) > MOST_BRANCHES else []
        for node in tree.body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                homes[node.name].append(name)
    shared = [f"{name}: {', '.join(files)}" for name, files in homes.items() if len(files) > 1]
    return dict(zip(RULES, (sorted(many_parameters), sorted(many_branches), sorted(shared)), strict=True))


RULES = (
    f"more than {MOST_PARAMETERS} parameters",
    f"more than {MOST_BRANCHES} branches",
    "a public class or function named like another",
)


@pytest.mark.parametrize("rule", RULES)
def test_the_list_only_gets_shorter(rule: str) -> None:
    listed = set(json.loads(LIST.read_text(encoding="utf-8"))[rule])
    new = sorted(set(found()[rule]) - listed)
    assert not new, f"{rule}: split it, or give it another name, rather than to list it"
    gone = sorted(listed - set(found()[rule]))
    assert not gone, f"{rule}: mended, so take it off the list: python {Path(__file__).name}"


def imports(tree: ast.Module) -> set[str]:
    """Modules that are imported as soon as this one is."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("spectune."):
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return {name.removeprefix("spectune.").replace(".", "/") + ".py" for name in names}


def test_no_module_is_in_a_circle() -> None:
    needs = {name: imports(tree) for name, tree in trees().items()}
    needs = {name: found & needs.keys() for name, found in needs.items()}
    while needs:
        free = {name for name, found in needs.items() if not found & needs.keys()}
        assert free, f"they import one another: {', '.join(sorted(needs))}"
        needs = {name: found for name, found in needs.items() if name not in free}


if __name__ == "__main__":
    LIST.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
