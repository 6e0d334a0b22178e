"""Writes docs/study-file.md, docs/cli.md, docs/api.md and docs/findings from schema, parser, code and pages.

``--check``: exit 1 if any of it is out of date.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from reference_pages import api_page, cli_page

from spectune.domain.arm import Arm, Knobs
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.registry import ENGINE_NAMES, adapter_for
from spectune.errors import BadInput
from spectune.findings.catalogue import GROUPS, FindingKind, all_kinds
from spectune.study_file import schema

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "study-file.md"
CLI = ROOT / "docs" / "cli.md"
API = ROOT / "docs" / "api.md"
FINDINGS = ROOT / "docs" / "findings"
SECTIONS = (
    ("The file", schema.StudySpec),
    ("engine", schema.EngineSpec),
    ("target and drafter", schema.ModelSpec),
    ("arms", schema.ArmSpec),
    ("workload", schema.WorkloadSpec),
    ("budget", schema.BudgetSpec),
    ("ray", schema.RaySpec),
)
EXAMPLES = (
    ("plain decoding", Knobs()),
    ("ngram, 3 tokens", Knobs(method="ngram", num_draft_tokens=3)),
    ("EAGLE-3 chain of 3", Knobs(method="eagle3", drafter="DRAFT", num_draft_tokens=3)),
    (
        "EAGLE-3 tree: 3 steps, topk 4, 15 tokens",
        Knobs(method="eagle3", drafter="DRAFT", num_steps=3, topk=4, num_draft_tokens=15),
    ),
    ("draft model, 5 tokens", Knobs(method="draft_model", drafter="DRAFT", num_draft_tokens=5)),
    ("MTP, 1 token, no CUDA graphs", Knobs(method="mtp", num_draft_tokens=1, cuda_graphs=False)),
)
HEAD = """\
# The study file

<!-- Written by tools/make_docs.py from the schema and the adapters: edit those. -->

A study file is YAML. Every key is checked before anything starts; all mistakes are reported together,
each with its line, and an unknown key lists the valid ones. File names are relative to the study file.
`spectune run STUDY --set key.path=value` overrides a key, and `--dry-run` prints every command it would run.

```yaml
{example}
```
"""
TRANSLATION = """
## Neutral knobs and each engine's flags

The engines count differently. spectune's `num_draft_tokens` is the number of tokens *proposed* per verify
step, without the root:

| spectune | llama.cpp | vLLM | SGLang |
|---|---|---|---|
| `num_draft_tokens: K` | `--spec-draft-n-max K` (ngram: `--spec-ngram-simple-size-m K`, and `-size-n` min(3, K) unless given) | `num_speculative_tokens: K` | `--speculative-num-draft-tokens K+1` (counts the root) |
| `num_steps` | must equal K (chains only) | must equal K (chains only) | `--speculative-num-steps` (default K when `topk` is 1) |
| `topk` | 1 only | 1 only | `--speculative-eagle-topk` (default 1) |
| `cuda_graphs: false` | `GGML_CUDA_DISABLE_GRAPHS=1` | `--enforce-eager` | `--disable-cuda-graph` |

With SGLang all three numbers are always given: it fails or guesses on a part of them. vLLM's other
speculative keys are given as flags that begin with `speculative.`, e.g.
`flags: {speculative.prompt_lookup_max: 5}`. spectune adds flags that make acceptance and cached tokens
visible (vLLM: `--per-request-spec-decode-metrics summary`, `--enable-prompt-tokens-details`; SGLang:
`--enable-metrics`, `--enable-cache-report`, and the same `--max-running-requests` for every arm; llama.cpp:
`--metrics`); `flags: {NAME: false}` removes one.

What each engine is started with, made by the adapters themselves:
"""


def type_words(annotation: Any) -> str:
    """A field's type in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(a) for a in args if a is not type(None))
    if origin is Literal:
        return ", ".join(f"`{a}`" for a in args)
    if origin is tuple:
        return f"list of {type_words(args[0])}"
    if origin is dict:
        return "mapping"
    if hasattr(annotation, "__metadata__"):
        return type_words(args[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.__name__.removesuffix("Spec").removesuffix("Run").lower()
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return names.get(annotation, "any value")


def default_words(field: Any) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if value is PydanticUndefined or value is None or value == () or isinstance(value, BaseModel):
        return ""
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def section(title: str, model: type[BaseModel]) -> str:
    rows = [
        f"\n## {title}\n",
        " ".join((model.__doc__ or "").split()),
        "",
        "| key | type | default | meaning |",
    ]
    rows.append("|---|---|---|---|")
    for name, field in model.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{name}` | {type_words(field.annotation)} | {default_words(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def translations() -> str:
    parts = []
    for engine in ENGINE_NAMES:
        parts.append(f"\n### {engine}\n")
        for label, knobs in EXAMPLES:
            launch = Launch(
                arm=Arm(name="a", engine=engine, target="TARGET", knobs=knobs),
                setup=EngineSetup(name=engine, command=("SERVER",)),
                host="127.0.0.1",
                port=30000,
                target_path="TARGET",
                drafter_path=knobs.drafter,
                max_concurrency=1,
            )
            try:
                command = adapter_for(engine).command(launch)
                env = [f"{k}={v}" for k, v in command.env.items()]
                shown = " ".join([*env, *command.argv])
            except BadInput as error:
                shown = f"not possible: {error}"
            parts.append(f"{label}:\n\n    {shown}\n")
    return "\n".join(parts)


def render() -> str:
    example = (ROOT / "src" / "spectune" / "demo" / "study.yaml").read_text(encoding="utf-8").rstrip()
    body = "".join(section(title, model) for title, model in SECTIONS)
    return HEAD.format(example=example) + body + TRANSLATION + translations()


INDEX_HEAD = """\
# Findings

<!-- Written by tools/make_docs.py from src/spectune/findings/pages: edit those. -->

What spectune can find wrong, {number} kinds. An **error** makes `spectune check` exit with 1 and `spectune run` refuse
(`--allow CODE` lets it stand); a **warning** says that a number or a launch is doubtful; a **note** is worth knowing.
A rule that lacks an input says so under "not checked": silence is never approval.
"""
MADE_BY = {
    "check": "`spectune check`, before a launch; `spectune run` checks first",
    "diagnose": "`spectune diagnose`; after every trial, `spectune run` reads the log of its server",
    "run": "`spectune run` and `spectune report`",
}


def index_of_findings() -> str:
    parts = [INDEX_HEAD.format(number=len(all_kinds()))]
    for title, command in GROUPS.items():
        parts += [
            f"\n## {title}\n",
            f"Made by {MADE_BY[command]}.\n",
            "| code | severity | what |",
            "|---|---|---|",
        ]
        parts += [
            f"| [{k.code}]({k.code}.md) | {k.severity} | {k.title} |" for k in all_kinds() if k.group == title
        ]
    return "\n".join(parts) + "\n"


def sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def page_of(kind: FindingKind) -> str:
    parts = [
        f"# {kind.code}\n",
        f"<!-- Written by tools/make_docs.py from src/spectune/findings/pages/{kind.code}.md: edit that. -->\n",
        f"**{kind.severity}**: {sentence(kind.title)}\n",
        f"{kind.explanation}\n",
    ]
    parts += [f"**Effect**: {sentence(kind.effect)}\n"] if kind.effect else []
    parts += [f"**Remedy**: {sentence(kind.remedy)}\n"] if kind.remedy else []
    parts += [f"**Holds for**: {sentence(kind.holds_for)}\n"]
    if kind.sources:
        parts.append("**Read in**\n")
        parts += [
            f"- {f'<{source}>' if source.startswith('https://') else source}" for source in kind.sources
        ]
        parts.append("")
    parts.append(
        f"Made by {MADE_BY[GROUPS[kind.group]]}. A finding's own severity can be lower, and its text names what was seen."
    )
    parts.append(f"[All findings](README.md): {kind.group.lower()}.")
    return "\n".join(parts) + "\n"


def finding_pages() -> dict[Path, str]:
    """Every file of docs/findings."""
    pages = {FINDINGS / f"{kind.code}.md": page_of(kind) for kind in all_kinds()}
    return {FINDINGS / "README.md": index_of_findings(), **pages}


def out_of_date(pages: dict[Path, str]) -> list[Path]:
    wrong = [p for p, text in pages.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    return wrong + [p for p in FINDINGS.glob("*.md") if p not in pages]


def main() -> int:
    pages = {TARGET: render(), CLI: cli_page(), API: api_page(), **finding_pages()}
    wrong = out_of_date(pages)
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"out of date: {path.relative_to(ROOT)}\n" for path in wrong)
        return 1 if wrong else 0
    FINDINGS.mkdir(exist_ok=True)
    for path in wrong:
        if path in pages:
            path.write_text(pages[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
