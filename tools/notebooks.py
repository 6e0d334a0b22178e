"""Runs the notebooks of docs/notebooks without Jupyter, and writes their outputs into them.

    tools/notebooks.py [NAME...]          # run, and keep what the cells give

Cells are run in order in one namespace, in a copy of docs/notebooks and docs/data, which stay as they are. What a
cell prints and the value of its last line become its outputs, as Jupyter does it. A test runs them and compares
(tests/test_notebooks.py).
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
Cell = dict[str, Any]


def read_notebook(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def text_of(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def run_cells(cells: list[Cell], *, scratch: Path) -> list[list[Cell]]:
    """The outputs of each code cell, in order; ``scratch`` is an empty folder."""
    folder = scratch / "notebooks"
    folder.mkdir()
    shutil.copytree(FOLDER.parent / "data", scratch / "data")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = []
    with contextlib.chdir(folder):
        for number, cell in enumerate((c for c in cells if c["cell_type"] == "code"), start=1):
            found.append(_run_cell(text_of(cell["source"]), namespace, number))
    return found


def _run_cell(source: str, namespace: dict[str, Any], number: int) -> list[Cell]:
    tree = ast.parse(source, f"cell {number}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out, err, value = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs: list[Cell] = [
        {"name": name, "output_type": "stream", "text": stream.getvalue().splitlines(keepends=True)}
        for name, stream in (("stderr", err), ("stdout", out))
        if stream.getvalue()
    ]
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True), **data}
        outputs.append(
            {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def with_outputs(notebook: dict[str, Any], outputs: list[list[Cell]]) -> dict[str, Any]:
    left, number = iter(outputs), 0
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell = {**cell, "execution_count": number, "outputs": next(left)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def main() -> int:
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    os.environ["COLUMNS"] = "100"
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        notebook = read_notebook(path)
        with tempfile.TemporaryDirectory() as scratch:
            done = with_outputs(notebook, run_cells(notebook["cells"], scratch=Path(scratch)))
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"ran {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
