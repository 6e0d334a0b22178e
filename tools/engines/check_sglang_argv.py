#!/usr/bin/env python3
"""Asks the real SGLang whether it accepts command lines: JSON list of argument lists in, JSON list of verdicts out.

Run with the Python of the SGLang environment (see ``install.py``)::

    echo '[["--model-path", "m", "--speculative-num-steps", "3"]]' | ENGINES/sglang/bin/python check_sglang_argv.py

An argument list may be a whole command (``python -m sglang.launch_server ...`` or
``sglang serve ...``); what is in front of the flags is dropped. Each verdict is
``{"ok", "error", "fields", "warnings"}``. Abbreviated flags, which SGLang's own
parser lets pass, are errors here.

With ``--resolve`` SGLang also works out its final settings, each list in a process
of its own: rules between flags apply, silent rewrites show in ``fields``, and the
models named must exist (their ``config.json`` is read; nothing is loaded).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PREFIX = "speculative_"
ALSO = (
    "attention_backend",
    "cuda_graph_max_bs_decode",
    "disable_overlap_schedule",
    "dtype",
    "enable_mixed_chunk",
    "max_running_requests",
    "page_size",
)
RESOLVE_TIMEOUT_S = 120
MESSAGE_CHARS = 2000


class Refused(Exception):
    """The parser's own message."""


class StrictParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def flags_of(argv: Sequence[str]) -> list[str]:
    """The flags of a command line, without the program in front of them."""
    words = list(argv)
    for start in (["-m", "sglang.launch_server"], ["sglang", "serve"]):
        for i in range(min(len(words) - 1, 4)):
            head = [os.path.basename(words[i]) if i == 0 else words[i], words[i + 1]]  # noqa: PTH119
            if head == start or words[i : i + 2] == start:
                return words[i + 2 :]
    return words


def fields_of(settings: dict[str, Any]) -> dict[str, Any]:
    """What is worth comparing, in JSON types."""
    chosen = {key: value for key, value in settings.items() if key.startswith(PREFIX) or key in ALSO}
    return {
        key: value if isinstance(value, str | int | float | bool | None) else str(value)
        for key, value in sorted(chosen.items())
    }


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """The verdict of the parser alone."""
    from sglang.srt.server_args import ServerArgs

    parser = StrictParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    try:
        settings = vars(parser.parse_args(argv))
    except Refused as refused:
        return {"ok": False, "error": str(refused), "fields": {}, "warnings": []}
    return {"ok": True, "error": None, "fields": fields_of(settings), "warnings": []}


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage()[:MESSAGE_CHARS])


def resolve(argv: Sequence[str]) -> dict[str, Any]:
    """The verdict after SGLang's own resolution. Changes this process: call it in a fork."""
    from sglang.srt.server_args import prepare_server_args

    warnings = Warnings()
    error, fields = None, {}
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            settings = prepare_server_args(list(argv))
            logging.getLogger().addHandler(warnings)  # only now: the line above resets the handlers
            settings.resolve_once()
            fields = fields_of(settings.resolved_dict())
        except SystemExit as exit_:
            error = f"exited with {exit_.code}: {said.getvalue().strip()[-MESSAGE_CHARS:]}"
        except Exception as reason:  # noqa: BLE001  whatever SGLang's rules raise is the answer
            error = f"{type(reason).__name__}: {str(reason)[:MESSAGE_CHARS]}"
    return {"ok": error is None, "error": error, "fields": fields, "warnings": warnings.messages}


def in_a_fork(argv: Sequence[str]) -> dict[str, Any]:
    """``resolve`` in a child process, which SGLang may change, crash or hang as it likes."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        signal.alarm(RESOLVE_TIMEOUT_S)
        with os.fdopen(write_end, "w") as pipe:
            json.dump(resolve(argv), pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not answer:
        code = os.waitstatus_to_exitcode(status)
        return {"ok": False, "error": f"the process ended with {code}", "fields": {}, "warnings": []}
    verdict: dict[str, Any] = json.loads(answer)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--resolve", action="store_true", help="apply SGLang's rules between flags too")
    parser.add_argument(
        "--on-cpu",
        action="store_true",
        help="add '--device cpu' where no device is named; --resolve needs one without a GPU",
    )
    options = parser.parse_args()
    lists = json.load(sys.stdin)
    if not isinstance(lists, list) or not all(
        isinstance(argv, list) and all(isinstance(word, str) for word in argv) for argv in lists
    ):
        print("stdin must be a JSON list of lists of strings", file=sys.stderr)
        return 2
    answers_to = os.dup(1)
    os.dup2(2, 1)  # SGLang's imports may print; only the answer goes to stdout
    verdicts = []
    for argv in lists:
        flags = flags_of(argv)
        if options.on_cpu and not any(word.split("=")[0] == "--device" for word in flags):
            flags += ["--device", "cpu"]
        verdict = parse(flags)
        verdicts.append(in_a_fork(flags) if options.resolve and verdict["ok"] else verdict)
    with os.fdopen(answers_to, "w") as out:
        json.dump(verdicts, out, indent=1)
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
