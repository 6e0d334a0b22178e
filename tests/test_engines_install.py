"""`make engines`: what is put into an environment, and when it counts as ready."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parent.parent / "tools" / "engines"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    spec = importlib.util.spec_from_file_location("engines_install", TOOLS / "install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "engines_install", module)
    spec.loader.exec_module(module)
    return module


def test_sglang_is_told_of_amx_tiles_before_it_asks(tmp_path: Path) -> None:
    """SGLang asks once, while it is imported; here a package in its place does, on a processor without them."""
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("from torch import cpu\n", encoding="utf-8")
    (torch / "cpu.py").write_text("def _is_amx_tile_supported(): return False\n", encoding="utf-8")
    asks = "import torch\nprint(torch.cpu._is_amx_tile_supported())\n"
    (tmp_path / "sglang.py").write_text(asks, encoding="utf-8")
    (tmp_path / "other.py").write_text(asks, encoding="utf-8")
    pth = (TOOLS / "sglang_cpu" / "spectune_sglang_cpu.pth").read_text(encoding="utf-8")
    folders = f"sys.path[:0] = [{str(TOOLS / 'sglang_cpu')!r}, {str(tmp_path)!r}]"
    words = [sys.executable, "-S", "-c", f"import sys\n{folders}\n{pth}\nimport other, sglang"]
    answers = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert answers == ["False", "True"], "only SGLang's own import changes the answer"


def test_every_file_of_a_recipe_is_there(install: ModuleType) -> None:
    for recipe in install.RECIPES.values():
        names = {relative.as_posix() for _, relative in install.files_to_copy(recipe)}
        assert all(source.is_file() for source, _ in install.files_to_copy(recipe))
        assert any(name.endswith((".pth", "entry_points.txt")) for name in names)


@pytest.mark.parametrize("proof", [None, "48 tokens in 31 verify steps"])
def test_an_engine_is_ready_once_it_was_seen_to_speculate(
    install: ModuleType, tmp_path: Path, proof: str | None
) -> None:
    recipe = install.RECIPES["sglang"]
    (tmp_path / "sglang").mkdir()
    marker = {"recipe": install.recipe_hash(recipe), "finished": True, "version": "1"}
    install.write_marker(tmp_path / "sglang", {**marker, **({"proof": proof} if proof else {})})
    assert install.is_installed(tmp_path / "sglang", recipe)
    assert install.status(tmp_path)["sglang"]["ready"] is (proof is not None)
    assert install.status(tmp_path)["vllm"]["ready"] is False


def test_a_server_that_keeps_nothing_of_the_draft_is_no_proof(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import proof

    class Running:
        def __enter__(self) -> float:
            return 1.0

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(proof, "server", lambda *_: Running())
    for steps, works in ((31.0, True), (46.0, False), (0.0, False)):
        monkeypatch.setattr(proof, "ask", lambda *_, steps=steps: (48.0, steps))
        if works:
            seen = proof.prove("sglang", python=Path(sys.executable), target=tmp_path)
            assert seen == "48 tokens in 31 verify steps, ready after 1 s"
        else:
            with pytest.raises(proof.NoProof, match="hardly anything of it is kept"):
                proof.prove("sglang", python=Path(sys.executable), target=tmp_path)
