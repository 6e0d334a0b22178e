"""`docs/reliability.md` names only tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/test_\w+\.py)::(\w+)`")


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^\s*(?:async def|def|class) {name}\b", (ROOT / file).read_text("utf-8"), re.M)
    ]
    assert missing == []
