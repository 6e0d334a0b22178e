"""The cost of a step is recovered from served speeds; predictions hold the truth as often as they say."""

import math
import random
from itertools import product

import pytest

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.models.arm_shape import shape_of
from spectune.models.observation import Observation
from spectune.models.speed import SpeedModel, launch_log_sd, machine_ceiling_tok_per_s
from spectune.models.step_cost import CostPoint, StepCostModel
from spectune.models.step_cost_features import Work, work_of
from spectune.statistics.regression import Prior, cholesky, fit

BASE = baseline_arm(engine="sglang", target="m")


def tree(steps: int, topk: int, tokens: int, *, graphs: bool | None = True) -> Arm:
    knobs = Knobs(
        method="eagle3", drafter="d", num_steps=steps, topk=topk, num_draft_tokens=tokens, cuda_graphs=graphs
    )
    return Arm(name=f"{steps}/{topk}/{tokens}/{graphs}", engine="sglang", target="m", knobs=knobs)


def chain(k: int) -> Arm:
    return tree(k, 1, k)


def points(
    cost: object, arms: list[Arm], *, sd: float = 0.01, rng: random.Random | None = None
) -> list[CostPoint]:
    found = []
    for arm in arms:
        true = cost(arm)  # type: ignore[operator]
        noise = 1 + (rng.gauss(0, sd) if rng else 0.0)
        found.append(CostPoint(arm, true * noise, sd * true))
    return found


def test_regression_agrees_with_least_squares_by_hand() -> None:
    # y = 1 + 2 x at x = 0, 1, 2 with a nearly flat prior and no discrepancy.
    posterior = fit(
        [(1.0, 0.0), (1.0, 1.0), (1.0, 2.0)],
        [1.0, 3.0, 5.0],
        prior=Prior((0.0, 0.0), (100.0, 100.0)),
        noise_sds=[0.1] * 3,
        discrepancy=lambda i, j: 0.0,
    )
    assert posterior.coefficients == pytest.approx((1.0, 2.0), abs=1e-3)
    # Ordinary least squares: var(slope) = 0.1^2 / sum (x - 1)^2 = 0.005.
    assert posterior.coefficient_sd(1) == pytest.approx(math.sqrt(0.005), rel=1e-3)


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(ValueError, match="positive definite"):
        cholesky([[1.0, 2.0], [2.0, 1.0]])


def test_parts_of_a_step_are_told_apart_where_the_arms_differ_in_them() -> None:
    def cost(arm: Arm) -> float:
        k = arm.knobs
        eager = 0.5 if k.cuda_graphs is False else 0.0
        return 1.2 + 0.02 * (k.num_draft_tokens or 0) + 0.15 * (k.num_steps or 0) + eager

    shapes = [(2, 4, 8), (2, 4, 16), (3, 4, 8), (3, 4, 32), (5, 4, 16), (5, 4, 32)]
    arms = [tree(s, t, n, graphs=g) for (s, t, n), g in product(shapes, (True, False))]
    model = StepCostModel(points(cost, arms))
    parts = {c.name: c for c in model.components(tree(5, 4, 16, graphs=False))}
    assert parts["verification"].cost.value == pytest.approx(0.32, abs=0.1)
    assert parts["drafting"].cost.value == pytest.approx(0.75, abs=0.12)
    assert parts["no graphs"].cost.value == pytest.approx(0.5, abs=0.1)
    assert all(parts[name].separated for name in ("verification", "drafting", "no graphs"))


def test_a_chain_alone_does_not_tell_drafting_from_verification() -> None:
    """One token is drafted and one verified with every step, so only their sum is known."""
    model = StepCostModel(
        points(lambda a: 1 + 0.1 * (a.knobs.num_steps or 0), [chain(2), chain(4), chain(7)])
    )
    parts = {c.name: c for c in model.components(chain(4))}
    assert not parts["verification"].separated
    assert model.predict(chain(5)).value == pytest.approx(1.5, abs=0.03)


def test_no_part_of_a_step_takes_negative_time() -> None:
    rng = random.Random(1)
    for _ in range(50):
        arms = [chain(k) for k in rng.sample(range(1, 9), 4)]
        model = StepCostModel([CostPoint(a, rng.uniform(0.9, 1.6), 0.05) for a in arms])
        assert all(part.cost.value >= 0 for part in model.components(arms[0]))


def test_a_cliff_between_two_measured_lengths_is_expected_to_be_possible() -> None:
    def cliff(arm: Arm) -> float:
        tokens = arm.knobs.num_draft_tokens or 0
        return 1 + 0.05 * tokens + 0.5 * (tokens >= 5)

    far = StepCostModel(points(cliff, [chain(3), chain(8)]))
    near = StepCostModel(points(cliff, [chain(3), chain(4), chain(5), chain(8)]))
    assert far.predict(chain(4)).sd > 2 * near.predict(chain(4)).sd
    assert near.predict(chain(4)).value == pytest.approx(1.2, abs=0.05)
    assert near.predict(chain(6)).value == pytest.approx(1.8, abs=0.1)


def test_predicted_intervals_hold_the_truth_as_often_as_stated() -> None:
    """300 straight cost lines at 3 % noise: 90 % intervals of unmeasured lengths hold 88 % or more."""
    rng = random.Random(2)
    inside = total = 0
    for _ in range(300):
        overhead, slope = rng.uniform(0, 0.4), rng.uniform(0.02, 0.2)

        def cost(arm: Arm, a: float = overhead, b: float = slope) -> float:
            return 1 + a + b * (arm.knobs.num_steps or 0)

        model = StepCostModel(points(cost, [chain(2), chain(5), chain(8)], sd=0.03, rng=rng))
        for k in (1, 3, 4, 6, 7):
            predicted = model.predict(chain(k))
            inside += abs(predicted.value - cost(chain(k))) < 1.645 * predicted.sd
            total += 1
    assert inside / total >= 0.88


def test_verification_grows_with_the_batch_where_it_was_measured_to() -> None:
    def cost(k: int, c: int) -> float:
        return 1 + 0.05 * k + 0.02 * k * math.log2(c)

    measured = [CostPoint(chain(k), cost(k, c), 0.01, c) for k in (2, 6) for c in (1, 4, 16)]
    model = StepCostModel(measured)
    assert model.predict(chain(4), concurrency=16).value == pytest.approx(cost(4, 16), abs=0.06)
    assert model.predict(chain(4), concurrency=1).value == pytest.approx(cost(4, 1), abs=0.06)


def observed(arm: Arm, tok_per_s: float, length: float | None, **changes: object) -> Observation:
    return Observation(arm, tok_per_s, None, None, length=length, **changes)  # type: ignore[arg-type]


def test_speed_is_baseline_times_length_over_cost() -> None:
    model = SpeedModel([observed(BASE, 100.0, None), observed(chain(3), 125.0, 2.0)])
    found = model.predict(chain(3))
    # 2.0 tokens per step at 125 tok/s: 16 ms against 10 ms, so a step costs 1.6 and 1.6 breaks even.
    assert found.cost.value == pytest.approx(1.6, rel=0.03)
    assert found.tok_per_s.value == pytest.approx(125, rel=0.03)
    assert found.zero_overhead_tok_per_s == pytest.approx(200)
    assert found.length_for(100.0) == pytest.approx(1.6, rel=0.03)
    assert found.at_decode_speedup(2.0) == pytest.approx(200)


def test_imposed_acceptance_teaches_the_cost_and_is_no_result() -> None:
    imposed = observed(chain(4), 150.0, 3.0, synthetic=True)
    model = SpeedModel([observed(BASE, 100.0, None), imposed])
    found = model.predict(chain(4))
    assert found.cost.value == pytest.approx(2.0, rel=0.05)
    assert not found.measured
    assert found.acceptance.case == "unknown"


def test_the_baseline_between_two_concurrencies_lies_between_them() -> None:
    model = SpeedModel(
        [observed(BASE, 100.0, None, concurrency=1), observed(BASE, 25.0, None, concurrency=16)]
    )
    assert model.baseline_tok_per_s(4) == pytest.approx(50.0)
    assert model.baseline_tok_per_s(64) == pytest.approx(25.0)
    assert SpeedModel([]).baseline_tok_per_s() is None


def test_repeated_launches_teach_the_noise_of_launches() -> None:
    once = [observed(BASE, 100.0, None)]
    assert launch_log_sd(once) == pytest.approx(0.02)
    rng = random.Random(3)
    often = [observed(BASE, 100 * math.exp(rng.gauss(0, 0.1)), None, launch=i) for i in range(40)]
    assert launch_log_sd(often) == pytest.approx(0.1, rel=0.25)


def test_arms_that_shared_their_launches_tell_of_their_noise_once() -> None:
    """Three arms on the same two launches are one difference, not three that agree."""

    def seen(arms: int) -> list[Observation]:
        return [
            Observation(chain(k), 100.0 * math.exp(0.1 * launch), 1.0, None, launch=launch)
            for launch in (0, 1)
            for k in range(1, arms + 1)
        ]

    # Around the mean of 0 and 0.1: 2 x 0.05^2 with one degree, beside two of the declared 0.02.
    by_hand = math.sqrt((2 * 0.02**2 + 0.005) / 3)
    assert launch_log_sd(seen(1)) == pytest.approx(by_hand)
    assert launch_log_sd(seen(3)) == pytest.approx(by_hand)


def test_arms_of_one_launch_are_off_together_and_do_not_confirm_each_other() -> None:
    """Two arms that cost 30 % more than expected say so twice only if each had a launch of its own."""

    def predicted(launches: tuple[int, int]) -> tuple[float, float]:
        arms = zip((chain(4), chain(5)), launches, strict=True)
        found = [CostPoint(arm, 1.9, 0.15, launch=launch, launch_sd=0.149) for arm, launch in arms]
        cost = StepCostModel(found).predict(chain(3))
        return cost.value, cost.sd

    alone, together = predicted((1, 2)), predicted((1, 1))
    assert together[1] > 1.1 * alone[1]
    # Nor does it change what the first of them says by itself: the second adds next to nothing.
    one = StepCostModel([CostPoint(chain(4), 1.9, 0.15, launch=1, launch_sd=0.149)]).predict(chain(3))
    assert together[1] > 0.8 * one.sd


def test_the_machine_ceiling_is_bandwidth_over_bytes() -> None:
    # 140 GB of weights at 4.8 TB/s: 34.3 tok/s plain.
    ceiling = machine_ceiling_tok_per_s(bytes_per_step=140e9, bandwidth_bytes_per_s=4.8e12)
    assert ceiling == pytest.approx(34.29, abs=0.01)


def test_counts_by_position_predict_every_shorter_chain() -> None:
    """One run at 6 and a baseline: speeds of 1..5 within 6 % on a linear cost."""
    shares = [0.8, 0.62, 0.47, 0.35, 0.25, 0.18]
    counts = AcceptanceCounts(
        num_drafts=4000,
        num_draft_tokens=24000,
        num_accepted_tokens=sum(round(4000 * p) for p in shares),
        accepted_per_position=tuple(round(4000 * p) for p in shares),
    )

    def speed(k: int) -> float:
        return 100 * (1 + sum(shares[:k])) / (1 + 0.1 * k)

    model = SpeedModel([observed(BASE, 100.0, None), Observation(chain(6), speed(6), None, counts)])
    for k in range(1, 6):
        assert model.predict(chain(k)).tok_per_s.value == pytest.approx(speed(k), rel=0.06)


class TestJoint:
    measured = (chain(3), chain(8))
    others = (chain(5), chain(1), chain(6), chain(7))

    def model(self, *more: CostPoint) -> StepCostModel:
        known = points(lambda a: 1.1 + 0.1 * (a.knobs.num_steps or 0), list(self.measured))
        return StepCostModel([*known, *more])

    def test_explanations_add_up_to_the_prediction_of_each_arm(self) -> None:
        model = self.model()
        joint = model.joint(self.others, looked=2)
        assert math.fsum(part.weight for part in joint) == pytest.approx(1)
        for i, arm in enumerate(self.others):
            predicted = model.predict(arm)
            mean = math.fsum(part.weight * part.means[i] for part in joint)
            square = math.fsum(
                part.weight * (part.variances[i] + (part.means[i] - mean) ** 2) for part in joint
            )
            assert mean == pytest.approx(predicted.value)
            assert math.sqrt(square) == pytest.approx(predicted.sd)

    def test_an_arm_varies_with_itself_as_it_varies(self) -> None:
        for part in self.model().joint(self.others, looked=2):
            assert [part.covariance[i][i] for i in range(2)] == pytest.approx(part.variances[:2])

    @pytest.mark.parametrize("shift", [-0.15, -0.05, 0.05, 0.2])
    def test_what_is_expected_after_a_look_is_what_a_new_fit_says(self, shift: float) -> None:
        """Conditioning each explanation on k = 5, and weighing them by how likely it was there."""
        model = self.model()
        cost = model.predict(self.others[0]).value + shift
        weights, means = [], []
        for part in model.joint(self.others, looked=1):
            spread = part.variances[0] + 0.01**2
            off = cost - part.means[0]
            weights.append(part.weight * math.exp(-0.5 * off * off / spread) / math.sqrt(spread))
            means.append(part.means[2] + part.covariance[0][2] / spread * off)
        expected = math.fsum(w * m for w, m in zip(weights, means, strict=True)) / math.fsum(weights)
        fitted = self.model(CostPoint(self.others[0], cost, 0.01)).predict(self.others[2])
        # Not exactly: a new fit drops other explanations and holds other parts at zero.
        assert expected == pytest.approx(fitted.value, abs=0.25 * abs(shift) + 0.01)


class TestArmsThatStopEarly:
    """A step costs 1.3 plain ones and 0.4 for each token drafted, whatever the limit of an arm is."""

    @staticmethod
    def seen(arm: Arm, drafted: float, length: float) -> Observation:
        steps = 1000
        kept = round((length - 1) * steps)
        counts = AcceptanceCounts(
            num_drafts=steps,
            num_draft_tokens=round(drafted * steps),
            num_accepted_tokens=kept,
            accepted_per_position=(kept, *[0] * (shape_of(arm).tokens - 1)),
        )
        speed = 100 * length / (1.3 + 0.4 * drafted)
        return Observation(arm, speed, speed / 100, counts, log_sd=0.01)

    def careful(self, k: int, threshold: float = 0.75) -> Arm:
        return chain(k).model_copy(update={"flags": {"spec-draft-p-min": threshold}})

    def model(self) -> SpeedModel:
        plain = Observation(BASE, 100.0, None, None, log_sd=0.01)
        chains = [self.seen(chain(k), k, 1.4) for k in (1, 5)]
        # 0.75 of steps go on from each position to the next: 0.75 + 0.75^2 + ... + 0.75^4 = 2.05 drafted.
        return SpeedModel([plain, *chains, self.seen(self.careful(4), 2.05, 1.4)])

    def test_their_cost_is_that_of_what_they_draft_not_of_what_they_may(self) -> None:
        model = self.model()
        assert model.predict(self.careful(4)).cost.value == pytest.approx(1.3 + 0.4 * 2.05, rel=0.05)
        assert model.predict(chain(3)).cost.value == pytest.approx(1.3 + 0.4 * 3, rel=0.07)

    def test_another_limit_of_the_same_threshold_is_derived(self) -> None:
        model = self.model()
        assert model.drafted(self.careful(2)) == pytest.approx(0.75 + 0.75**2, rel=0.01)
        assert model.drafted(self.careful(2, threshold=0.5)) is None, "another threshold tells nothing"
        assert model.drafted(chain(2)) is None, "it drafts what it may"

    def test_an_n_gram_lookup_runs_no_draft_model(self) -> None:
        ngram = chain(4).model_copy(update={"knobs": Knobs(method="ngram", num_draft_tokens=4)})
        assert work_of(ngram, 0.5) == Work(0.5, 0.0)
        assert work_of(self.careful(4), 0.5) == Work(0.5, 1.5), "the pass that makes it stop is one too"
        assert work_of(self.careful(1), 0.9) == Work(0.9, 1.0)
        assert work_of(chain(4), 4.0) == Work(4, 4)


@pytest.mark.parametrize("size", [47, 48, 120])
def test_the_factor_of_a_matrix_times_itself_is_the_matrix(size: int) -> None:
    """Small ones are factored in plain Python, large ones with numpy; both read the lower half alone."""
    rng = random.Random(size)
    rows = [[rng.gauss(0, 1) for _ in range(size)] for _ in range(size)]
    whole = [[sum(a * b for a, b in zip(p, q, strict=True)) + 5.0 * (p is q) for q in rows] for p in rows]
    half = [[x if j <= i else math.nan for j, x in enumerate(row)] for i, row in enumerate(whole)]
    lower = cholesky(half)
    for i, j in ((0, 0), (size - 1, 0), (size // 2, size // 3), (size - 1, size - 1)):
        squared = sum(a * b for a, b in zip(lower[i], lower[j], strict=True))
        assert squared == pytest.approx(whole[i][j], rel=1e-9, abs=1e-9)
        assert lower[0][size - 1] == 0.0
    half[size - 1][size - 1] = -1.0
    with pytest.raises(ValueError, match="not positive definite"):
        cholesky(half)
