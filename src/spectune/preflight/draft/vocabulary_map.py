"""Does the draft's reduced vocabulary agree with itself, and map into the target's?"""

from __future__ import annotations

from spectune.checkpoints.facts import CheckpointFacts, VocabMap
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import identify
from spectune.preflight.rules import FINE, Judgement, Rule, found
from spectune.preflight.situation import Situation

DRAFT_VOCAB = finding_kind("draft-reduced-vocabulary")
MAP_MEANING = finding_kind("draft-vocabulary-map")
_LEAST_REAL_MAP = 256
"""A real selection this long holds neighbouring tokens, so its offsets repeat; a shorter list proves nothing."""
_HEAD_NAMES = ("lm_head.weight", "output.weight", "model.lm_head.weight")


def reduced_vocabulary_agrees(situation: Situation) -> Judgement:
    """``draft_vocab_size``, ``lm_head``, ``d2t`` and ``t2d`` tell one story."""
    draft = situation.draft
    if draft is None or identify(draft, target=situation.target).family != "eagle3":
        return FINE
    problems = vocabulary_contradictions(draft, situation.target)
    if not problems:
        return FINE
    return found(
        DRAFT_VOCAB.found(
            situation.subject,
            f"the draft's reduced vocabulary does not agree with itself: {'; '.join(problems)}",
            evidence=[
                (f"{draft.source}: configuration", f"draft_vocab_size: {draft.draft_vocab_size}"),
                *_maps(draft),
            ],
            remedy="export the draft again, or correct draft_vocab_size in its config.json",
        )
    )


def vocabulary_size_written(situation: Situation) -> Judgement:
    """SGLang reads ``draft_vocab_size`` of every Llama-like EAGLE-3 head; null means the target's head."""
    draft = situation.draft
    if draft is None or situation.engine != "sglang" or situation.knobs.method != "eagle3":
        return FINE
    if "LlamaForCausalLMEagle3" not in draft.architectures or draft.tie_word_embeddings:
        return FINE
    place = (
        f"{draft.source}/config.json",
        f"draft_vocab_size: {draft.config.get('draft_vocab_size', 'absent')}",
    )
    if "draft_vocab_size" not in draft.config:
        message = "draft_vocab_size is not written, and SGLang cannot build the draft without it"
        return found(
            DRAFT_VOCAB.found(
                situation.subject,
                message,
                evidence=[place],
                effect="the server ends with an AttributeError for draft_vocab_size",
                remedy="write it into the draft's config.json, equal to the rows of lm_head.weight",
            )
        )
    if draft.config["draft_vocab_size"] is None and draft.tensor(*_HEAD_NAMES) is not None:
        message = "draft_vocab_size is null, so SGLang replaces the draft's own lm_head with the target's"
        return found(
            DRAFT_VOCAB.found(
                situation.subject,
                message,
                severity="warning",
                evidence=[place, *_maps(draft)],
                effect="lower acceptance, without any message",
                remedy="write the number of rows of lm_head.weight",
            )
        )
    return FINE


def vocabulary_contradictions(draft: CheckpointFacts, target: CheckpointFacts | None) -> list[str]:
    """Sizes of the vocabularies in configuration and tensors that cannot all be right."""
    problems = []
    size = draft.draft_vocab_size
    head = draft.tensor(*_HEAD_NAMES)
    if size is not None and head is not None and len(head.shape) == 2 and head.shape[0] != size:
        problems.append(f"lm_head has {head.shape[0]} rows, draft_vocab_size is {size}")
    rows = head.shape[0] if head is not None and len(head.shape) == 2 and draft.kind != "gguf" else None
    if size is None and None not in (rows, draft.vocab_size) and rows != draft.vocab_size:
        problems.append(
            f"lm_head has {rows} rows, and without draft_vocab_size vocab_size counts, {draft.vocab_size}"
        )
    if size is not None and draft.d2t is not None and draft.d2t.length != size:
        problems.append(f"d2t has {draft.d2t.length} entries, draft_vocab_size is {size}")
    if size is not None and draft.vocab_size is not None and size > draft.vocab_size:
        problems.append(f"draft_vocab_size {size} is larger than vocab_size {draft.vocab_size}")
    vocab = target.vocab_size if target is not None and target.vocab_size else draft.vocab_size
    if draft.t2d is not None and vocab is not None and draft.t2d.length != vocab:
        problems.append(f"t2d has {draft.t2d.length} entries, the target {vocab} tokens")
    if size is not None and draft.t2d is not None and draft.t2d.num_true not in (None, size):
        problems.append(f"t2d admits {draft.t2d.num_true} tokens, draft_vocab_size is {size}")
    if size is not None and vocab is not None and size < vocab and draft.has_tensor("d2t") is False:
        problems.append(
            f"draft_vocab_size {size} is smaller than the vocabulary {vocab}, and there is no d2t"
        )
    hashes = draft.d2t and draft.d2t.target_ids_hash, draft.t2d and draft.t2d.true_ids_hash
    if None not in hashes and hashes[0] != hashes[1] and not _are_ids(draft, vocab):
        problems.append("d2t and t2d name different tokens")
    return problems


def _maps(draft: CheckpointFacts) -> list[tuple[str, str]]:
    rows = []
    head = draft.tensor(*_HEAD_NAMES)
    if head is not None:
        rows.append((f"{draft.source}: {head.file}", f"lm_head.weight {list(head.shape)}"))
    if draft.d2t is not None:
        rows.append(
            (
                f"{draft.source}: d2t",
                f"{draft.d2t.length} entries from {draft.d2t.lowest} to {draft.d2t.highest}",
            )
        )
    if draft.t2d is not None:
        rows.append((f"{draft.source}: t2d", f"{draft.t2d.length} entries, {draft.t2d.num_true} true"))
    return rows


def map_means_what_the_engine_reads(situation: Situation) -> Judgement:
    """Offsets for SGLang and vLLM, ids for llama.cpp, all inside the target's vocabulary."""
    draft, target = situation.draft, situation.target
    if draft is None or draft.d2t is None or draft.d2t.lowest is None:
        return FINE
    vocab = (target.vocab_size if target is not None else None) or draft.vocab_size
    problem = (
        _gguf_problem(draft.d2t, vocab) if draft.kind == "gguf" else _offset_problem(draft, draft.d2t, vocab)
    )
    if problem is None:
        return FINE
    return found(
        MAP_MEANING.found(
            situation.subject,
            f"d2t: {problem}",
            evidence=_maps(draft),
            remedy="subtract the draft id from each entry of d2t, or export the draft again"
            if draft.kind != "gguf"
            else "convert the draft again with the target's folder given",
        )
    )


def _are_ids(draft: CheckpointFacts, vocab: int | None) -> bool:
    """The entries are target ids written plainly: ``t2d`` says so, or they never repeat, as real offsets do."""
    entries = draft.d2t
    if entries is None or entries.lowest is None or entries.highest is None:
        return False
    if entries.lowest < 0 or (vocab is not None and entries.highest >= vocab):
        return False
    if draft.t2d is not None and draft.t2d.true_ids_hash is not None:
        return draft.t2d.true_ids_hash == entries.plain_ids_hash != entries.target_ids_hash
    return entries.length >= _LEAST_REAL_MAP and entries.num_distinct_as_ids == entries.length


def _offset_problem(draft: CheckpointFacts, map_: VocabMap, vocab: int | None) -> str | None:
    assert map_.lowest_as_offsets is not None and map_.highest_as_offsets is not None
    if _are_ids(draft, vocab):
        return "its entries are target ids, and the engine reads them as offsets and adds the draft id"
    if map_.lowest_as_offsets < 0:
        return f"an entry leads to the token id {map_.lowest_as_offsets}"
    if vocab is not None and map_.highest_as_offsets >= vocab:
        return f"an entry leads to token {map_.highest_as_offsets} of a vocabulary of {vocab}"
    if map_.num_distinct_as_offsets != map_.length:
        return f"{map_.length} draft tokens lead to {map_.num_distinct_as_offsets} target tokens"
    return None


def _gguf_problem(map_: VocabMap, vocab: int | None) -> str | None:
    assert map_.lowest is not None and map_.highest is not None
    if map_.lowest < 0 or (vocab is not None and map_.highest >= vocab):
        return f"its entries run from {map_.lowest} to {map_.highest} in a vocabulary of {vocab}"
    if map_.num_distinct_as_ids != map_.length:
        distinct = f"{map_.num_distinct_as_ids} different of {map_.length}"
        return f"its entries are offsets, and llama.cpp reads ids: {distinct}"
    return None


RULES: tuple[Rule, ...] = (
    vocabulary_size_written,
    reduced_vocabulary_agrees,
    map_means_what_the_engine_reads,
)
