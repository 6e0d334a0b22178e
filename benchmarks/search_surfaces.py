"""Simulated engines for the search benchmarks: acceptance from published curves, cost curves with cliffs.

Nothing here is known to spectune: acceptance of a tree, cliffs and noise are
made by other formulas than the ones the model fits.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.models.arm_shape import id_of
from spectune.models.observation import Observation

BASELINE_TOK_PER_S = 80.0
VERIFY_STEPS = 1500
"""Of one launch: 32 prompts of about 128 tokens."""
PROMPTS = 32
CLUSTERING = 3.0
"""Verify steps of one answer resemble each other: variance of their counts over independent ones."""
LAUNCH_S, MEASURE_S = 240.0, 120.0

ChainCost = Callable[[int], float]
TreeCost = Callable[[int, int, int, bool], float]

CHAIN_COSTS: dict[str, ChainCost] = {
    "cheap draft": lambda k: 1 + (0.03 + 0.03 * k) * (k > 0),
    "linear 0.10": lambda k: 1 + 0.10 * k,
    "linear 0.20": lambda k: 1 + 0.20 * k,
    "overhead": lambda k: 1 + (0.5 + 0.04 * k) * (k > 0),
    "saturating": lambda k: 1 + 0.35 * math.sqrt(k),
    "knee after 4": lambda k: 1 + 0.05 * k + 0.15 * max(0, k - 4),
    "cliff at 4": lambda k: 1 + 0.06 * k + 0.35 * (k >= 4),
    "cliff at 8": lambda k: 1 + 0.05 * k + 0.5 * (k >= 8),
    "two cliffs": lambda k: 1 + 0.05 * k + 0.2 * (k >= 3) + 0.3 * (k >= 6),
    "slow processor": lambda k: 1 + 0.5 * k,
}


def _tree(
    verify: float,
    draft: float,
    overhead: float,
    eager: float,
    eager_draft: float,
    cliff: Callable[[int, int], float],
) -> TreeCost:
    def cost(steps: int, topk: int, tokens: int, graphs: bool) -> float:
        plain = 1 + overhead + verify * tokens + draft * steps * (1 + 0.03 * (topk - 1)) + cliff(topk, tokens)
        return plain if graphs else plain + eager + eager_draft * steps

    return cost


TREE_COSTS: dict[str, TreeCost] = {
    "latency bound": _tree(0.010, 0.06, 0.08, 0.40, 0.08, lambda topk, tokens: 0.0),
    "heavy overhead": _tree(0.033, 0.25, 0.50, 0.90, 0.10, lambda topk, tokens: 0.0),
    "compute bound": _tree(0.050, 0.05, 0.10, 0.20, 0.05, lambda topk, tokens: 0.3 * (tokens > 16)),
    "cliffs": _tree(
        0.012, 0.08, 0.10, 0.30, 0.05, lambda topk, tokens: 0.35 * (tokens >= 16) + 0.25 * (topk >= 8)
    ),
    "heavy draft": _tree(0.010, 0.30, 0.10, 0.40, 0.15, lambda topk, tokens: 0.0),
}


@dataclass(frozen=True)
class Curve:
    """A published curve: ``lengths[k]`` is the acceptance length with k drafted tokens."""

    name: str
    method: str
    lengths: tuple[float, ...]


def read_curves(path: Path) -> list[Curve]:
    """Rows ``model,mode,k1..k8``; lines with # are comments."""
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    ]
    curves = []
    for row in csv.DictReader(lines):
        name = f"{row['model']} {row['mode']}"
        known = [row[key] for key in sorted((k for k in row if k.startswith("k")), key=lambda k: int(k[1:]))]
        method = next((m for m in ("dspark", "dflash", "mtp") if m in name), "eagle3")
        curves.append(Curve(name, method, (1.0, *(float(value) for value in known if value))))
    return curves


def marginals(lengths: Sequence[float], k: int) -> list[float]:
    """Share of steps that kept position i, falling, and adding up to the run's own length.

    The steps between published lengths are made non-increasing by pooling
    adjacent violators, which keeps their sum.
    """
    blocks: list[tuple[float, int]] = []
    for value in (lengths[i] - lengths[i - 1] for i in range(1, k + 1)):
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (v2, n2), (v1, n1) = blocks.pop(), blocks.pop()
            blocks.append(((v1 * n1 + v2 * n2) / (n1 + n2), n1 + n2))
    falling = [min(1.0, max(0.0, v)) for v, n in blocks for _ in range(n)]
    scale = (lengths[k] - 1) / max(math.fsum(falling), 1e-9)
    return [min(1.0, v * scale) for v in falling]


def draw_counts(
    rng: random.Random, shares: Sequence[float], tokens: int, *, steps: int = VERIFY_STEPS
) -> AcceptanceCounts:
    """Counts of one run, clustered by answer."""
    kept, reached, before = [], float(steps), 1.0
    for share in shares:
        chance = min(1.0, share / before) if before > 0 else 0.0
        spread = math.sqrt(max(reached * chance * (1 - chance), 0.0) * CLUSTERING)
        reached = min(reached, max(0.0, float(round(rng.gauss(reached * chance, spread)))))
        kept.append(int(reached))
        before = share
    return AcceptanceCounts(
        num_drafts=steps,
        num_draft_tokens=steps * tokens,
        num_accepted_tokens=sum(kept),
        accepted_per_position=tuple(kept),
    )


@dataclass(frozen=True)
class Surface:
    """All legal arms with their true speeds and acceptance."""

    name: str
    arms: tuple[Arm, ...]
    speed: dict[str, float]
    shares: dict[str, tuple[float, ...]]

    @property
    def best(self) -> float:
        return max(self.speed.values())

    def regret(self, arm: Arm | None) -> float:
        return 1.0 if arm is None else 1 - self.speed[id_of(arm)] / self.best

    def measure(self, arm: Arm, *, launch: int, seed: int, noise: float, per: str) -> Observation:
        """One launch. ``per``: ``prompt`` (noise of a prompt's paired ratio) or ``launch`` (of the whole arm)."""
        rng = random.Random(f"{self.name}/{seed}/{launch}/{id_of(arm)}")
        sd = noise / math.sqrt(PROMPTS) if per == "prompt" else noise
        shares = self.shares[id_of(arm)]
        tokens = arm.knobs.num_draft_tokens or 0
        return Observation(
            arm=arm,
            tok_per_s=self.speed[id_of(arm)] * math.exp(rng.gauss(0, sd)),
            speedup=None,
            acceptance=None if arm.is_baseline else draw_counts(rng, shares, tokens),
            log_sd=sd,
            launch=launch,
        )


def _arm(**knobs: object) -> Arm:
    known = Knobs.model_validate({"drafter": "d", **knobs})
    name = f"s{known.num_steps}-t{known.topk}-n{known.num_draft_tokens}{'' if known.cuda_graphs else '-nographs'}"
    return Arm(name=name, engine="sglang", target="m", knobs=known)


_BASELINE = baseline_arm(engine="sglang", target="m")


def chain_surface(curve: Curve, cost_name: str, cost: ChainCost | None = None) -> Surface:
    """Plain decoding and every chain the curve has; ``cost`` instead of the one of that name."""
    cost = cost or CHAIN_COSTS[cost_name]
    arms, speed = [_BASELINE], {_BASELINE.arm_id: BASELINE_TOK_PER_S}
    shares: dict[str, tuple[float, ...]] = {_BASELINE.arm_id: ()}
    for k in range(1, len(curve.lengths)):
        arm = _arm(method=curve.method, num_steps=k, topk=1, num_draft_tokens=k, cuda_graphs=True)
        arms.append(arm)
        speed[id_of(arm)] = BASELINE_TOK_PER_S * curve.lengths[k] / cost(k)
        shares[id_of(arm)] = tuple(marginals(curve.lengths, k))
    return Surface(f"{curve.name} / {cost_name}", tuple(arms), speed, shares)


def tree_shapes() -> list[tuple[int, int, int, bool]]:
    """Legal (steps, topk, tokens, graphs) of an EAGLE tree, root not counted."""
    found = []
    for graphs in (True, False):
        for steps in (1, 2, 3, 4, 5, 6):
            found.append((steps, 1, steps, graphs))
            for topk in (2, 4, 8):
                most = topk + (steps - 1) * topk * topk
                found += [(steps, topk, n, graphs) for n in (4, 8, 16, 32) if steps <= n <= most]
    return found


Widen = Callable[[float, float], float]
"""Chance to keep a token of a level, given that of one candidate and the level's width."""


def _power(alone: float, width: float, worth: float = 0.5) -> float:
    """Candidates as independent tries, of which the later ones are worth less."""
    return float(1 - (1 - alone) ** (width**worth))


def tree_shares(curve: Curve, steps: int, topk: int, tokens: int, widen: Widen = _power) -> list[float]:
    """Wider levels keep more, the less the fewer tokens there are to go round."""
    falling = marginals(curve.lengths, len(curve.lengths) - 1)
    width = 1 + (topk - 1) * min(1.0, tokens / (steps * topk))
    shares, before, kept = [], 1.0, 1.0
    for share in falling[:steps]:
        alone = min(1.0, share / before) if before > 0 else 0.0
        kept *= widen(alone, width)
        shares.append(kept)
        before = share
    return shares


def tree_surface(
    curve: Curve, cost_name: str, cost: TreeCost | None = None, *, widen: Widen = _power
) -> Surface:
    """Plain decoding and every legal tree, with and without graphs."""
    cost = cost or TREE_COSTS[cost_name]
    arms, speed = [_BASELINE], {_BASELINE.arm_id: BASELINE_TOK_PER_S}
    shares: dict[str, tuple[float, ...]] = {_BASELINE.arm_id: ()}
    for steps, topk, tokens, graphs in tree_shapes():
        arm = _arm(method="eagle3", num_steps=steps, topk=topk, num_draft_tokens=tokens, cuda_graphs=graphs)
        kept = tree_shares(curve, steps, topk, tokens, widen)
        arms.append(arm)
        shares[id_of(arm)] = tuple(kept)
        speed[id_of(arm)] = BASELINE_TOK_PER_S * (1 + math.fsum(kept)) / cost(steps, topk, tokens, graphs)
    return Surface(f"{curve.name} / {cost_name}", tuple(arms), speed, shares)


def drawn_chain(number: int) -> Surface:
    """A surface whose acceptance and cost are drawn: straight, bent, with a knee, cliffs anywhere or stairs."""
    rng = random.Random(f"drawn chain/{number}")
    overhead = rng.uniform(0, 0.6) if rng.random() < 0.5 else 0.0
    slope, power = _log_uniform(rng, 0.02, 0.4), 1.0
    knee, cliffs = (0, 0.0), list[tuple[int, float]]()
    match rng.choice(("straight", "bent", "knee", "cliff", "two cliffs", "stairs")):
        case "bent":
            power = rng.uniform(0.4, 1.5)
        case "knee":
            knee = rng.randint(2, 6), _log_uniform(rng, 0.05, 0.3)
        case "cliff":
            cliffs = [(rng.randint(2, 8), _log_uniform(rng, 0.1, 0.6))]
        case "two cliffs":
            cliffs = [(at, _log_uniform(rng, 0.1, 0.4)) for at in rng.sample(range(2, 9), 2)]
        case "stairs":
            width, height = rng.randint(2, 4), _log_uniform(rng, 0.05, 0.4)
            cliffs = [(at, height) for at in range(rng.randint(1, width), 9, width)]

    def cost(k: int) -> float:
        jumps = math.fsum(size for at, size in cliffs if k >= at)
        return 1 + overhead * (k > 0) + slope * float(k**power) + knee[1] * max(0, k - knee[0]) + jumps

    return chain_surface(_drawn_curve(rng, number), f"drawn {number}", cost)


def drawn_tree(number: int) -> Surface:
    """As ``drawn_chain``, for trees: cliffs in the tokens and in the branching, width worth by one of two laws."""
    rng = random.Random(f"drawn tree/{number}")
    verify, draft = _log_uniform(rng, 0.005, 0.06), _log_uniform(rng, 0.03, 0.4)
    overhead = rng.uniform(0, 0.6) if rng.random() < 0.7 else 0.0
    eager, eager_draft = rng.uniform(0.1, 1.0), rng.uniform(0.0, 0.2)
    by_tokens = _drawn_cliffs(rng, (4, 5, 6, 8, 9, 16, 17, 32))
    by_topk = (rng.choice((2, 4, 8)), rng.uniform(0.1, 0.4) if rng.random() < 0.3 else 0.0)

    def cliff(topk: int, tokens: int) -> float:
        return math.fsum(size for at, size in by_tokens if tokens >= at) + by_topk[1] * (topk >= by_topk[0])

    worth, linear = rng.uniform(0.3, 0.7), rng.random() < 0.5

    def widen(alone: float, width: float) -> float:
        if linear:
            return alone + (1 - alone) * min(0.8, 0.35 * worth * math.log2(width))
        return _power(alone, width, worth)

    cost = _tree(verify, draft, overhead, eager, eager_draft, cliff)
    return tree_surface(_drawn_curve(rng, number), f"drawn {number}", cost, widen=widen)


def drawn_grid(number: int) -> Surface:
    """A study's grid: chains or trees, graphs on or both, one to four drafters, up to two flags.

    Flags change a step's cost by about 5 %, a third of their values by nothing; each drafter has a curve of its own.
    """
    rng = random.Random(f"grid/{number}")
    is_tree = rng.random() < 0.6
    longest = 6 if is_tree else rng.choice((4, 8, 16, 32))
    shapes = _drawn_shapes(rng, is_tree=is_tree, longest=longest)
    graphs = rng.choice(((True,), (True,), (True, False)))
    drafters = [f"d{i}" for i in range(rng.choice((1, 1, 2, 3, 4)))]
    flags = {f"f{i}": rng.randint(2, 5) for i in range(rng.choice((0, 0, 1, 2)))}
    verify, draft = _log_uniform(rng, 0.005, 0.06), _log_uniform(rng, 0.03, 0.4)
    overhead = rng.uniform(0, 0.6) if rng.random() < 0.7 else 0.0
    eager, eager_draft = rng.uniform(0.1, 1.0), rng.uniform(0.0, 0.2)
    cliffs = _drawn_cliffs(rng, (3, 4, 5, 6, 8, 9, 16, 17, 32))
    cost = _tree(
        verify,
        draft,
        overhead,
        eager,
        eager_draft,
        lambda topk, tokens: math.fsum(size for at, size in cliffs if tokens >= at),
    )
    effects = {
        (flag, value): 0.0 if rng.random() < 1 / 3 else rng.gauss(0, 0.05)
        for flag, count in flags.items()
        for value in range(count)
    }
    curves = {name: _drawn_lengths(rng, longest) for name in drafters}
    arms, speed = [_BASELINE], {_BASELINE.arm_id: BASELINE_TOK_PER_S}
    shares: dict[str, tuple[float, ...]] = {_BASELINE.arm_id: ()}
    for on, name, *values in itertools.product(graphs, drafters, *map(range, flags.values())):
        chosen = dict(zip(flags, values, strict=True))
        factor = math.exp(math.fsum(effects[item] for item in chosen.items()))
        curve = Curve(name, "eagle3", curves[name])
        for steps, topk, tokens in shapes:
            knobs = Knobs(
                method="eagle3",
                drafter=name,
                num_steps=steps,
                topk=topk,
                num_draft_tokens=tokens,
                cuda_graphs=on,
            )
            label = f"{name}-s{steps}-t{topk}-n{tokens}-{on}-{values}"
            arm = Arm(name=label, engine="sglang", target="m", knobs=knobs, flags=chosen)
            kept = tree_shares(curve, steps, topk, tokens) if topk > 1 else marginals(curve.lengths, steps)
            arms.append(arm)
            shares[id_of(arm)] = tuple(kept)
            step = cost(steps, topk, tokens, on) * factor
            speed[id_of(arm)] = BASELINE_TOK_PER_S * (1 + math.fsum(kept)) / step
    return Surface(f"grid {number}", tuple(arms), speed, shares)


def _drawn_shapes(rng: random.Random, *, is_tree: bool, longest: int) -> list[tuple[int, int, int]]:
    """(steps, topk, tokens): every so many of the chains, or the legal trees of chosen steps, topk and tokens."""
    if not is_tree:
        stride = rng.choice((1, 1, 2, 4)) if longest > 8 else 1
        return [(k, 1, k) for k in range(1, longest + 1, stride)]
    steps = sorted(rng.sample((1, 2, 3, 4, 5, 6), rng.randint(2, 6)))
    topks = sorted(rng.sample((2, 4, 8), rng.randint(1, 3)))
    tokens = sorted(rng.sample((4, 8, 16, 32), rng.randint(1, 4)))
    trees = [(s, t, n) for s in steps for t in topks for n in tokens if s <= n <= t + (s - 1) * t * t]
    return [(s, 1, s) for s in steps] + trees


def _drawn_lengths(rng: random.Random, longest: int) -> tuple[float, ...]:
    first, decay = rng.uniform(0.65, 0.95), rng.uniform(0.86, 1.0)
    lengths, marginal = [1.0], 1.0
    for i in range(longest):
        marginal *= min(0.98, first * decay**i * math.exp(rng.gauss(0, 0.02)))
        lengths.append(lengths[-1] + marginal)
    return tuple(lengths)


def surfaces_of(space: str, *, curves: Path | None, drawn: int | None) -> list[Surface]:
    """Every published curve with every cost curve of a space, or so many drawn ones."""
    if drawn is not None:
        return [drawn_chain(n) if space == "chain" else drawn_tree(n) for n in range(drawn)]
    known = read_curves(curves) if curves is not None else []
    if space == "chain":
        return [chain_surface(curve, cost) for curve in known for cost in CHAIN_COSTS]
    return [tree_surface(curve, cost) for curve in known for cost in TREE_COSTS]


def _drawn_curve(rng: random.Random, number: int) -> Curve:
    return Curve(f"drawn {number}", "eagle3", _drawn_lengths(rng, 8))


def _drawn_cliffs(rng: random.Random, places: Sequence[int]) -> list[tuple[int, float]]:
    """None in 4 of 10 surfaces, one in 4, two in 2."""
    number = rng.choices((0, 1, 2), weights=(4, 4, 2))[0]
    return [(at, _log_uniform(rng, 0.1, 0.5)) for at in rng.sample(list(places), number)]


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
