"""A test sees none of this machine's own folders, unless its markers say that it needs what lies there."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

NEEDS_WHAT_WAS_INSTALLED = ("embedded", "engine", "drafter", "browser")
"""Markers of tests that use what `make test`, `make engines` and their like put into the user's folders."""
FOLDERS = {
    "HOME": "",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "SPECTUNE_HOME": "spectune",
    "SPECTUNE_ENGINES": "engines",
    "HF_HOME": ".cache/huggingface",
}
"""Variables that lead to a user's files, and where each points in an empty home."""


_HOME = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    home = tempfile.TemporaryDirectory(prefix="spectune-empty-home-")
    config.stash[_HOME] = Path(home.name)
    config.add_cleanup(home.cleanup)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test, its fixtures included, with the variables of an empty home."""
    if any(item.get_closest_marker(name) for name in NEEDS_WHAT_WAS_INSTALLED):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for name, place in FOLDERS.items():
            patch.setenv(name, str(item.config.stash[_HOME] / place))
        return (yield)
