"""The live line, the table, the headline and the why line go by one rule, whatever the noise is."""

import random

import pytest
from report_studies import BASELINE, FAST, counts, hypothesis, speculative, study, trial
from rich.console import Console

from spectune.analysis.pooling import speed_by_prompt
from spectune.analysis.summary import summarize
from spectune.report.terminal import trial_block
from spectune.runner.hypotheses import judged
from spectune.statistics.intervals import SpeedSample

K1 = speculative("k1", length=1)
OUTCOMES = {"FASTER": " wins: ", "SLOWER": " loses: ", "CANNOT_TELL": " cannot be told from plain decoding: "}
JUDGEMENTS = {"FASTER": "confirmed", "SLOWER": "refuted", "SAME": "refuted", "CANNOT_TELL": "undecided"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("speedup", [0.8, 1.1, 1.56])
def test_a_launch_is_judged_as_the_table_judges_its_arm(seed: int, speedup: float) -> None:
    rng = random.Random(seed)
    of = study(FAST, K1, num_prompts=6)

    def speeds(level: float) -> dict[str, float]:
        launch = rng.lognormvariate(0, 0.02 * seed)
        return {p.prompt_id: level * launch * rng.lognormvariate(0, 0.05) for p in of.workload.prompts}

    kept = counts(66, 33)
    before = [
        trial(of, BASELINE, 1, speeds=speeds(100)),
        trial(of, K1, 2, speeds=speeds(90), acceptance=kept),
        trial(of, BASELINE, 3, speeds=speeds(100)),
        trial(of, K1, 4, speeds=speeds(90), acceptance=kept, repetition=1),
        trial(of, BASELINE, 5, speeds=speeds(100)),
        trial(of, FAST, 6, speeds=speeds(100 * speedup), acceptance=kept),
        trial(of, BASELINE, 7, speeds=speeds(100)),
    ]
    new = trial(of, FAST, 8, speeds=speeds(100 * speedup), acceptance=kept, repetition=1)
    own = SpeedSample(FAST.arm_id, 8, speed_by_prompt(new.loads[:1]))
    expected = hypothesis(
        compared_with=BASELINE.arm_id,
        compared_with_name="baseline",
        expectation="faster",
        predicted_tok_per_s=None,
        verdict=None,
        observed=None,
    )
    said = judged(expected, own, new.loads, study=of, trials=before)
    new = new.model_copy(update={"hypothesis": said})
    summary = summarize(of, [*before, new])
    load, explanation = summary.arm(FAST.arm_id).first, summary.explanation
    assert load is not None and load.verdict is not None and explanation is not None

    assert said.verdict == JUDGEMENTS[load.verdict]
    assert (summary.best_arm_id == FAST.arm_id) is (load.verdict == "FASTER")
    if explanation.headline.startswith("fast, "):
        assert OUTCOMES[load.verdict] in explanation.headline
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(trial_block(summary, new.trial_id))
    line = next(line for line in capture.get().splitlines() if line.strip().startswith("speedup"))
    words = {"FASTER": "faster", "SLOWER": "slower", "SAME": "same", "CANNOT_TELL": "cannot tell"}
    assert words[load.verdict] in line
    assert not [other for verdict, other in words.items() if verdict != load.verdict and other in line]
