"""llama.cpp's HTTP server out of the package ``xllamacpp``, as a process with llama-server's flags.

Run as ``python -m spectune.embedded.llama_server -m MODEL.gguf [flags]``, by
any interpreter that has the package; nothing of spectune outside this folder
is imported. The engine's log goes to stderr as it is, what the launcher says
itself begins with ``llama_server:``. Exit codes: 0 stopped by SIGTERM or
SIGINT once serving (before that the signal's own), 1 the server could not
start, 2 a wrong flag or value, 3 the package is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from spectune.embedded.flags import AUTO_PARALLEL, DEFAULT_PORT, FLAGS, Flag, UnknownFlag, Value, spell_out

PACKAGE = "xllamacpp"
INSTALL = "pip install 'spectune[demo]'"
COULD_NOT_START = 1
WRONG_FLAG = 2
PACKAGE_MISSING = 3
LOG_DRAIN_S = 0.05
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
NEEDS_DRAFT_MODEL = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve until SIGTERM or SIGINT; never returns."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    parser = make_parser()
    given = parse(parser, sys.argv[1:] if arguments is None else arguments)
    package = import_package()
    if given.pop("version", False):
        sys.stdout.write(f"{PACKAGE} {package.__version__} {package.BUILD_INFO}\n")
        sys.exit(0)
    check(parser, given)
    serve(package, given)


def make_parser() -> argparse.ArgumentParser:
    """A parser of the spelled-out flags; what was not given does not appear in its result."""
    parser = argparse.ArgumentParser(
        prog="llama_server",
        usage="llama_server -m MODEL.gguf [flags]; --help lists them",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="llama.cpp's HTTP server from the package xllamacpp, under llama-server's flag names.",
    )
    parser.add_argument("--version", action="store_true", help="print the package's version and build")
    for flag in FLAGS:
        if flag.metavar is None:
            parser.add_argument(*flag.names, dest=flag.dest, action="store_const", const=True, help=flag.help)
            if flag.off_names:
                parser.add_argument(*flag.off_names, dest=flag.dest, action="store_const", const=False)
        else:
            parser.add_argument(
                *flag.names,
                dest=flag.dest,
                metavar=flag.metavar,
                type=_reader(flag),
                action="extend" if flag.accumulates else "store",
                help=flag.help.replace("%", "%%"),
            )
    return parser


def _reader(flag: Flag) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        try:
            return flag.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Value]:
    """Values by ``Flag.dest``, of the flags given; exits with 2 on a mistake."""
    try:
        spelled = spell_out(arguments, extra=("--version", "--help", "-h"))
    except UnknownFlag as error:
        parser.error(f"{error}; llama-server itself has more flags than this launcher")
    except ValueError as error:
        parser.error(str(error))
    return vars(parser.parse_args(spelled))


def import_package() -> ModuleType:
    """The package, or exit code 3 with the way to get it."""
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        fail(PACKAGE_MISSING, f"{sys.executable} cannot import {PACKAGE}: {error}", f"install it: {INSTALL}")


def check(parser: argparse.ArgumentParser, given: Mapping[str, Any]) -> None:
    """Exits on what the engine would report only after loading the model, or not at all."""
    if "model" not in given:
        parser.error("--model FILE is needed")
    draft = given.get("spec_draft_model")
    for flag, path in (("--model", given["model"]), ("--spec-draft-model", draft)):
        if path is not None and not Path(path).is_file():
            fail(COULD_NOT_START, f"{flag}: no such file: {path}")
    without = [name for name in given.get("spec_type", []) if name in NEEDS_DRAFT_MODEL]
    if without and draft is None:
        # The engine starts without a word, and without speculation.
        parser.error(f"--spec-type {without[0]} needs --spec-draft-model FILE")
    warn(given)


def warn(given: Mapping[str, Any]) -> None:
    """Says what the engine will silently not do."""
    types = given.get("spec_type", [])
    if "spec_draft_model" in given and not any(name.startswith("draft-") for name in types):
        say("warning: --spec-draft-model is loaded but not used: no draft type in --spec-type")
    match, proposed = given.get("spec_ngram_simple_size_n", 12), given.get("spec_ngram_simple_size_m", 48)
    if "ngram-simple" in types and proposed < match:
        say(
            f"warning: ngram-simple proposes nothing with --spec-ngram-simple-size-m {proposed} "
            f"below --spec-ngram-simple-size-n {match}"
        )
    ignored = sorted(name for name in os.environ if name.startswith("LLAMA_ARG_"))
    if ignored:
        say(f"warning: environment variables are not read here: {', '.join(ignored)}; use the flags")


def configure(package: ModuleType, given: Mapping[str, Value]) -> Any:
    """``CommonParams`` with llama-server's defaults and the values given."""
    params = package.CommonParams()
    params.port = DEFAULT_PORT
    params.n_parallel = AUTO_PARALLEL
    for flag in FLAGS:
        if flag.dest in given:
            try:
                set_value(package, params, flag=flag, value=given[flag.dest])
            except (OverflowError, UnicodeEncodeError) as error:
                fail(WRONG_FLAG, f"{flag.names[0]}: {error}")
    if given.get("ctx_size") == 0:
        params.fit_params_min_ctx = -1  # as llama-server: an explicit 0 is not to be shrunk to fit
    return params


def set_value(package: ModuleType, params: Any, *, flag: Flag, value: Value) -> None:
    """Writes one flag's value where the package keeps it."""
    *path, attribute = flag.target.split(".")
    owner = params
    for name in path:
        owner = getattr(owner, name)
    if flag.inverted:
        setattr(owner, attribute, not value)
    elif flag.enum is None:
        setattr(owner, attribute, value)
    elif isinstance(value, list):
        setattr(owner, attribute, [_member(package, flag.enum, str(word)) for word in value])
    else:
        setattr(owner, attribute, _member(package, flag.enum, str(value)))


def _member(package: ModuleType, enum: str, word: str) -> Any:
    kind, _, prefix = enum.partition(".")
    return getattr(getattr(package, kind), prefix + word.upper().replace("-", "_"))


def serve(package: ModuleType, given: Mapping[str, Value]) -> NoReturn:
    """Starts the server and waits for a signal.

    While the model loads the engine holds the interpreter's lock, so no
    Python handler could run: the signals keep their default action until then.
    Afterwards the process ends at once. The engine's own shutdown waits for
    open streams: up to 30 s during a generation, a minute during a long prompt.
    """
    params = configure(package, given)
    say(f"{PACKAGE} {package.__version__} {package.BUILD_INFO}")
    try:
        server = package.Server(params)
    except (RuntimeError, ValueError) as error:
        let_log_drain()
        fail(COULD_NOT_START, *why_not_started(params, error))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)
    let_log_drain()
    say(f"listening on {server.listening_address}")
    received = os.read(woken, 1)[0]
    let_log_drain()
    say(f"received {signal.Signals(received).name}, stopping")
    os._exit(0)


def why_not_started(params: Any, error: Exception) -> list[str]:
    """Lines for the user: the port when that is it, else where to look."""
    for host in params.hostnames:
        if not host.endswith(".sock") and port_in_use(host, params.port):
            return [
                f"port {params.port} on {host} is in use",
                "stop the process that listens there, or give another --port (0 takes a free one)",
            ]
    return [f"the server did not start: {error}", "the engine's log above says why"]


def port_in_use(host: str, port: int) -> bool:
    """Whether another socket keeps us from listening there."""
    if port == 0:
        return False
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def let_log_drain() -> None:
    """Time for the engine's log thread to finish its last lines, which are written in pieces."""
    time.sleep(LOG_DRAIN_S)


def say(*lines: str) -> None:
    """Lines on stderr, where the engine's log goes too; nobody has to be there to read them."""
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"llama_server: {line}\n" for line in lines))
        sys.stderr.flush()


def fail(code: int, *lines: str) -> NoReturn:
    say(*(f"error: {line}" if number == 0 else line for number, line in enumerate(lines)))
    sys.exit(code)


if __name__ == "__main__":
    main()
