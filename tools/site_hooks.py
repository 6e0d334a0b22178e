"""What mkdocs is told beyond mkdocs.yml: notebooks become pages. See https://www.mkdocs.org/user-guide/configuration/."""

from __future__ import annotations

import json
import re
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: Any) -> Files:
    """Each notebook as a Markdown page of the same name."""
    for file in [f for f in files if f.src_uri.endswith(".ipynb")]:
        files.remove(file)
        page = notebook_page(json.loads(file.content_string))
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages; in the repository they lead to the notebooks."""
    return re.sub(r"(\]\([^)\s]+)\.ipynb\)", r"\1.md)", markdown)


def notebook_page(notebook: dict[str, Any]) -> str:
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _block("".join(output["text"]))
    data = output["data"]
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        table = re.sub(r"<table [^>]*>", "<table>", table)  # the theme's own look
        return re.sub(r"\n\s*\n", "\n", table).strip()
    return _block("".join(data["text/plain"]))


def _block(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}"
