"""Acceptance by position gives every shorter chain; what lies beyond is a guess with its uncertainty."""

import math
import random

import pytest

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs
from spectune.models.acceptance import (
    chain_length,
    fit_decay,
    length_log_sd,
    profile_from_counts,
    profile_from_lengths,
)
from spectune.models.acceptance_depth import fit_depths
from spectune.models.acceptance_family import AcceptanceModel
from spectune.models.arm_shape import Shape
from spectune.models.observation import Observation
from spectune.models.speed import SpeedModel

# Acceptance lengths for k = 1..8, InferenceX golden_al_distribution (Apache-2.0): two chains, a block drafter.
GLM_MTP = (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06)
KIMI_EAGLE3 = (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77)
QWEN_MTP = (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21)

# 100 steps; 60 keep position 0, 30 also position 1, 15 also position 2.
COUNTS = AcceptanceCounts(
    num_drafts=100, num_draft_tokens=300, num_accepted_tokens=105, accepted_per_position=(60, 30, 15)
)


def draw(rng: random.Random, conditional: list[float], steps: int) -> AcceptanceCounts:
    kept = [0] * len(conditional)
    for _ in range(steps):
        for i, a in enumerate(conditional):
            if rng.random() > a:
                break
            kept[i] += 1
    return AcceptanceCounts(
        num_drafts=steps,
        num_draft_tokens=steps * len(conditional),
        num_accepted_tokens=sum(kept),
        accepted_per_position=tuple(kept),
    )


def arm(length: int, *, method: str = "eagle3", topk: int = 1, **changes: object) -> Arm:
    knobs = Knobs(method=method, drafter="d", num_steps=length, topk=topk, num_draft_tokens=length)
    return Arm(name=f"k{length}", engine="vllm", target="m", knobs=knobs).model_copy(update=changes)


def measured(of: Arm, length: float) -> Observation:
    return Observation(of, 80.0, None, None, length=length, length_log_sd=0.01)


def test_shorter_chains_follow_exactly_from_a_longer_one() -> None:
    profile = profile_from_counts([COUNTS])
    assert profile is not None
    assert [profile.length(k).value for k in (1, 2, 3)] == pytest.approx([1.6, 1.9, 2.05])


def test_the_bonus_token_counts() -> None:
    # Leviathan et al. 2023, equation 1: (1 - a^(k+1)) / (1 - a), for a = 0.8 and k = 3.
    assert chain_length([0.8] * 3) == pytest.approx((1 - 0.8**4) / (1 - 0.8))
    assert chain_length([]) == 1


def test_positions_of_several_runs_are_pooled_by_how_often_they_were_reached() -> None:
    short = AcceptanceCounts(
        num_drafts=300, num_draft_tokens=300, num_accepted_tokens=240, accepted_per_position=(240,)
    )
    profile = profile_from_counts([COUNTS, short])
    assert profile is not None
    assert profile.conditional == pytest.approx((300 / 400, 0.5, 0.5))


def test_counts_without_positions_give_no_profile() -> None:
    bare = AcceptanceCounts(num_drafts=10, num_draft_tokens=30, num_accepted_tokens=12)
    assert profile_from_counts([bare]) is None


def test_a_fitted_decay_recovers_the_true_one() -> None:
    truth = [0.85 * 0.93**i for i in range(6)]
    first, decay = fit_decay(truth, [5000.0] * 6)
    assert first == pytest.approx(0.85, rel=0.02)
    assert decay == pytest.approx(0.93, rel=0.02)


@pytest.mark.parametrize("curve", [GLM_MTP, KIMI_EAGLE3, QWEN_MTP])
def test_three_lengths_give_a_published_curve_within_four_percent(curve: tuple[float, ...]) -> None:
    """Known: a decaying model fitted at k = 1, 3, 7 errs by 1.1 % in the mean, 8 % at most, over 14 curves."""
    profile = profile_from_lengths({k: curve[k - 1] for k in (1, 3, 7)})
    assert profile is not None
    errors = [abs(profile.length(k).value / curve[k - 1] - 1) for k in range(1, 9)]
    assert sum(errors) / 8 < 0.02
    assert max(errors) < 0.04


@pytest.mark.parametrize("curve", [GLM_MTP, KIMI_EAGLE3, QWEN_MTP])
def test_one_length_alone_gives_the_others_within_its_interval(curve: tuple[float, ...]) -> None:
    profile = profile_from_lengths({3: curve[2]})
    assert profile is not None
    for k in range(1, 9):
        estimate = profile.length(k)
        assert abs(math.log(curve[k - 1] / estimate.value)) < 2.5 * estimate.log_sd


def test_uncertainty_grows_with_every_position_never_drafted() -> None:
    profile = profile_from_counts([draw(random.Random(1), [0.8, 0.75, 0.7], 3000)])
    assert profile is not None
    spreads = [profile.length(k).log_sd for k in range(4, 9)]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 1.5 * profile.length(3).log_sd
    assert profile.invented(3) == 0
    assert profile.invented(8) == 5


def test_the_length_of_a_run_is_inside_its_interval_as_often_as_stated() -> None:
    """600 runs of 400 independent steps: intervals are wider by the design effect, so at least 95 %."""
    rng = random.Random(2)
    conditional = [0.8, 0.7, 0.6]
    truth = chain_length(conditional)
    inside = 0
    for _ in range(600):
        counts = draw(rng, conditional, 400)
        length, sd = counts.acceptance_length, length_log_sd(counts)
        assert length is not None
        inside += abs(math.log(length / truth)) < 1.96 * sd
    assert inside >= 570


def test_variance_of_a_chain_agrees_with_drawing_it() -> None:
    rng = random.Random(3)
    conditional = [0.8, 0.7, 0.6]
    lengths = []
    for _ in range(400):
        profile = profile_from_counts([draw(rng, conditional, 300)])
        assert profile is not None
        lengths.append(math.log(profile.length(3).value))
    mean = sum(lengths) / len(lengths)
    seen = math.sqrt(sum((x - mean) ** 2 for x in lengths) / len(lengths))
    profile = profile_from_counts([draw(rng, conditional, 300)])
    assert profile is not None
    # Independent steps here: the model's three times the variance, plus 1.2 % from run to run.
    assert profile.length(3).log_sd == pytest.approx(math.hypot(seen * math.sqrt(3), 0.012), rel=0.2)


def test_a_family_of_chains_is_derived() -> None:
    rng = random.Random(4)
    counts = draw(rng, [0.8, 0.75, 0.7, 0.65, 0.6], 3000)
    long = Observation(arm(5), 80.0, None, counts)
    found = AcceptanceModel([long]).of(arm(3))
    assert found.case == "derived"
    assert found.length.value == pytest.approx(chain_length([0.8, 0.75, 0.7]), rel=0.03)


def test_a_length_that_contradicts_the_longer_run_makes_the_family_measured() -> None:
    """A block drafter drafts other tokens at other lengths: a published curve falls from 3.77 to 3.47 after 6."""
    rng = random.Random(5)
    long = Observation(arm(8), 80.0, None, draw(rng, [0.75, 0.75, 0.75, 0.7, 0.7, 0.6, 0.6, 0.6], 3000))
    agrees = AcceptanceModel([long, measured(arm(2), chain_length([0.75, 0.75]))])
    contradicts = AcceptanceModel([long, measured(arm(2), 1.2 * chain_length([0.75, 0.75]))])
    assert agrees.of(arm(4)).case == "derived"
    assert contradicts.of(arm(4)).case == "regressed"
    (residual,) = contradicts.residuals()
    assert residual.large
    assert residual.log_ratio == pytest.approx(math.log(1.2), abs=0.03)


@pytest.mark.parametrize(
    "other",
    [
        arm(3, topk=4),
        arm(3, method="dspark"),
        arm(3, method="ngram"),
    ],
)
def test_trees_blocks_and_ngrams_are_never_derived(other: Arm) -> None:
    same_family = other.model_copy(
        update={"knobs": other.knobs.model_copy(update={"num_steps": 5, "num_draft_tokens": 5})}
    )
    model = AcceptanceModel([measured(same_family, 2.6)])
    assert model.of(other).case == "regressed"
    assert model.of(same_family).case == "own"


def test_a_chain_with_a_threshold_is_derived_from_its_like_and_from_no_other() -> None:
    """Where it stops is decided token by token, so a shorter limit only cuts the draft."""
    rng = random.Random(6)
    careful = arm(5, flags={"spec-draft-p-min": 0.75})
    long = Observation(careful, 80.0, None, draw(rng, [0.5, 0.4, 0.3, 0.2, 0.1], 3000))
    model = AcceptanceModel([long])
    found = model.of(arm(2, flags={"spec-draft-p-min": 0.75}))
    assert found.case == "derived"
    assert found.length.value == pytest.approx(chain_length([0.5, 0.4]), rel=0.03)
    assert model.of(arm(2)).case == "unknown"
    assert model.of(arm(2, flags={"spec-draft-p-min": 0.5})).case == "unknown"
    off = Observation(arm(5, flags={"spec-draft-p-min": 0.0}), 80.0, None, long.acceptance)
    assert AcceptanceModel([off]).of(arm(3)).case == "derived", "a threshold of 0 is none"


def test_graphs_do_not_change_acceptance() -> None:
    with_graphs = arm(4).model_copy(update={"knobs": arm(4).knobs.model_copy(update={"cuda_graphs": True})})
    without = arm(4).model_copy(update={"knobs": arm(4).knobs.model_copy(update={"cuda_graphs": False})})
    found = AcceptanceModel([measured(with_graphs, 2.9)]).of(without)
    assert (found.case, found.length.value) == ("own", pytest.approx(2.9))


def test_an_unmeasured_tree_keeps_a_wider_interval_than_a_measured_one() -> None:
    model = AcceptanceModel([measured(arm(3, topk=4), 2.4), measured(arm(5, topk=4), 2.8)])
    near, own = model.of(arm(4, topk=4)), model.of(arm(3, topk=4))
    assert 2.3 < near.length.value < 2.9
    assert near.length.log_sd > 1.5 * own.length.log_sd


def test_another_setting_of_a_tree_is_half_as_much_like_it_as_the_same_setting() -> None:
    """By hand: from one known length, a tree with other flags differs by 0.04 * sqrt(2 - 2 * 0.5) at one standard
    deviation; to that come two errors of a length, 0.01 each, and 0.15 for flags never seen."""
    flags = {"moe-backend": "a"}
    known = arm(4, topk=4)
    model = AcceptanceModel([measured(known, 2.6)])
    found = model.of(arm(4, topk=4, flags=flags))
    assert found.case == "regressed" and found.length.value == pytest.approx(2.6, rel=0.01)
    assert found.length.log_sd == pytest.approx(math.hypot(0.04, 0.01, 0.01, 0.15), rel=0.002)
    longer = Observation(arm(4, topk=4, flags=flags), 80.0, None, None, length=3.0, length_log_sd=0.01)
    both = AcceptanceModel([measured(known, 2.6), longer])
    assert both.of(arm(5, topk=4, flags=flags)).length.value > 1.02 * both.of(arm(5, topk=4)).length.value


def test_imposed_acceptance_says_nothing_of_the_drafter() -> None:
    imposed = Observation(arm(3), 80.0, None, None, length=3.5, synthetic=True)
    assert AcceptanceModel([imposed]).of(arm(3)).case == "unknown"


class TestDepths:
    """Trees whose chance to keep a token at depth i is 1 - (1 - a_i)^(width^0.5): not what is fitted."""

    shapes = (Shape(3, 4, 8), Shape(6, 8, 8), Shape(5, 1, 5))
    unseen = (Shape(5, 4, 16), Shape(6, 8, 32), Shape(4, 2, 8), Shape(2, 4, 8), Shape(6, 4, 16))

    def chances(self, shape: Shape, first: float, decay: float) -> list[float]:
        width = 1 + (shape.topk - 1) * min(1.0, shape.tokens / (shape.steps * shape.topk))
        return [1 - (1 - first * decay**i) ** (width**0.5) for i in range(shape.steps)]

    def test_three_trees_tell_the_length_of_others(self) -> None:
        rng, errors = random.Random(8), []
        for _ in range(20):
            first, decay = rng.uniform(0.65, 0.9), rng.uniform(0.88, 0.99)
            runs = [(s, draw(rng, self.chances(s, first, decay), 1500)) for s in self.shapes]
            model = fit_depths(runs)
            assert model is not None
            for shape in self.unseen:
                truth = chain_length(self.chances(shape, first, decay))
                errors.append(abs(math.log(model.length(shape).value / truth)))
        assert sum(errors) / len(errors) < 0.03
        assert max(errors) < 0.12

    def test_what_is_not_known_is_wide(self) -> None:
        rng = random.Random(9)
        chain = draw(rng, self.chances(Shape(5, 1, 5), 0.8, 0.95), 1500)
        model = fit_depths([(Shape(5, 1, 5), chain)])
        assert model is not None
        assert model.length(Shape(6, 8, 32)).log_sd > 5 * model.length(Shape(4, 1, 4)).log_sd

    def test_without_counts_by_position_there_is_no_model(self) -> None:
        bare = AcceptanceCounts(num_drafts=10, num_draft_tokens=30, num_accepted_tokens=12)
        assert fit_depths([(Shape(3, 1, 3), bare)]) is None
        assert fit_depths([]) is None


def test_a_measured_speed_counts_more_than_a_length_counted_on_few_steps() -> None:
    """Three chains on one straight cost; the middle one's counts are off by chance, its speed is not."""
    base = Arm(name="base", engine="vllm", target="m", knobs=Knobs(method="none"))
    lengths = {2: 2.2, 4: 2.9, 6: 3.3}
    seen = [Observation(base, 100.0, None, None, log_sd=0.003)]
    for k, length in lengths.items():
        tree = arm(k, topk=2)
        speed = 100 * length / (1 + 0.1 * k)
        off = 1.06 if k == 4 else 1.0
        seen.append(
            Observation(tree, speed, None, None, log_sd=0.003, length=length * off, length_log_sd=0.04)
        )
    model = SpeedModel(seen, declared_launch_log_sd=0.001)
    assert model.predict(arm(4, topk=2)).tok_per_s.value == pytest.approx(100 * 2.9 / 1.4, rel=0.005)


def test_a_tree_twice_as_deep_as_the_measured_one_is_not_known_to_a_few_percent() -> None:
    """The published curves above gain 26 to 42 % from k = 3 to 6: what lengths alone say of it is that uncertain."""
    seen = [measured(arm(3), 2.05), measured(arm(3, topk=4), 2.4)]
    assert 0.1 < AcceptanceModel(seen).of(arm(6, topk=4)).length.log_sd < 0.35
