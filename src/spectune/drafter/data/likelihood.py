"""Are the answers the target's own? Its likelihood of them, against what its own samples would have (needs torch).

At each position the target's distribution says what negative log-likelihood a
token drawn from it, at the temperature of the row, would have on average:
its entropy at temperature 1, that of its first choice when greedy. Own answers
are near it, those of another model above: such data costs acceptance (SpecForge
pull request 223 reports about 10 %).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.domain.record import Record
from spectune.drafter.data.manifest import read_manifest
from spectune.drafter.data.parts import whole_files
from spectune.drafter.data.plan_records import DataSampling
from spectune.drafter.extra import needed
from spectune.errors import BadInput

_TOLERANCE_NATS = 0.25
"""Between a served Q4_1 and the bf16 weights of the same SmolLM2-135M up to 0.15 were measured."""
_Z = 1.96


class Likelihood(Record):
    """Means per answer token, in nats."""

    num_rows: int
    num_tokens: int
    nll_nats: float
    expected_nats: float
    """Of tokens that the target itself would draw at those places."""
    excess_nats: float
    """``nll - expected``; its interval is over rows."""
    excess_low_nats: float
    excess_high_nats: float
    top1_frac: float
    """Answer tokens that are the target's first choice."""
    own_answers: bool | None
    """``None``: too few rows to say."""


@dataclass(frozen=True)
class _Row:
    input_ids: Sequence[int]
    loss_mask: Sequence[int]
    temperature: float


def check_likelihood(out: Path, *, target: str, num_rows: int, max_tokens: int = 2048) -> Likelihood:
    """Over ``num_rows`` rows spread over the data set. Raises ``BadInput``."""
    torch, transformers = needed("torch"), needed("transformers")
    whole_files(out)  # a damaged one is named before the model is loaded
    if not Path(target).is_dir():
        raise BadInput(f"--target {target}: no such folder; the likelihood needs the target's weights")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            target, dtype=torch.bfloat16, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, needed("safetensors").SafetensorError) as error:
        raise BadInput(f"--target {target}: {' '.join(str(error).split())[:300]}") from error
    model.eval()
    sums = []
    with torch.inference_mode():
        for row in _spread(out, num_rows):
            one = _of_row(torch, model, row, max_tokens=max_tokens)
            if one is not None:
                sums.append(one)
    if not sums:
        raise BadInput(f"{out}: no row with an answer within {max_tokens} tokens")
    return _judge(sums)


def _spread(out: Path, num_rows: int) -> Iterator[_Row]:
    """Rows at even distances over all files."""
    parquet = needed("pyarrow.parquet")
    manifest = read_manifest(out)
    total = manifest.num_rows
    wanted = {round(place * total / num_rows) for place in range(min(num_rows, total))}
    number = 0
    for file in manifest.files:
        here = [place - number for place in sorted(wanted) if number <= place < number + file.num_rows]
        number += file.num_rows
        if not here:
            continue
        table = parquet.read_table(out / file.file, columns=["prompt_id", "seed", "input_ids", "loss_mask"])
        for row in table.take(here).to_pylist():
            temperature = _temperature_of(manifest.sampling, row["prompt_id"], row["seed"])
            yield _Row(row["input_ids"], row["loss_mask"], temperature)


def _temperature_of(sampling: DataSampling, name: str, seed: int) -> float:
    """Of a row, whose name is its prompt's, with its turn behind ``#`` where a conversation has several rows."""
    prompt_id = name if sampling.seed_of(name) == seed else name.rpartition("#")[0]
    return sampling.temperature_of(prompt_id)


def _of_row(torch: Any, model: Any, row: _Row, *, max_tokens: int) -> tuple[int, float, float, int] | None:
    """Tokens, summed NLL, summed expectation of it, first choices."""
    ids = torch.tensor([list(row.input_ids[:max_tokens])], device=model.device)
    if int(ids.max()) >= model.config.get_text_config().vocab_size:
        raise BadInput(
            "--target: the data hold token ids beyond its vocabulary; it is not the model that answered"
        )
    mask = torch.tensor(list(row.loss_mask[:max_tokens])[1:], dtype=torch.bool)
    if not bool(mask.any()):
        return None
    logits = model(ids).logits[0, :-1][mask].float()
    labels = ids[0, 1:][mask]
    log_probs = torch.log_softmax(logits, dim=-1)
    nll = -log_probs.gather(1, labels[:, None]).sum()
    if row.temperature > 0:
        drawn = torch.softmax(logits / row.temperature, dim=-1)
        expected = -(drawn * log_probs).sum()
    else:
        expected = -log_probs.amax(dim=-1).sum()
    first = (log_probs.argmax(dim=-1) == labels).sum()
    return int(mask.sum()), float(nll), float(expected), int(first)


def _judge(sums: Sequence[tuple[int, float, float, int]]) -> Likelihood:
    """Ratio estimate over rows, with the usual linearised standard error."""
    tokens = sum(row[0] for row in sums)
    nll, expected = sum(row[1] for row in sums) / tokens, sum(row[2] for row in sums) / tokens
    excess = nll - expected
    n = len(sums)
    spread = sum((row[1] - row[2] - excess * row[0]) ** 2 for row in sums)
    error = math.sqrt(spread * n / max(n - 1, 1)) / tokens
    low, high = excess - _Z * error, excess + _Z * error
    own: bool | None = None
    if n >= 5:
        if low > _TOLERANCE_NATS:
            own = False
        elif high <= _TOLERANCE_NATS:
            own = True
    return Likelihood(
        num_rows=n,
        num_tokens=tokens,
        nll_nats=nll,
        expected_nats=expected,
        excess_nats=excess,
        excess_low_nats=low,
        excess_high_nats=high,
        top1_frac=sum(row[3] for row in sums) / tokens,
        own_answers=own,
    )
