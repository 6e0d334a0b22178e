#!/usr/bin/env python3
"""Writes the flags of an engine's own argument parser as JSON, for ``spectune check``.

Run with the interpreter that has the engine::

    ENGINES/sglang/bin/python tools/engines/flag_tables.py sglang > src/spectune/preflight/tables/sglang-0.5.23.json
    ENGINES/vllm/bin/python   tools/engines/flag_tables.py vllm   > src/spectune/preflight/tables/vllm-0.32.0.json
    .venv/bin/python tools/engines/flag_tables.py llamacpp README.md > .../tables/llamacpp-xllamacpp-2026.10.11549.json

The README is ``tools/server/README.md`` of the llama.cpp commit in ``LLAMACPP_README``.

Each flag: every spelling, how many words it takes, the type those words must
have, the allowed values, and whether the engine calls it deprecated. Nothing
is started; no GPU is needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

LLAMACPP_README = "https://github.com/ggml-org/llama.cpp/blob/00dc8057ab28c9cb4c79a6dd6dfce07fe779f63b/tools/server/README.md"
"""The build in xllamacpp 2026.10.11549 answers to these; removed flags as measured there."""

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def words_taken(action: argparse.Action) -> str:
    """``none``, ``one``, ``optional`` or ``many``."""
    if action.nargs == 0:
        return "none"
    if action.nargs == "?":
        return "optional"
    return "one" if action.nargs is None else "many"


def type_of(action: argparse.Action) -> str:
    """``int``, ``float``, ``json`` or ``text``: only what a reader may rely on."""
    reader = action.type
    name = getattr(reader, "__name__", str(reader))
    probes = {"int": ("3", 3), "float": ("0.5", 0.5)}
    if reader is None or not callable(reader):
        return "text"
    if name in probes:
        return name
    if "human_readable" in name:
        return "size"  # 8192, 8k, 1M; some also take "auto"
    try:
        if reader('{"a": 1}') == {"a": 1}:
            return "json"
    except Exception:  # noqa: BLE001  whatever an engine's own reader raises means "not this type"
        pass
    for kind in ("int", "float"):  # a wrapper: tried on a word, refused on another
        word, value = probes[kind]
        try:
            if reader(word) == value and type(reader(word)) is type(value):
                try:
                    reader("no-number")
                except (ValueError, argparse.ArgumentTypeError):
                    return kind
        except Exception:  # noqa: BLE001
            continue
    return "text"


def flag(action: argparse.Action, deprecated: bool) -> dict[str, Any]:
    long = [word for word in action.option_strings if word.startswith("--")]
    described: dict[str, Any] = {
        "name": (long or action.option_strings)[0].lstrip("-"),
        "spellings": list(action.option_strings),
        "takes": words_taken(action),
        "type": type_of(action),
    }
    if action.choices is not None:
        described["choices"] = [choice for choice in action.choices if isinstance(choice, str | int)]
    if deprecated:
        described["deprecated"] = True
    return described


def of_sglang() -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    version = importlib.metadata.version("sglang")
    flags = [flag(action, type(action).__name__.startswith("Deprecated")) for action in parser._actions]
    return version, flags, {"abbreviations": True, "underscores": False}


def of_vllm() -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    import dataclasses

    import vllm
    from vllm.config import SpeculativeConfig
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

    parser = make_arg_parser(argparse_parser_of_vllm())
    deprecated = {id(action) for action in getattr(parser, "_deprecated", ())}
    flags = [flag(action, id(action) in deprecated) for action in parser._actions if action.option_strings]
    keys = sorted(
        field.name
        for field in dataclasses.fields(SpeculativeConfig)  # type: ignore[arg-type]
        if field.init and not field.name.startswith("target_")
    )
    return vllm.__version__, flags, {"abbreviations": True, "underscores": True, "speculative_keys": keys}


def argparse_parser_of_vllm() -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return FlexibleArgumentParser(description="flags")


ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def of_llamacpp() -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """From the argument tables of llama-server's README, which llama.cpp generates from its own parser."""
    from spectune.embedded.flags import REMOVED

    flags = []
    for cell in ROW.findall(Path(sys.argv[2]).read_text(encoding="utf-8")):
        words = cell.replace("\\|", "|").split(" ")
        spellings = [word.rstrip(",") for word in words if word.startswith("-")]
        takes = "none" if words[-1].startswith("-") else "one"
        if any(name.lstrip("-") in ("help", "version") or name in REMOVED for name in spellings):
            continue
        on = [name for name in spellings if not OFF.match(name)]
        off = [name for name in spellings if OFF.match(name)]
        for names in (on, off):
            if names:
                long = next((name for name in names if name.startswith("--")), names[0])
                entry: dict[str, Any] = {"name": long.lstrip("-"), "spellings": names, "takes": takes}
                entry["type"] = "int" if words[-1] == "N" and not entry["name"].endswith("layers") else "text"
                flags.append(entry)
    for entry in flags:
        if entry["name"] == "spec-draft-ngl" or entry["name"] in FLOATS:
            entry["type"] = "text"
    facts = {
        "abbreviations": False,
        "underscores": True,
        "removed": {name.lstrip("-"): advice for name, advice in REMOVED.items()},
    }
    return "xllamacpp 2026.10.11549", flags, facts


OFF = re.compile(r"--no-(?!host$)|-no|-n(kvo|r)$")
FLOATS = {
    *("rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-ext-factor", "yarn-attn-factor"),
    *("yarn-beta-slow", "yarn-beta-fast", "defrag-thold", "temp", "top-p", "min-p", "top-nsigma"),
    *("xtc-probability", "xtc-threshold", "typical", "repeat-penalty", "presence-penalty"),
    *("frequency-penalty", "dry-multiplier", "dry-base", "adaptive-target", "adaptive-decay"),
    *("dynatemp-range", "dynatemp-exp", "mirostat-lr", "mirostat-ent", "video-fps"),
}
"""The README writes ``N`` for these numbers too."""


ENGINES = {
    "sglang": (of_sglang, "the release of sglang named here", True),
    "vllm": (of_vllm, "the release of vllm named here", True),
    "llamacpp": (of_llamacpp, LLAMACPP_README, False),
}


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ENGINES:
        print(f"usage: flag_tables.py {'|'.join(ENGINES)}", file=sys.stderr)
        return 2
    read, source, complete = ENGINES[sys.argv[1]]
    answers_to = os.dup(1)
    os.dup2(2, 1)  # the engines' imports may print; only the table goes to stdout
    version, flags, facts = read()
    table = {
        "engine": sys.argv[1],
        "version": version,
        "source": source if "README" in source else f"the argument parser of {source}",
        "complete": complete,
        **facts,
        "flags": sorted((f for f in flags if f["name"] not in ("help", "h")), key=lambda f: str(f["name"])),
    }
    with os.fdopen(answers_to, "w") as out:
        # One flag a line: small enough to ship, and a new version shows as a readable difference.
        head = {key: value for key, value in table.items() if key != "flags"}
        out.write(json.dumps(head)[:-1] + ', "flags": [\n')
        out.write(",\n".join(json.dumps(entry) for entry in table["flags"]))  # type: ignore[union-attr]
        out.write("\n]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
