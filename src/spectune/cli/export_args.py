"""The arguments of ``spectune export``: the parser is built for every command."""

from __future__ import annotations

import argparse

from spectune.exchange.exports.options import DEFAULT_PORT, HOST, IMAGE, TIME

FORMS = (
    "vllm-bench",
    "speculation-profile",
    "csv",
    "parquet",
    "command",
    "docker",
    "kubernetes",
    "slurm",
    "mlflow",
)


def add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "export",
        help="a study in other tools' formats, in MLflow, or the arm to serve as a script",
        epilog="command, docker and slurm are shell scripts, kubernetes is a manifest; secrets are never in them.",
    )
    parser.add_argument("study", metavar="STUDY_DIR")
    parser.add_argument(
        "--as", dest="form", required=True, choices=FORMS, metavar="FORM", help=", ".join(FORMS)
    )
    parser.add_argument("--arm", metavar="NAME", help="name or id (default: the best; tables: every arm)")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--rows",
        choices=("arms", "trials", "prompts", "requests"),
        default="arms",
        help="of csv and parquet (default: %(default)s)",
    )
    parser.add_argument(
        "--host", type=_host, help="the server listens on (default: 127.0.0.1; elsewhere 0.0.0.0)"
    )
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="default: %(default)s")
    parser.add_argument("--image", type=_image, help="of docker and kubernetes")
    parser.add_argument("--program", help="to start instead of the recorded one, e.g. /app/llama-server")
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="of mlflow, e.g. http://127.0.0.1:5000 (default: the variable MLFLOW_TRACKING_URI)",
    )
    parser.add_argument(
        "--experiment", metavar="NAME", default="spectune", help="of mlflow (default: %(default)s)"
    )
    parser.add_argument(
        "--time", type=_time, default="1-00:00:00", metavar="LIMIT", help="of slurm (default: %(default)s)"
    )


def _port(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else 0
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, got {text!r}")
    return value


def _time(text: str) -> str:
    if not TIME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be minutes, [HH:]MM:SS or D-HH:MM:SS, got {text!r}")
    return text


def _image(text: str) -> str:
    if not IMAGE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be an image such as vllm/vllm-openai:v0.32.0, got {text!r}")
    return text


def _host(text: str) -> str:
    if not HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be an address, got {text!r}")
    return text
