"""The parts of a launch that need no server: the log while it grows, and the clock of phases."""

from pathlib import Path

from spectune.server.log import LogFollower
from spectune.server.phases import PhaseClock


def test_lines_come_once_and_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower(path)
    assert list(follower.new_lines()) == []
    path.write_bytes(b"one\ntw")
    assert list(follower.new_lines()) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert list(follower.new_lines()) == ["two", "three"]
    assert list(follower.new_lines()) == []


def test_progress_bars_and_bytes_that_are_no_text_do_not_hurt(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"10%\r50%\r100%\n\xff\xfe\x1b[31mred\n\n   \n")
    lines = list(LogFollower(path).new_lines())
    assert lines[:3] == ["10%", "50%", "100%"]
    assert "red" in lines[3]
    assert len(lines) == 4


def test_a_huge_line_is_cut_and_the_tail_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 5_000_000 + b"\n" + b"".join(b"line %d\n" % i for i in range(10_000)))
    follower = LogFollower(path)
    first = next(iter(follower.new_lines()))
    assert len(first) <= 2000
    for _ in follower.new_lines():
        pass
    assert len(follower.tail) <= 400


def test_the_last_lines_include_an_unfinished_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nb\nlast words")
    assert LogFollower(path).last_lines(2) == ("b", "last words")


def test_phases_add_up_and_a_phase_can_come_again() -> None:
    now = [0.0]
    seen: list[str] = []
    clock = PhaseClock(clock=lambda: now[0], on_change=seen.append)
    clock.enter("launch")
    now[0] = 2.0
    clock.enter("load")
    clock.enter("load")
    now[0] = 5.0
    clock.enter("warm-up")
    now[0] = 6.0
    clock.close()
    now[0] = 9.0  # between phases: nobody's time
    clock.enter("load")
    now[0] = 10.0
    clock.close()
    assert clock.seconds == {"launch": 2.0, "load": 4.0, "warm-up": 1.0}
    assert seen == ["launch", "load", "warm-up", "load"]
