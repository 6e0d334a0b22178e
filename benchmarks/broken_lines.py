"""Breaks lines of spectune at random, one at a time, and says which of them a test notices.

    python benchmarks/broken_lines.py --lines 30 --seed 1 --json FILE

Lines of ``src/spectune`` are drawn with equal chances among those that can be broken in one of these ways: a comparison
turned, a ``not`` dropped, ``and`` and ``or`` swapped, a constant changed, a ``raise`` or a returned value removed. Each
is broken in a copy of the repository, never here. Then the tests that import its module run, those that import it
directly first, until one fails or the time for a line is over. A test that fails without the broken line as well is
left out. ``lived``: none of them noticed. ``undecided``: none of those that there was time for. Some broken lines mean
the same as before, so look at each that lived.

A line that no longer asks before it kills or deletes could do harm. So tests run with process ids, /tmp and /dev/shm of
their own, and everything else is read-only to them. This needs root and util-linux.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src") / "spectune"
OTHER_LANES = re.compile(
    r"^\s*(?:import|from) (?:torch|ray|xllamacpp)\b|^src/spectune/(?:drafter|embedded|demo)/", re.M
)
"""What needs torch, Ray or llama.cpp is tested in lanes of its own, and is left out here."""
LANE = "not engine and not drafter and not browser and not stores and not ray and not embedded"
APART = """mount --make-rprivate / && mount --bind "$1" /mnt && mount -t tmpfs tmpfs /tmp && cp -a /mnt /tmp/copy &&
mount -t tmpfs tmpfs /dev/shm && for place in $(findmnt --real -rno TARGET); do
case "$place" in /tmp/*) continue ;; esac; mount -o remount,bind,ro "$place" || exit 99; done
cd /tmp/copy && shift && exec "$@" """
TURNED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "in": "not in",
    "not in": "in",
} | {
    "is": "is not",
    "is not": "is",
}
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Break:
    """One way to break one line: the text from ``start`` to ``end`` (bytes of that line) becomes ``new``."""

    path: str
    line: int
    start: int
    end: int
    new: str
    way: str


@dataclass(frozen=True)
class Outcome:
    broken: Break
    before: str
    after: str
    fate: str
    by: str
    """The test that failed, or how many test files ran."""
    took_s: float


# --- what can be broken ------------------------------------------------------------------------------------


def breaks_of(path: Path, source: str) -> Iterator[Break]:
    lines = [line.encode() for line in source.splitlines()]
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def at(line: int, start: int, end: int, new: str, way: str) -> Break:
        return Break(str(path), line, start, end, new, way)

    def between(left: ast.expr, right: ast.expr, words: dict[str, str], way: str) -> Iterator[Break]:
        if left.end_lineno != right.lineno:
            return
        gap = lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
        word = gap.strip(" ()")
        if word in words:
            start = (left.end_col_offset or 0) + gap.index(word)
            yield at(right.lineno, start, start + len(word), words[word], way)

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                yield from between(left, right, TURNED, "comparison turned")
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, {"and": "or", "or": "and"}, "and/or swapped")
        elif (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.Not)
            and node.lineno == node.operand.lineno
        ):
            yield at(node.lineno, node.col_offset, node.operand.col_offset, "", "not dropped")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            text = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
            if (
                text in (repr(node.value), f"{node.value:_}")
                and getattr(parents[node], "arg", "") != "frozen"
            ):
                yield at(
                    node.lineno,
                    node.col_offset,
                    node.end_col_offset or 0,
                    _other(node.value),
                    "constant changed",
                )
        elif (
            isinstance(node, (ast.Raise, ast.Return))
            and node.lineno == node.end_lineno
            and _removable(node, parents)
        ):
            new = "pass" if isinstance(node, ast.Raise) else "return None"
            yield at(
                node.lineno, node.col_offset, node.end_col_offset or 0, new, f"{new.split()[0]}: removed"
            )


def _other(value: float) -> str:
    """Off by one where that shows; a time or size is doubled."""
    if isinstance(value, bool):
        return repr(not value)
    return repr(value + 1 if abs(value) <= 10 else value * 2)


def _removable(node: ast.Raise | ast.Return, parents: dict[ast.AST, ast.AST]) -> bool:
    """Not a bare return, and not the whole of an abstract method."""
    parent = parents[node]
    if isinstance(node, ast.Raise):
        return not isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) or len(parent.body) > 2
    return node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None)


def drawn(number: int, seed: int, under: str) -> list[Break]:
    by_line: dict[tuple[str, int], list[Break]] = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        source, path = file.read_text(encoding="utf-8"), file.relative_to(ROOT)
        if under in str(path) and not OTHER_LANES.search(f"{path}\n{source}"):
            for found in breaks_of(path, source):
                by_line.setdefault((found.path, found.line), []).append(found)
    draw = random.Random(seed)
    return [draw.choice(by_line[key]) for key in draw.sample(sorted(by_line), min(number, len(by_line)))]


# --- which tests to run ------------------------------------------------------------------------------------


def imports_of(source: str, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    found |= set(re.findall(r"\bspectune(?:\.\w+)+", source))  # started by name, as servers are
    if re.search(r"""["']-m["'], ["']spectune["']""", source):
        found.add("spectune.__main__")
    return found & known


def rings(copy: Path, broken: Break) -> Iterator[list[str]]:
    """Test files by their distance from the broken line's module along imports, the nearest first."""
    files = [*(copy / PACKAGE).rglob("*.py"), *(copy / "tests").glob("*.py")]
    name_of = {file: ".".join(file.relative_to(copy / ("src" if PACKAGE.parts[0] in file.parts else "tests"))
               .with_suffix("").parts).removesuffix(".__init__") for file in files}  # fmt: skip
    known = set(name_of.values())
    texts = {name_of[file]: file.read_text(encoding="utf-8") or " " for file in files}
    imports = {name: imports_of(text, known) for name, text in texts.items()}
    own = re.findall(r"^(?:class|def|async def) ([A-Za-z]\w+)", (copy / broken.path).read_text("utf-8"), re.M)
    share = {  # how often a test file says a name of this module
        name: sum(len(re.findall(rf"\b{word}\b", texts[name])) for word in (*own, Path(broken.path).stem))
        / len(texts[name])
        for name in texts
        if name.startswith("test_")
    }
    ring, seen = {name_of[copy / broken.path]}, {name_of[copy / broken.path]}
    while ring:
        if tests := [name for name in ring if name.startswith("test_")]:
            yield [f"tests/{name}.py" for name in sorted(tests, key=lambda name: (-share[name], name))]
        ring = {name for name, used in imports.items() if used & ring} - seen
        seen |= ring


# --- running them ------------------------------------------------------------------------------------------


def copied(folder: Path) -> Path:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def failing(copy: Path, tests: Sequence[str], left_out: set[str], limit_s: float) -> list[str]:
    """The first test that fails; nothing where none does, or the time is over."""
    apart = ["unshare", "-mpf", "--ipc", "--mount-proc", "--kill-child", "sh", "-c", APART, "sh", str(copy)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-m",
        LANE,
        "--timeout=60",
    ]
    skipped = [f"--deselect={name}" for name in sorted(left_out)]
    env = {**os.environ, "PYTHONPATH": "/tmp/copy/src", "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.Popen([*apart, *command, *skipped, *tests], env=env, stdout=subprocess.PIPE, text=True)
    try:
        said, _ = run.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()
        return []
    if run.returncode in (0, 5):
        return []
    if run.returncode == 99 or not said:
        sys.exit("the tests could not be set apart: run this as root, with unshare and findmnt")
    if run.returncode == 4:
        sys.exit(f"pytest did not take its command:\n{said}")
    return FAILED.findall(said) or ["the test run itself: it hangs or cannot begin"]


def tried(copy: Path, broken: Break, left_out: set[str], limit_s: float) -> Outcome:
    file, began, ran = copy / broken.path, time.monotonic(), 0
    whole = file.read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    raw = lines[broken.line - 1].encode()
    before, after = (
        raw.decode().strip(),
        (raw[: broken.start] + broken.new.encode() + raw[broken.end :]).decode(),
    )
    lines[broken.line - 1] = after

    def outcome(fate: str, by: str) -> Outcome:
        return Outcome(broken, before, after.strip(), fate, by, round(time.monotonic() - began, 1))

    for tests in rings(copy, broken):
        while (left_s := began + limit_s - time.monotonic()) > 0:
            file.write_text("".join(lines), encoding="utf-8")
            try:
                names = failing(copy, tests, left_out, left_s)
            finally:
                file.write_text(whole, encoding="utf-8")
            by_itself = [
                n for n in names if "::" in n and n in failing(copy, [n.split("[")[0]], left_out, limit_s)
            ]
            left_out |= set(by_itself)
            if not by_itself:
                break
        else:
            return outcome("undecided", f"{ran} test files, then the time was over")
        if names:
            return outcome("caught", names[0])
        ran += len(tests)
    return outcome("lived", f"{ran} test files")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--under", default="", help="only files with this in their path, e.g. report/")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of tests for one line")
    parser.add_argument(
        "--json", type=Path, help="every line: how it was broken and by which test it was caught"
    )
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    left_out: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="broken-lines-") as folder:
        copy = copied(Path(folder))
        for broken in drawn(options.lines, options.seed, options.under):
            outcomes.append(tried(copy, broken, left_out, options.limit))
            last = outcomes[-1]
            print(
                f"| `{broken.path}:{broken.line}` | `{last.before}` -> `{last.after}` | {last.fate} | {last.by} |",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1), encoding="utf-8")
    caught = sum(o.fate == "caught" for o in outcomes)
    print(f"{caught} of {len(outcomes)} caught in {sum(o.took_s for o in outcomes) / 60:.0f} minutes")
    if left_out:
        print(f"left out, since they fail without a broken line: {', '.join(sorted(left_out))}")


if __name__ == "__main__":
    main()
