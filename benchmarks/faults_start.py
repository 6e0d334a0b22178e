"""Faults of a server that never becomes ready, or says that it is when it is not."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

from faults_place import Place
from faults_serving import LIMITS, Served, death_words, expect_death, play
from faults_study import STUDY
from faults_table import Seen, expect, fault

from spectune.errors import ServerNotReady, ServerStuck


def noticed(place: Place, served: Served, words: str) -> Seen:
    """A death at the start: from the server's own last stamp to the end of our waiting."""
    return Seen(words, served.entered["stop"] - place.events()["death"], is_death=True)


@fault("bad executable: there is none", expected="refused, names the program; nothing runs", server="none")
def bad_executable(place: Place) -> Seen:
    served = play(place, "/no/such/server", engine="llamacpp")
    expect("No such file" in str(served.error), f"{served.outcome}: {served.error}")
    return Seen(str(served.error))


@fault("bad executable: not a program", expected="refused, names the program; nothing runs", server="none")
def bad_executable_format(place: Place) -> Seen:
    path = place.write("not-a-program", "this is text\n")
    served = play(place, str(path), engine="llamacpp")
    expect("Permission denied" in str(served.error), f"{served.outcome}: {served.error}")
    return Seen(str(served.error).replace(str(place.folder), "FOLDER"))


@fault("dies before it binds", expected="died, exit code 1, its last error line", is_timed=True)
def dies_before_binding(place: Place) -> Seen:
    served = play(
        place, "--die-after-s=0.3", "--startup-delay-s=30", "--die-message=ValueError: no such thing"
    )
    error = expect_death(served, phase="loading weights", code=1, cause="ValueError: no such thing")
    return noticed(place, served, death_words(error))


@fault("dies while it loads weights", expected="died while loading weights, exit code 3", is_timed=True)
def dies_while_loading(place: Place) -> Seen:
    served = play(place, "--die-in=load", "--exit-code=3", "--die-message=OSError: weights are cut short")
    error = expect_death(served, phase="loading weights", code=3, cause="weights are cut short")
    return noticed(place, served, death_words(error))


@fault("dies while it compiles", expected="died while compiling, exit code 1", is_timed=True)
def dies_while_compiling(place: Place) -> Seen:
    served = play(place, "--die-in=compile", "--die-message=RuntimeError: ninja: build stopped")
    error = expect_death(served, phase="compiling", code=1, cause="ninja: build stopped")
    return noticed(place, served, death_words(error))


@fault("dies in graph capture", expected="died while capturing graphs; cause and remedy", is_timed=True)
def dies_in_graph_capture(place: Place) -> Seen:
    message = "RuntimeError: Capture cuda graph failed: out of room"
    served = play(place, "--die-in=capture", f"--die-message={message}")
    error = expect_death(served, phase="capturing graphs", code=1, cause="Capture cuda graph failed")
    expect("cuda_graphs: false" in (error.remedy or ""), f"remedy: {error.remedy}")
    return noticed(place, served, death_words(error))


@fault("dies 1 s after it was ready", expected="died while settling: never called ready", is_timed=True)
def dies_one_second_after_ready(place: Place) -> Seen:
    served = play(place, "--die-after-ready-s=1", limits=replace(LIMITS, settle_s=3.0))
    error = expect_death(served, phase="settling", code=1, cause="scripted death")
    expect(not served.was_ready, "it was called ready")
    seen = noticed(place, served, death_words(error))
    return replace(seen, ready_lag_s=served.lag_s(place))


@fault("hangs silently while it loads", expected="stuck, after the limit for no sign of life")
def hangs_silently(place: Place) -> Seen:
    served = play(place, "--hang-in=load", limits=replace(LIMITS, stuck_s=2.0))
    expect(isinstance(served.error, ServerStuck), f"{served.outcome}: {served.error}")
    expect("while loading weights" in str(served.error), str(served.error))
    waited = served.entered["stop"] - place.events()["hang"]
    return Seen("stuck while loading weights; the limit was 2 s", waited)


@fault("hangs while it prints", expected="timed out (it shows life), with its last lines")
def hangs_while_printing(place: Place) -> Seen:
    served = play(place, "--talk-in=compile", limits=replace(LIMITS, stuck_s=1.0, ready_s=4.0))
    expect(type(served.error) is ServerNotReady, f"{served.outcome}: {served.error}")
    expect("still working on it" in str(served.error), str(served.error))
    return Seen("timed out after 4 s; the limit for silence, 1 s, was not met")


@fault(
    "prints 100 MB at its start", expected="ready; we stay awake meanwhile; the log is whole", is_timed=True
)
def prints_100_mb(place: Place) -> Seen:
    began = time.monotonic()
    served = play(place, "--print-mb=100", limits=replace(LIMITS, ready_s=40.0))
    took_s = time.monotonic() - began
    expect(served.was_ready and served.error is None, f"{served.outcome}: {served.error}")
    size = (place.folder / "server.log").stat().st_size
    expect(size > 100_000_000, f"log of {size} bytes")
    pause_s = served.worst_pause_s
    expect(pause_s < 1, f"ready after {took_s:.1f} s, but deaf for {pause_s:.1f} s while it read the log")
    return Seen(
        f"ready after {took_s:.1f} s; log of {size / 1e6:.0f} MB; never deaf for more than {pause_s:.2f} s"
    )


@fault(
    "prints what is not UTF-8, terminal escapes and 3 MB without a line end, then dies",
    expected="died with its cause; no escape reaches the terminal or a report",
)
def prints_junk(place: Place) -> Seen:
    study = STUDY.replace(
        "FLAGS", 'print-junk: true, die-in: load, die-message: "ValueError: \\e[31mbad\\e[0m"'
    )
    place.write("study.yaml", study)
    done = place("up", "study.yaml")
    expect(done.process.returncode == 3, f"exit code {done.process.returncode}: {done.errors[-300:]}")
    expect(
        "ValueError" in done.errors and "Traceback (most recent call last):\n  File" not in done.errors,
        done.errors,
    )
    expect("\x1b" not in done.errors, f"`up` printed an escape: {done.errors[-300:]!r}")
    done = place("run", "study.yaml")
    expect(
        "\x1b" not in done.errors + done.output,
        f"`run` printed an escape: {(done.errors + done.output)[-300:]!r}",
    )
    for name in ("report.md", "report.html"):
        text = (place.folder / "studies/study" / name).read_text(encoding="utf-8")
        expect("\x1b" not in text, f"{name} holds an escape")
    return Seen("died with its cause; the words were shown without escapes by up, run and both reports")


@fault("/health says 200, every generation fails with 500", expected="timed out: never called ready")
def generation_fails(place: Place) -> Seen:
    served = play(place, "--fail-generation", limits=replace(LIMITS, ready_s=4.0))
    expect(type(served.error) is ServerNotReady, f"{served.outcome}: {served.error}")
    return Seen("timed out after 4 s; it was never called ready")


@fault("/health says 200, generation hangs", expected="stuck: never called ready")
def generation_hangs(place: Place) -> Seen:
    served = play(place, "--hang-generation", limits=replace(LIMITS, stuck_s=2.0))
    expect(isinstance(served.error, ServerStuck), f"{served.outcome}: {served.error}")
    waited = served.entered["stop"] - place.events()["ready"]
    return Seen("stuck; the limit was 2 s; it was never called ready", waited)


@fault("/v1/models says 200 while it loads", expected="ready when it generates, not before", is_timed=True)
def models_while_loading(place: Place) -> Seen:
    served = play(place, "--ready-delay-s=2")
    (lag,) = served.lag_s(place)
    expect(served.was_ready and lag > 0, f"{served.outcome}, {lag:.2f} s after its own readiness")
    return Seen("ready once it generated", lag, ready_lag_s=(lag,))


@fault("none: a healthy server, ten times", expected="ready, known within 250 ms (median)", is_timed=True)
def healthy(place: Place) -> Seen:
    lags: list[float] = []
    for _ in range(10):
        served = play(place, "--startup-delay-s=0.2")
        expect(served.was_ready and served.error is None, f"{served.outcome}: {served.error}")
        lags += served.lag_s(place)
    median = sorted(lags)[len(lags) // 2]
    expect(median < 0.25, f"median {median:.3f} s")
    return Seen(f"ready ten times; worst {max(lags) * 1000:.0f} ms", median, ready_lag_s=tuple(lags))


def _exits(code: int, *, cause: str, message: str = "went away") -> None:
    """A row for a server that ends with this code while it loads, and whose log says ``message``."""
    shown = f"{code}" if code >= 0 else f"{code} ({signal.Signals(-code).name})"

    def exits(place: Place) -> Seen:
        served = play(place, "--die-in=load", f"--exit-code={code}", f"--die-message={message}")
        error = expect_death(served, phase="loading weights", code=code, cause=cause)
        return noticed(place, served, death_words(error))

    exits.__name__ = f"exit_code_{code}".replace("-", "minus_")
    fault(f"ends with exit code {shown}", expected=f"died; said: {cause or 'the last lines'}", is_timed=True)(
        exits
    )


_exits(1, cause="")
_exits(137, cause="killed by signal 9")
_exits(139, cause="a segmentation fault")
_exits(-signal.SIGBUS, cause="/dev/shm is full")
_exits(-signal.SIGILL, cause="an illegal instruction")
_exits(-signal.SIGKILL, cause="killed by signal 9")
_exits(-signal.SIGABRT, cause="it aborted")


def _says(name: str, title: str, message: str, *, remedy: str) -> None:
    """A row for a server that dies with these last words."""

    def says(place: Place) -> Seen:
        served = play(place, "--die-in=warm-up", f"--die-message={message}")
        error = expect_death(served, phase="warming up", code=1, cause=message.partition(": ")[2][:40])
        expect(remedy in (error.remedy or ""), f"remedy: {error.remedy}")
        return noticed(place, served, f"{death_words(error)[:120]}; remedy: {error.remedy}")

    says.__name__ = name
    fault(title, expected="died; cause and remedy named", is_timed=True)(says)


_says(
    "out_of_gpu_memory",
    "its log says that GPU memory ran out",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    remedy="lower the memory fraction",
)
_says(
    "out_of_host_memory",
    "its log says that host memory ran out",
    "RuntimeError: [enforce fail at alloc_cpu.cpp] can't allocate memory: you tried to allocate 68719476736 bytes",
    remedy="out of host memory",
)
_says(
    "shared_memory_full",
    "its log says that /dev/shm is full",
    "RuntimeError: unable to resize mmap shared memory object </torch_1_2> : insufficient shared memory",
    remedy="/dev/shm is full",
)
_says(
    "collective_timed_out",
    "its log says that a collective timed out",
    "RuntimeError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)",
    remedy="a rank did not take part",
)
