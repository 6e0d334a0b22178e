"""The notebooks of the docs run, and give what they show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pandas")
pytest.importorskip("duckdb")
pytest.importorskip("xllamacpp")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def notebooks_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "tools" / "notebooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = notebooks_tool()


def shown(outputs: list[dict[str, Any]]) -> list[str]:
    """What a reader sees of a cell, without white space; progress is of the day that it was measured."""
    texts = [
        o["text"] if "text" in o else o["data"]["text/plain"] for o in outputs if o.get("name") != "stderr"
    ]
    return ["".join(TOOL.text_of(text).split()) for text in texts]


@pytest.mark.parametrize("path", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_gives_what_it_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    cells = TOOL.read_notebook(path)["cells"]
    found = TOOL.run_cells(cells, scratch=tmp_path)
    kept = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    assert [shown(outputs) for outputs in found] == [shown(outputs) for outputs in kept]
    assert sum(map(len, kept)) > 5


def test_data_of_the_docs_names_no_path_of_the_machine_that_measured() -> None:
    for path in [*DOCS.glob("data/**/*"), *DOCS.glob("notebooks/*.ipynb")]:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not any(place in text for place in ("/root/", "/home/", "/Users/", "/work/")), path
