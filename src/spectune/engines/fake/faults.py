"""The ways in which the fake engine fails on command, beyond a plain exit."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

_STUBBORN_CHILD = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.write(1, b"child ready\\n")
time.sleep(600)
"""
_HIDDEN_CHILD = (
    """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.write(1, b"child pid %d\\n" % os.getpid())
"""
    + _STUBBORN_CHILD
)
_QUIET_CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
os.write(1, b"child ready\\n")
while True: time.sleep(60)
"""
_JUNK = (
    b"\xff\xfe\x80 not UTF-8\n\x1b]0;a title\x07\x1b[2J\x1b[31mred\x1b[0m\n\0\0\0 zero bytes\n"
    + b"one line without an end, "
    + b"x" * 3_000_000
    + b"\n\r50%\r100%\r\n"
)
_RENAMED = b"kworker/0:1"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stamp(options: argparse.Namespace, event: str) -> None:
    """Appends the event with this system's monotonic clock, which all its processes share, to ``--events``."""
    if options.events is not None:
        with Path(options.events).open("a", encoding="utf-8") as file:
            file.write(f"{event} {time.monotonic():.6f}\n")


def die(options: argparse.Namespace) -> NoReturn:
    """Ends at once with the scripted last words; a negative exit code is a signal."""
    say("Traceback (most recent call last):")
    say(options.die_message)
    stamp(options, "death")
    if options.exit_code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if options.exit_code != -signal.SIGKILL:
            signal.signal(-options.exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -options.exit_code)
        time.sleep(60)
    os._exit(options.exit_code)


def play_phase(options: argparse.Namespace, phase: str) -> None:
    """What was scripted for this phase of the start: death, silence, or talk without end."""
    if phase == options.die_in:
        die(options)
    if phase == options.hang_in:
        stamp(options, "hang")
        time.sleep(3600)
    while phase == options.talk_in:
        say(f"still working on it{' ' * 1000}")
        time.sleep(0.1)


def before_start(options: argparse.Namespace) -> None:
    """Children, shared memory and noise, as asked for."""
    for _ in range(options.print_mb):
        sys.stdout.write(("a line that says nothing of interest, one of many" * 2 + "\n") * 10_486)
    if options.print_junk:
        sys.stdout.flush()
        sys.stdout.buffer.write(_JUNK)
        sys.stdout.flush()
    if options.shm_segment is not None:
        _hold_segment(options.shm_segment)
    if options.zombie:
        _leave_zombie()
    if options.spawn_child is not None:
        spawn_child(options.spawn_child)


def spawn_child(kind: str) -> None:
    """A child that outlives this process: in its group, in a session of its own, renamed, or hidden.

    ``quiet``: one that ends in good order on SIGUSR1.
    """
    if kind == "hidden":
        env = {"PATH": os.environ.get("PATH", "")}
        subprocess.run([sys.executable, "-c", _HIDDEN_CHILD], env=env, check=True)
        return
    if kind == "renamed":
        say(f"child pid {_renamed_child()}")
        return
    code = _QUIET_CHILD if kind == "quiet" else _STUBBORN_CHILD
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=kind == "session")
    say(f"child pid {child.pid}")


def _renamed_child() -> int:
    """A forked child under another name, whose argument and environment memory is overwritten."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    pr_set_name = 15
    libc.prctl(pr_set_name, ctypes.c_char_p(_RENAMED), 0, 0, 0)
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    argument_start, environment_end = int(fields[45]), int(fields[48])
    ctypes.memset(argument_start, 0, environment_end - argument_start)
    ctypes.memmove(argument_start, _RENAMED, len(_RENAMED))
    while True:
        time.sleep(60)


def _hold_segment(name: str) -> None:
    """A segment of shared memory that nobody removes but who knows whose it was."""
    import mmap

    file = os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(file, 1 << 20)
    _held.append(mmap.mmap(file, 1 << 20))
    os.close(file)


_held: list[object] = []


def _leave_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    child.returncode = 0  # never collected
    say(f"zombie pid {child.pid}")
