"""Zero is an observation and unknown is not a number: one test for each place that mixed them up."""

from collections import deque

import numpy as np
import pytest

from spectune.cli.drafter.commands import mean_length
from spectune.diagnose.log.records import PrefillWindow
from spectune.diagnose.log.run_builder import RunBuilder
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.workload import LoadPoint
from spectune.drafter.acceptance import Kept, held_out
from spectune.engines.fake.generation import read_question


def kept(*lengths: int) -> Kept:
    return Kept(np.arange(len(lengths)), np.asarray(lengths, np.int64))


def test_an_acceptance_that_nobody_measured_is_not_1() -> None:
    assert held_out([], num_steps=3) == (None, None)
    assert held_out([kept()], num_steps=3) == (None, None)


def test_a_held_out_acceptance_is_that_of_the_walk() -> None:
    lengths, share = held_out([kept(0, 2, 1, 0)], num_steps=2)
    # One drafted: steps at 0 (none kept), 1 (one) and 3 (none): 1 + 1/3. Two: at 0 (none) and 1 (two): 1 + 2/2.
    assert lengths == pytest.approx((4 / 3, 2.0))
    assert share == 0.5


def test_a_category_without_drafts_has_no_acceptance_length() -> None:
    none = AcceptanceCounts(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    assert mean_length(none) == "unknown"
    assert mean_length(AcceptanceCounts(num_drafts=4, num_draft_tokens=4, num_accepted_tokens=0)) == "1.00"


@pytest.mark.parametrize(
    ("load", "streams"),
    [(LoadPoint(), 1), (LoadPoint.closed(1), 1), (LoadPoint.closed(64), 64), (LoadPoint.open(2.0), 1)],
)
def test_a_load_point_has_at_least_one_stream(load: LoadPoint, streams: int) -> None:
    assert load.streams == streams


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_no_tokens_is_refused_and_not_taken_for_none_given(name: str) -> None:
    with pytest.raises(ValueError, match="whole number >= 1, got 0"):
        read_question({"prompt": "a", name: 0}, is_chat=False, stop_after=None)
    assert read_question({"prompt": "a"}, is_chat=False, stop_after=None) == ("a", 16, "length")


def test_a_window_of_no_new_request_holds_no_cached_prompt() -> None:
    run = RunBuilder("log", deque(), first_line=1)
    run.take(PrefillWindow(new_requests=0, new_tokens=0, cached_tokens=100, running=1, queued=0), rank=None)
    assert run.facts(last_line=1).cache.prompts_cached_whole == 0
    run.take(
        PrefillWindow(new_requests=None, new_tokens=1, cached_tokens=100, running=1, queued=0), rank=None
    )
    assert run.facts(last_line=1).cache.prompts_cached_whole == 1
