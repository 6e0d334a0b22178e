"""Runs the progress view through a study that is made up; the tests look at what it draws."""

from __future__ import annotations

import sys
import time

from report_studies import BASELINE, hypothesis, speculative, study, trial

from spectune.api.progress import ProgressView
from spectune.runner.events import TrialStart

NAME = "an-arm-with-a-long-name-of-sixty-characters-all-its-flags-in"
QUESTION = (
    "Does drafting pay, and is a question that is longer than eighty columns shown without a broken word?"
)
MESSAGE = (
    "the search asks for this arm next, since nothing else is likely to be faster than plain decoding here"
)


def main(pause_s: float) -> None:
    of = study(speculative(NAME), name="made-up", question=QUESTION)
    trials = []
    with ProgressView() as view:
        view.on_study(of, done=0, total=2)
        for number, arm in enumerate((BASELINE, of.arms[1]), start=1):
            view.on_message(MESSAGE)
            view.on_trial_start(
                TrialStart(
                    number=number,
                    position=number,
                    total=2,
                    total_is_likely=False,
                    arm=arm,
                    repetition=0,
                    hypothesis=hypothesis(),
                    eta_s=95.0,
                )
            )
            for phase in ("launch", "load", "measure", "stop"):
                view.on_phase(phase)
                view.on_progress(0.5)
                time.sleep(pause_s)
            for done in range(1, 5):
                view.on_request(done, 4)
            trials.append(trial(of, arm, number, speeds=100.0 * number))
            view.on_trial_end(trials[-1], trials)
    sys.stderr.write("the end\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)
