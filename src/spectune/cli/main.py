"""The command line: arguments, and errors turned into exit codes. Commands are imported when they run."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence

from spectune import __version__
from spectune.cli.check_args import add_allow, add_check
from spectune.cli.compare_args import add_compare
from spectune.cli.diagnose_args import add_diagnose
from spectune.cli.drafter.args import add_drafter
from spectune.cli.export_args import add_export
from spectune.cli.gate_args import add_gate
from spectune.cli.import_results_args import add_import
from spectune.cli.ls_args import add_ls
from spectune.cli.plan_args import add_plan
from spectune.cli.query_args import add_query
from spectune.cli.streams import outlast_callers
from spectune.cli.watch_args import add_watch
from spectune.errors import SpectuneError


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="spectune",
        description="Find the fastest speculative decoding configuration of a real server, and say why.",
        epilog="Exit codes: 0 done; 1 done, and the answer is bad; 2 bad input; 3 the environment failed; "
        "130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"spectune {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_demo(commands)
    add_check(commands)
    _add_run(commands)
    add_plan(commands)
    _add_report(commands)
    add_watch(commands)
    _add_bench(commands)
    add_diagnose(commands)
    _add_explain(commands)
    _add_servers(commands)
    add_drafter(commands)
    add_ls(commands)
    add_compare(commands)
    add_gate(commands)
    add_export(commands)
    add_import(commands)
    add_query(commands)
    return parser


def _json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="the main job on the embedded engine and model")
    demo.add_argument("--dir", default="studies/demo", help="study directory (default: %(default)s)")
    demo.add_argument("--dry-run", action="store_true", help="print the commands and the estimated time")
    demo.set_defaults(allow=[], no_check=False)
    _noisy_flag(demo)
    _json_flag(demo)


def _noisy_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--noisy",
        action="store_true",
        help="do not wait or ask when two equal launches show that the machine is too noisy (the report says so)",
    )


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run or resume a study")
    run.add_argument(
        "study", metavar="STUDY", help="study file (YAML), or the directory of a study to resume"
    )
    run.add_argument("--dir", help="study directory (default: studies/NAME)")
    run.add_argument(
        "--host", default=None, help="`local`, a destination of ssh, or `ray` (default: the study's)"
    )
    run.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the study file, e.g. --set engine=vllm --set workload.max_tokens=64",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="print every command and the estimated time; start nothing"
    )
    run.add_argument("--retry-failed", action="store_true", help="measure failed arms again")
    add_allow(run)
    run.add_argument("--no-check", action="store_true", help="launch without `spectune check` first")
    _noisy_flag(run)
    _json_flag(run)


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser("report", help="write report.md, report.html and report.json of a study")
    report.add_argument("study_dir", metavar="STUDY_DIR", help="e.g. studies/demo")
    report.add_argument("--out", help="folder for the files (default: the study directory)")
    _json_flag(report)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="measure a server that is already running")
    bench.add_argument("url", metavar="URL", help="base URL, e.g. http://127.0.0.1:8000")
    bench.add_argument("--engine", default="auto", help="llamacpp, vllm, sglang, openai, or auto (default)")
    bench.add_argument("--model", help="served model name (default: the first one listed)")
    bench.add_argument(
        "--api", choices=("chat", "completions"), default="chat", help="endpoint (default: chat)"
    )
    bench.add_argument("--prompts", action="append", help="prompt set or file; repeatable (default: builtin)")
    bench.add_argument("--num-prompts", type=_positive, help="use only the first so many")
    bench.add_argument(
        "--num-requests",
        type=_positive,
        help="requests per load point (default: each prompt once, from c=2 on at least 5 times c)",
    )
    bench.add_argument(
        "--turns", choices=("first", "all"), default="first", help="user turns to run (default: first)"
    )
    bench.add_argument("--max-tokens", type=_positive, default=128, help="per answer (default: %(default)s)")
    bench.add_argument("--temperature", type=float, default=0.0, help="default: 0, greedy")
    bench.add_argument("--seed", type=int, default=None, help="sampling seed (default: none is sent)")
    bench.add_argument("--ignore-eos", action="store_true", help="always generate --max-tokens")
    bench.add_argument("--extra-body", help="JSON object merged into every request body")
    bench.add_argument(
        "--concurrency", default=None, help="closed loop; one or more, e.g. 1,4,16 (default: 1)"
    )
    bench.add_argument("--request-rate", default=None, help="open loop, requests per second; one or more")
    bench.add_argument(
        "--warmup-requests",
        "--num-warmups",
        type=_at_least_zero,
        default=None,
        help="before each load point, not measured (default: twice the concurrency, 3 to 64)",
    )
    bench.add_argument(
        "--request-timeout", type=float, default=600.0, metavar="SECONDS", help="default: %(default)s"
    )
    bench.add_argument(
        "--flush-cache", action="store_true", help="empty the server's prefix cache before measuring"
    )
    bench.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the API key (default: %(default)s); the key is never logged",
    )
    bench.add_argument("--save-result", metavar="FILE", help="write JSON with vllm bench's field names")
    _json_flag(bench)


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    explain = commands.add_parser("explain", help="limits, break-even, predictions, what to do next")
    explain.add_argument("study_dir", metavar="STUDY_DIR", nargs="?")
    explain.add_argument(
        "--table", metavar="ROWS.csv", help="explain published or hand-measured figures instead"
    )
    explain.add_argument(
        "--weights-gib", type=float, help="read per step; with --bandwidth-gib-s gives the machine's ceiling"
    )
    explain.add_argument("--bandwidth-gib-s", type=float, help="memory bandwidth of the machine")
    explain.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="SAMPLES=LENGTH",
        help="acceptance length of this drafter after so many training samples, three or more times: adds what more "
        "data would buy (see `spectune drafter forecast`)",
    )
    _json_flag(explain)


def _add_servers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    up = commands.add_parser("up", help="start the server of one arm and leave it running")
    up.add_argument("study", metavar="STUDY", help="study file")
    up.add_argument("--arm", default="baseline", help="name or id of the arm (default: %(default)s)")
    up.add_argument("--port", type=_port, help="default: a free one")
    up.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    up.add_argument("--no-wait", action="store_true", help="return at once; see `spectune wait`")
    up.add_argument("--host", default=None, help="`local`, or a destination of ssh (default: the study's)")
    up.add_argument(
        "--lease-s",
        type=_seconds,
        default=None,
        metavar="SECONDS",
        help="stop the server by itself after so long (default: it runs until `spectune down`)",
    )
    up.add_argument(
        "--adopt",
        action="store_true",
        help="start nothing: check that the server on --port is this arm; it is never stopped by spectune",
    )
    _json_flag(up)
    wait = commands.add_parser("wait", help="wait until a server started with `up` generates")
    wait.add_argument("server", metavar="ID", help="as `up` and `ps` print it")
    _host_flag(wait)
    wait.add_argument("--timeout", type=float, default=None, metavar="SECONDS", help="default: the engine's")
    _json_flag(wait)
    ps = commands.add_parser("ps", help="servers that spectune started, and what a killed supervisor left")
    _host_flag(ps)
    _json_flag(ps)
    down = commands.add_parser("down", help="stop servers that spectune started, and prove it")
    _host_flag(down)
    down.add_argument("servers", metavar="ID", nargs="*", help="as `up` and `ps` print it")
    down.add_argument("--all", action="store_true", help="every server that `ps` lists")
    _json_flag(down)


def _host_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="local", help="`local`, or a destination of ssh (default: %(default)s)"
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 31_536_000:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 1 to 31536000, got {text!r}")
    return value


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def _at_least_zero(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


def _port(text: str) -> int:
    value = _positive(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, got {text!r}")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    outlast_callers()
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        hint = "; a server command goes behind --: spectune check [options] -- CMD..."
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint if args.command == 'check' else ''}")
    if args.command is None:
        parser.print_help()
        return 2
    try:
        code = _dispatch(args)
        sys.stdout.flush()
        return code
    except SpectuneError as error:
        from spectune.cli.output import say

        say(f"spectune: {error}")
        return error.exit_code
    except OSError as error:
        from spectune.cli.output import say

        place = f"{error.filename}: " if error.filename else ""
        say(f"spectune: {place}{error.strerror or error}")
        return 2 if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else 3
    except KeyboardInterrupt:
        return 130


def _dispatch(args: argparse.Namespace) -> int:
    if args.command == "demo":
        from spectune.cli.run import demo_command

        return demo_command(args)
    if args.command == "check":
        from spectune.cli.check import check_subject

        return check_subject(args)
    if args.command == "run":
        from spectune.cli.run import run_command

        return run_command(args)
    if args.command == "plan":
        from spectune.cli.plan import plan_command

        return plan_command(args)
    if args.command == "report":
        from spectune.cli.report import report_command

        return report_command(args)
    if args.command == "watch":
        from spectune.cli.watch import watch_command

        return watch_command(args)
    if args.command == "bench":
        from spectune.cli.bench import bench_command

        return bench_command(args)
    if args.command == "drafter":
        from spectune.cli.drafter.commands import run_drafter

        return run_drafter(args)
    if args.command == "explain":
        from spectune.cli.explain import explain_command

        return explain_command(args)
    if args.command == "diagnose":
        from spectune.cli.diagnose import diagnose_command

        return diagnose_command(args)
    if args.command in ("ls", "compare", "gate", "export", "import", "query"):
        return _exchange(args)
    from spectune.cli import servers

    commands = {"up": servers.up, "wait": servers.wait, "ps": servers.ps, "down": servers.down}
    return commands[args.command](args)


def _exchange(args: argparse.Namespace) -> int:
    if args.command == "ls":
        from spectune.cli.ls import ls_command

        return ls_command(args)
    if args.command == "compare":
        from spectune.cli.compare import compare_command

        return compare_command(args)
    if args.command == "gate":
        from spectune.cli.gate import gate_command

        return gate_command(args)
    if args.command == "export":
        from spectune.cli.export import export_command

        return export_command(args)
    if args.command == "import":
        from spectune.cli.import_results import import_command

        return import_command(args)
    from spectune.cli.query import query_command

    return query_command(args)
