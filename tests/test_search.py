"""Strategies: pure answers to a history, and what each protocol promises."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.errors import BadInput
from spectune.models.observation import Observation
from spectune.search.grid import Grid
from spectune.search.neighbours import changed_knobs, is_neighbour, neighbours
from spectune.search.one_factor import OneFactor
from spectune.search.plan import (
    STRATEGIES,
    Repeats,
    estimate_search,
    make_strategy,
    num_changes,
    num_neighbours,
)
from spectune.search.predict import Predict
from spectune.search.protocol import Ask, Budget, History, LegalArm, Objective, PrunedArm, Stop, Strategy

BASE = baseline_arm(engine="sglang", target="m")
Speed = Callable[[Arm], float]


def chain(k: int, **changes: object) -> Arm:
    knobs = Knobs(method="eagle3", drafter="d", num_steps=k, topk=1, num_draft_tokens=k)
    return Arm(name=f"k{k}", engine="sglang", target="m", knobs=knobs.model_copy(update=changes))


def tree(steps: int, topk: int, tokens: int) -> Arm:
    knobs = Knobs(method="eagle3", drafter="d", num_steps=steps, topk=topk, num_draft_tokens=tokens)
    return Arm(name=f"{steps}-{topk}-{tokens}", engine="sglang", target="m", knobs=knobs)


CHAINS = [BASE, *(chain(k) for k in range(1, 9))]


def legal(arms: list[Arm], **changes: object) -> list[LegalArm]:
    return [LegalArm(arm, launch_s=300.0, imposed=arm.is_synthetic, **changes) for arm in arms]  # type: ignore[arg-type]


def counts(k: int) -> AcceptanceCounts:
    """0.8, then each position 0.9 times as likely as the one before; 3,000 steps."""
    shares, chance, reached = [], 0.8, 1.0
    for _ in range(k):
        reached *= chance
        chance *= 0.95
        shares.append(round(3000 * reached))
    return AcceptanceCounts(
        num_drafts=3000,
        num_draft_tokens=3000 * k,
        num_accepted_tokens=sum(shares),
        accepted_per_position=tuple(shares),
    )


def measure(arm: Arm, speed: Speed, launch: int) -> Observation:
    found = Observation(arm, speed(arm), None, None, log_sd=0.005, launch=launch, synthetic=arm.is_synthetic)
    if arm.is_baseline:
        return found
    if (arm.knobs.topk or 1) > 1:
        return replace(found, length=tree_length(arm), length_log_sd=0.01)
    return replace(found, acceptance=counts(arm.knobs.num_steps or 1))


def tree_length(arm: Arm) -> float:
    """8 % more for each doubling of the branching, as far as the tokens go round."""
    steps, topk, tokens = arm.knobs.num_steps or 1, arm.knobs.topk or 1, arm.knobs.num_draft_tokens or 1
    length = counts(steps).acceptance_length or 1.0
    return length * (1 + 0.08 * math.log2(topk) * min(1.0, tokens / (2 * steps)))


def search(
    strategy: Strategy, speed: Speed, *, failing: frozenset[str] = frozenset()
) -> tuple[list[Ask], Stop]:
    asked: list[Ask] = []
    history = History()
    for launch in range(200):
        answer = strategy.ask(history)
        if isinstance(answer, Stop):
            return asked, answer
        asked.append(answer)
        if answer.arm.arm_id in failing:
            history = replace(history, failed={**history.failed, answer.arm.arm_id: "out of memory"})
        else:
            seen = (*history.observations, measure(answer.arm, speed, launch))
            history = replace(history, observations=seen, elapsed_s=history.elapsed_s + 300)
    raise AssertionError("the search does not end")


def linear(arm: Arm) -> float:
    """80 tok/s plain; 10 % of a step per drafted token."""
    k = arm.knobs.num_steps or 0
    length = 1.0 if k == 0 else counts(k).acceptance_length or 1.0
    return 80 * length / (1 + 0.1 * k)


def falling_off_a_cliff_at(cliff: int) -> Speed:
    return lambda arm: linear(arm) * (0.75 if (arm.knobs.num_steps or 0) >= cliff else 1.0)


def best_of(arms: list[Arm], speed: Speed) -> float:
    return max(speed(arm) for arm in arms)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_baseline_comes_first(name: str) -> None:
    asked, _ = search(make_strategy(name, legal(CHAINS)), linear)
    assert asked[0].arm == BASE


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_record_gives_the_same_answer_from_a_new_strategy(name: str) -> None:
    """So a search that was killed resumes where it was."""
    history = History()
    for launch in range(4):
        first = make_strategy(name, legal(CHAINS)).ask(history)
        second = make_strategy(name, legal(CHAINS)).ask(history)
        assert first == second
        if isinstance(first, Stop):
            break
        seen = (*history.observations, measure(first.arm, linear, launch))
        history = replace(history, observations=seen)


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_arm_is_asked_for_twice(name: str) -> None:
    asked, _ = search(make_strategy(name, legal(CHAINS)), linear)
    ids = [a.arm.arm_id for a in asked]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_failed_arm_is_not_asked_for_again_and_is_never_recommended(name: str) -> None:
    fastest = max(CHAINS, key=linear)
    strategy = make_strategy(name, legal(CHAINS))
    asked, stop = search(strategy, linear, failing=frozenset({fastest.arm_id}))
    assert [a.arm.arm_id for a in asked].count(fastest.arm_id) <= 1
    assert stop.best is not None and stop.best.arm_id != fastest.arm_id


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_arm_that_was_stopped_as_worse_is_never_recommended(name: str) -> None:
    """However fast it was on the few prompts that it had."""
    fastest = max(CHAINS, key=linear)

    def stopped_late(arm: Arm) -> float:
        return linear(arm) * (1.2 if arm == fastest else 1.0)

    strategy = make_strategy(name, legal(CHAINS))
    history = History()
    for launch in range(20):
        answer = strategy.ask(history)
        if isinstance(answer, Stop):
            break
        seen = replace(measure(answer.arm, stopped_late, launch), stopped=answer.arm == fastest)
        history = replace(history, observations=(*history.observations, seen))
    assert isinstance(answer, Stop) and answer.best is not None
    assert fastest.arm_id in history.stopped
    assert answer.best.arm_id != fastest.arm_id


@pytest.mark.parametrize("name", STRATEGIES)
def test_launches_and_minutes_are_limits(name: str) -> None:
    asked, stop = search(make_strategy(name, legal(CHAINS), budget=Budget(launches=3)), linear)
    assert len(asked) == 3
    assert "3 launches" in stop.reason
    asked, stop = search(make_strategy(name, legal(CHAINS), budget=Budget(minutes=12)), linear)
    assert len(asked) == 3  # 5 minutes each: the third ends at 15
    assert "12 minutes" in stop.reason
    assert stop.best is not None


def test_a_failed_launch_counts_against_the_budget() -> None:
    strategy = make_strategy("grid", legal(CHAINS), budget=Budget(launches=4))
    asked, _ = search(strategy, linear, failing=frozenset(arm.arm_id for arm in CHAINS[1:]))
    assert len(asked) == 4


@pytest.mark.parametrize("name", STRATEGIES)
def test_imposed_acceptance_is_measured_once_and_never_recommended(name: str) -> None:
    imposed = [
        chain(3).model_copy(update={"name": "length", "synthetic_acceptance_length": 3.9}),
        chain(3).model_copy(update={"name": "flag", "flags": {"spec-synth-len": "3.9"}}),
    ]

    def speed(arm: Arm) -> float:
        return 1000.0 if arm.is_synthetic else linear(arm)

    asked, stop = search(make_strategy(name, legal([*CHAINS, *imposed])), speed)
    names = [a.arm.name for a in asked]
    assert sorted(n for n in names if n in ("length", "flag")) == ["flag", "length"]
    assert stop.best is not None and not stop.best.is_synthetic


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_is_launched_after_a_baseline_that_failed(name: str) -> None:
    asked, stop = search(make_strategy(name, legal(CHAINS)), linear, failing=frozenset({BASE.arm_id}))
    assert [a.arm for a in asked] == [BASE]
    assert stop.best is None and "baseline failed" in stop.reason


def test_an_arm_stopped_before_the_second_load_is_no_place_to_start_from() -> None:
    strategy = make_strategy("one-factor", legal(CHAINS), objective=Objective((1, 8)))
    plain = measure(BASE, linear, 0)
    stopped = measure(chain(1), linear, 1)  # at one request at a time alone
    seen = (plain, replace(plain, concurrency=8), stopped)
    answer = strategy.ask(History(seen))
    assert isinstance(answer, Ask) and answer.arm == chain(2)
    whole = measure(chain(2), linear, 2)
    after = strategy.ask(
        History((*seen, whole, replace(whole, concurrency=8)), {chain(3).arm_id: "no memory"})
    )
    assert isinstance(after, Ask) and "ruled out: k1 (stopped early); k3 (failed)" in after.reason


def test_an_unknown_strategy_and_a_missing_baseline_are_the_users_mistakes() -> None:
    with pytest.raises(BadInput, match="valid: predict, one-factor, grid"):
        make_strategy("bayes", legal(CHAINS))
    with pytest.raises(BadInput, match="no baseline"):
        make_strategy("predict", legal(CHAINS[1:]))


def test_arms_measured_on_one_server_are_one_launch() -> None:
    asked = [chain(7).model_copy(update={"request": {"n": n}}) for n in (1, 2, 3)]
    seen = [
        measure(BASE, linear, 1),
        *(measure(arm, linear, 2) for arm in asked),
        measure(chain(3), linear, 5),
    ]
    assert History(tuple(seen), failed={"x": "out of memory"}).launches == 4


class TestGrid:
    def test_measures_everything_once_in_an_order_that_is_not_the_lists(self) -> None:
        asked, stop = search(Grid(legal(CHAINS)), linear)
        assert {a.arm.arm_id for a in asked} == {arm.arm_id for arm in CHAINS}
        assert [a.arm for a in asked] != CHAINS
        assert stop.best == max(CHAINS, key=linear)

    def test_every_block_has_its_own_order_and_opens_with_the_baseline(self) -> None:
        grid = Grid(legal(CHAINS), repetitions=3)
        orders = [[a.arm.name for a in grid.order(block)] for block in range(3)]
        assert all(order[0] == "baseline" for order in orders)
        assert len({tuple(order) for order in orders}) == 3
        asked, _ = search(grid, linear)
        assert len(asked) == 27


class TestOneFactor:
    def test_changes_one_factor_of_the_best_so_far_and_says_what_was_ruled_out(self) -> None:
        arms = [BASE, tree(3, 4, 8), tree(4, 4, 8), tree(3, 2, 8), tree(3, 4, 16), tree(4, 2, 16)]
        speeds = dict(zip([a.arm_id for a in arms], [80, 90, 100, 70, 95, 60], strict=True))
        asked, stop = search(OneFactor(legal(arms)), lambda arm: speeds[arm.arm_id])
        assert [a.arm.name for a in asked[:3]] == ["baseline", "3-4-8", "4-4-8"]
        assert "change num_steps" in asked[2].reason
        assert stop.best == arms[2]
        assert "ruled out" in stop.reason and "3-4-8" in stop.reason

    def test_a_chains_length_is_one_factor(self) -> None:
        assert changed_knobs(chain(3), chain(4)) == ("num_draft_tokens",)
        assert changed_knobs(tree(3, 4, 8), tree(4, 4, 16)) == ("num_steps", "num_draft_tokens")

    def test_climbs_to_the_best_length(self) -> None:
        _, stop = search(OneFactor(legal(CHAINS)), linear)
        assert stop.best == max(CHAINS, key=linear)


class TestPredict:
    def test_finds_the_best_chain_in_fewer_launches_than_the_sweep(self) -> None:
        asked, stop = search(Predict(legal(CHAINS)), linear)
        assert stop.best is not None
        assert linear(stop.best) >= 0.99 * best_of(CHAINS, linear)
        assert len(asked) <= 7

    def test_four_launches_are_within_three_percent_on_a_straight_cost(self) -> None:
        _, stop = search(Predict(legal(CHAINS), Budget(launches=4)), linear)
        assert stop.best is not None
        assert linear(stop.best) >= 0.97 * best_of(CHAINS, linear)

    @pytest.mark.parametrize("cliff", [3, 4, 5, 6, 7, 8])
    def test_a_cliff_anywhere_is_found(self, cliff: int) -> None:
        speed = falling_off_a_cliff_at(cliff)
        asked, stop = search(Predict(legal(CHAINS)), speed)
        assert stop.best is not None
        assert speed(stop.best) >= 0.98 * best_of(CHAINS, speed)
        assert len(asked) < len(CHAINS)

    def test_the_winners_neighbours_are_always_measured(self) -> None:
        asked, stop = search(Predict(legal(CHAINS)), linear)
        measured = {a.arm.arm_id for a in asked}
        assert stop.best is not None
        assert {n.arm_id for n in neighbours(stop.best, CHAINS)} <= measured

    def test_neighbours_are_measured_even_where_nothing_is_expected_of_them(self) -> None:
        asked, stop = search(Predict(legal(CHAINS), margin=1.0), linear)
        measured = {a.arm.arm_id for a in asked}
        assert stop.best is not None
        assert {n.arm_id for n in neighbours(stop.best, CHAINS)} <= measured
        assert any("neighbour of the winner" in a.reason for a in asked)

    def test_every_question_after_the_first_probe_carries_a_prediction(self) -> None:
        asked, _ = search(Predict(legal(CHAINS)), linear)
        assert asked[0].prediction is None
        assert all(a.prediction is not None for a in asked[1:])
        for ask in asked[3:]:
            assert ask.prediction is not None
            assert abs(math.log(linear(ask.arm) / ask.prediction.value)) < 0.07

    def test_when_nothing_can_win_plain_decoding_is_recommended(self) -> None:
        def hopeless(arm: Arm) -> float:
            return linear(arm) / (3 if arm.knobs.num_steps else 1)

        asked, stop = search(Predict(legal(CHAINS)), hopeless)
        assert stop.best == BASE
        assert len(asked) < 7

    def test_a_failed_baseline_ends_the_search(self) -> None:
        answer = Predict(legal(CHAINS)).ask(History(failed={BASE.arm_id: "out of memory"}))
        assert isinstance(answer, Stop)
        assert "baseline failed" in answer.reason

    def test_residuals_that_are_large_are_named(self) -> None:
        """Chains whose acceptance length at 3 contradicts the run at 7 are measured, not derived."""
        odd = replace(measure(chain(3), linear, 2), acceptance=None, length=1.5, length_log_sd=0.01)
        seen = (measure(BASE, linear, 0), measure(chain(7), linear, 1), odd)
        answer = Predict(legal(CHAINS)).ask(History(seen))
        assert isinstance(answer, Ask)
        assert "measured, not derived" in answer.reason

    def test_an_arm_of_the_running_launch_is_preferred_to_an_equal_that_needs_its_own(self) -> None:
        def cost(arm: Arm) -> LegalArm:
            key = "up" if arm.knobs.num_steps in (2, 6) else None
            return LegalArm(arm, launch_s=3000.0, measure_s=30.0, launch_key=key)

        arms = [cost(arm) for arm in CHAINS]
        seen = tuple(measure(arm, linear, i) for i, arm in enumerate((BASE, chain(7), chain(4))))
        answer = Predict(arms, margin=0.0).ask(History(seen, running_key="up"))
        assert isinstance(answer, Ask)
        assert answer.arm.knobs.num_steps in (2, 6)

    def test_where_launches_are_spent_the_running_one_still_serves_its_arms(self) -> None:
        arms = [LegalArm(a, 300.0, 30.0, "up" if a.knobs.num_steps in (2, 7) else None) for a in CHAINS]
        seen = (measure(BASE, linear, 0), measure(chain(7), linear, 1))
        two = Budget(launches=2)
        answer = Predict(arms, two).ask(History(seen, running_key="up"))
        assert isinstance(answer, Ask)
        assert answer.arm.knobs.num_steps == 2
        assert isinstance(Predict(arms, two).ask(History(seen)), Stop)
        whole = (*seen, measure(chain(2), linear, 1))
        assert isinstance(Predict(arms, two).ask(History(whole, running_key="up")), Stop)

    def test_a_neighbour_on_the_running_launch_is_measured_before_one_that_needs_a_launch(self) -> None:
        def cost(arm: Arm, key: str | None) -> LegalArm:
            return LegalArm(arm, launch_s=300.0, measure_s=300.0, launch_key=key)

        tried = [chain(k) for k in (1, 2, 4, 6, 7, 8)]
        seen = tuple(measure(arm, linear, i) for i, arm in enumerate((BASE, *tried)))
        assert max(tried, key=linear).name == "k4", "its neighbours 3 and 5 are open"
        for runs in (3, 5):
            arms = [cost(a, "up" if a.knobs.num_steps == runs else None) for a in CHAINS]
            answer = Predict(arms, margin=0.5).ask(History(seen, running_key="up"))
            assert isinstance(answer, Ask) and "neighbour" in answer.reason
            assert answer.arm.knobs.num_steps == runs

    def test_a_smaller_chance_is_worth_a_measurement_without_a_launch(self) -> None:
        arms = [LegalArm(a, 970.0, 30.0, "up" if a.knobs.num_steps == 3 else None) for a in CHAINS]
        seen = tuple(measure(arm, linear, i) for i, arm in enumerate((BASE, chain(7))))
        patient = Predict(arms, patience=0.9)
        alone = patient.ask(History(seen))
        assert isinstance(alone, Ask) and "neighbour" in alone.reason, "no chance of 90 %"
        up = patient.ask(History(seen, running_key="up"))
        assert isinstance(up, Ask) and "neighbour" not in up.reason
        assert up.arm.knobs.num_steps == 3

    def test_imposed_acceptance_teaches_cost_and_is_not_the_result(self) -> None:
        imposed = replace(
            measure(chain(7), linear, 1), acceptance=None, length=5.0, synthetic=True, tok_per_s=200.0
        )
        history = History((measure(BASE, linear, 0), imposed))
        assert chain(7).arm_id not in history.measured
        answer = Predict(legal(CHAINS), Budget(launches=2)).ask(history)
        assert isinstance(answer, Stop)
        assert answer.best == BASE

    def test_trees_with_a_cliff_are_found_in_a_fraction_of_the_grid(self) -> None:
        shapes = [(s, t, n) for s in (2, 3, 4, 5) for t in (1, 2, 4) for n in (4, 8, 16)]
        arms = [BASE, *(tree(s, t, s if t == 1 else n) for s, t, n in shapes)]
        arms = list({arm.arm_id: arm for arm in arms}.values())

        def speed(arm: Arm) -> float:
            k = arm.knobs
            if arm.is_baseline:
                return 80.0
            steps, tokens = k.num_steps or 1, k.num_draft_tokens or 1
            cliff = 0.4 if tokens >= 16 else 0.0
            return 80 * tree_length(arm) / (1.1 + 0.08 * steps + 0.01 * tokens + cliff)

        asked, stop = search(Predict(legal(arms), Budget(launches=10)), speed)
        assert stop.best is not None
        assert speed(stop.best) >= 0.97 * best_of(arms, speed)
        assert len(asked) == 10 < len(arms) / 2


class TestNeighbours:
    def test_the_next_legal_value_is_the_neighbour_even_over_a_gap(self) -> None:
        arms = [chain(k) for k in (1, 2, 5, 8)]
        assert [n.name for n in neighbours(chain(5), arms)] == ["k2", "k8"]

    def test_plain_decoding_is_nobodys_neighbour(self) -> None:
        assert not is_neighbour(BASE, chain(1), CHAINS)

    def test_two_factors_apart_are_not_neighbours(self) -> None:
        assert not is_neighbour(tree(3, 4, 8), tree(4, 4, 16), [tree(3, 4, 8), tree(4, 4, 16)])
        assert is_neighbour(chain(3, cuda_graphs=True), chain(3, cuda_graphs=False), [])


class TestObjective:
    def test_several_concurrencies_are_one_geometric_mean(self) -> None:
        seen = (
            Observation(BASE, 100.0, None, None, concurrency=1),
            Observation(BASE, 25.0, None, None, concurrency=16),
            Observation(chain(3), 120.0, None, None, concurrency=1, length=2.0),
        )
        found = Objective((1, 16)).measured(History(seen))
        assert found == {BASE.arm_id: pytest.approx(50.0)}

    def test_the_winner_at_high_load_may_be_another(self) -> None:
        def history() -> History:
            seen = []
            for k, (single, loaded) in {2: (110.0, 30.0), 7: (130.0, 20.0)}.items():
                for c, speed in ((1, single), (16, loaded)):
                    seen.append(
                        Observation(chain(k), speed, None, counts(k), concurrency=c, log_sd=0.005, launch=k)
                    )
            for c, speed in ((1, 80.0), (16, 25.0)):
                seen.append(Observation(BASE, speed, None, None, concurrency=c, log_sd=0.005))
            return History(tuple(seen))

        assert history().launches == 3
        at_one = Predict(legal(CHAINS), objective=Objective((1,))).best(history())
        at_sixteen = Predict(legal(CHAINS), objective=Objective((16,))).best(history())
        assert at_one is not None and at_one.name == "k7"
        assert at_sixteen is not None and at_sixteen.name == "k2"


class TestEstimate:
    def test_a_grid_takes_what_it_takes(self) -> None:
        found = estimate_search("grid", legal(CHAINS, measure_s=60.0), repetitions=2)
        assert (found.launches_likely, found.launches_most) == (18, 18)
        assert found.minutes_most == pytest.approx(18 * 6)

    def test_a_search_of_a_huge_grid_is_not_a_share_of_it(self) -> None:
        """Chains of 1 to 16 tokens by 5 x 5 x 4 flags: 2 + 4 + 4 + 3 neighbours, and 1,601 arms are 2^10.6."""
        grid = [
            Arm(
                name=f"k{k}-{a}-{b}-{c}",
                engine="vllm",
                target="m",
                knobs=Knobs(method="eagle3", drafter="d", num_draft_tokens=k),
                flags={"a": a, "b": b, "c": c},
            )
            for k in range(1, 17)
            for a in range(5)
            for b in range(5)
            for c in range(4)
        ]
        arms = legal([BASE, *grid])
        assert (num_neighbours(grid), num_changes(grid)) == (13, 15 + 4 + 4 + 3)
        found = estimate_search("predict", arms)
        assert found.launches_likely == found.trials_likely == round(3 + 0.2 * 13 * math.log2(1601)) == 31
        assert found.launches_most == 1601
        assert estimate_search("one-factor", arms).launches_likely == round(2.4 + 0.5 * 26)

    def test_what_only_the_requests_change_takes_measurements_and_no_launches(self) -> None:
        """Four draft lengths, each asked with eight limits of its requests."""
        grid = [
            LegalArm(
                chain(k).model_copy(update={"name": f"k{k}-{n}", "request": {"limit": n}}),
                240.0,
                60.0,
                f"k{k}",
            )
            for k in (1, 2, 3, 4)
            for n in range(8)
        ]
        found = estimate_search("predict", [LegalArm(BASE), *grid])
        assert found.launches_likely == round(3 + 0.2 * 2 * math.log2(5))
        assert found.trials_likely == round(3 + 0.2 * (2 + 7) * math.log2(33))

    def test_a_budget_caps_launches_and_minutes(self) -> None:
        found = estimate_search("predict", legal(CHAINS), budget=Budget(launches=4, minutes=10))
        assert (found.launches_likely, found.launches_most) == (4, 4)
        assert found.minutes_most == 10

    def test_arms_of_a_launch_are_one_launch_and_each_its_measurement(self) -> None:
        shared = [LegalArm(a, 240.0, 60.0, None if a.is_baseline else "one") for a in CHAINS]
        grid = estimate_search("grid", shared)
        assert (grid.launches_likely, grid.trials_likely) == (2, len(CHAINS))
        assert grid.minutes_most == pytest.approx(2 * 4 + len(CHAINS))
        assert f"2 launches for {len(CHAINS)} measurements" in str(grid)
        predict = estimate_search("predict", shared)
        assert (predict.launches_likely, predict.launches_most) == (2, 2)
        assert 2 < predict.trials_likely <= len(CHAINS)

    def test_launches_of_plain_decoding_and_of_the_winner_are_counted(self) -> None:
        # 8 others, one more of the winner, plain decoding twice at first and after every second of the 9.
        found = estimate_search("grid", legal(CHAINS), repeats=Repeats(True, 2, winner=1))
        assert found.launches_likely == 9 + 1 + 1 + 5
        capped = estimate_search(
            "grid", legal(CHAINS), repeats=Repeats(True, 2, winner=1), budget=Budget(launches=6)
        )
        assert (capped.launches_likely, capped.trials_likely) == (6, 6)

    def test_pruned_arms_are_listed_with_their_reason(self) -> None:
        pruned = PrunedArm(
            tree(2, 2, 64), "64 draft tokens are more than the 6 candidates of topk 2 and 2 steps"
        )
        assert estimate_search("predict", legal(CHAINS), pruned=[pruned]).pruned == (pruned,)
