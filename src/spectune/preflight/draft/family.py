"""What kind of draft the files hold, from the strongest evidence they give."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from spectune.checkpoints.facts import CheckpointFacts, TensorInfo
from spectune.preflight.situation import Situation

Family = Literal["eagle", "eagle3", "mtp", "dflash", "dspark", "medusa", "standalone"]

_ARCHITECTURE_WORDS: tuple[tuple[str, Family], ...] = (
    ("eagle3", "eagle3"),
    ("peagle", "eagle3"),
    ("dspark", "dspark"),
    ("dflash", "dflash"),
    ("medusa", "medusa"),
    ("nextn", "mtp"),
    ("mtp", "mtp"),
    ("gemma4assistant", "mtp"),
    ("gemma4unifiedassistant", "mtp"),
    ("eagle", "eagle"),
)
_SPECULATORS: dict[str, Family] = {"peagle": "eagle3", "dflash2": "dflash"}
FC_NAMES = ("fc.weight", "model.fc.weight")
Q_NAMES = (
    "midlayer.self_attn.q_proj.weight",
    "layers.0.self_attn.q_proj.weight",
    "model.midlayer.self_attn.q_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "blk.0.attn_q.weight",
)


@dataclass(frozen=True)
class DraftIdentity:
    """``family`` ``None``: the files do not say."""

    family: Family | None
    evidence: tuple[tuple[str, str], ...] = ()


def identify(draft: CheckpointFacts, *, target: CheckpointFacts | None = None) -> DraftIdentity:
    """Declared names first, then tensors, then sizes, and the model's own name last."""
    if draft.kind == "absent":
        return _from_own_name(draft) or DraftIdentity(None)
    for look in (_from_names, _from_tensors, _from_config):
        found = look(draft, target)
        if found is not None:
            return found
    return DraftIdentity(None)


def _from_names(draft: CheckpointFacts, target: CheckpointFacts | None) -> DraftIdentity | None:
    if draft.speculators_algorithm:
        place = (f"{draft.source}/config.json", f"speculators_model_type: {draft.speculators_algorithm}")
        name = draft.speculators_algorithm.lower()
        known = next((family for word, family in _ARCHITECTURE_WORDS if word == name), None)
        return DraftIdentity(_SPECULATORS.get(name, known), (place,))
    names = list(draft.architectures)
    where = f"{draft.source}/config.json"
    key = f"architectures: {list(draft.architectures)}"
    if draft.kind == "gguf" and draft.model_type:
        names, where, key = [draft.model_type], draft.source, f"general.architecture: {draft.model_type}"
    for name in names:
        plain = name.lower().replace("_", "").replace("-", "")
        for word, family in _ARCHITECTURE_WORDS:
            if word in plain:
                return DraftIdentity(family, ((where, key), *fc_evidence(draft)))
    return None


def _from_tensors(draft: CheckpointFacts, target: CheckpointFacts | None) -> DraftIdentity | None:
    if not draft.tensors:
        return None
    fc = draft.tensor(*FC_NAMES)
    if fc is None or len(fc.shape) != 2:
        if any(name.startswith(("midlayer.", "model.midlayer.")) for name in draft.tensors):
            return DraftIdentity("eagle3", ((draft.source, "tensors midlayer.*"),))
        return None
    hidden = draft.hidden_size or fc.shape[0]
    query = draft.tensor(*Q_NAMES)
    doubled = query is not None and len(query.shape) == 2 and query.shape[1] == 2 * hidden
    if doubled or fc.shape[1] > 2 * hidden or draft.d2t is not None:
        return DraftIdentity("eagle3", fc_evidence(draft))
    return DraftIdentity("eagle", fc_evidence(draft))


def _from_config(draft: CheckpointFacts, target: CheckpointFacts | None) -> DraftIdentity | None:
    where = f"{draft.source}/config.json"
    if "dflash_config" in draft.config:
        return DraftIdentity("dflash", ((where, "dflash_config"),))
    if draft.num_layers is None:
        return None
    if draft.draft_vocab_size is not None or "eagle_config" in draft.config:
        key = f"draft_vocab_size: {draft.draft_vocab_size}" if draft.draft_vocab_size else "eagle_config"
        return DraftIdentity("eagle3", ((where, key),))
    if draft.num_layers > 1 and (draft.architectures or draft.kind == "gguf"):
        what = f"{draft.num_layers} layers, no draft architecture"
        return DraftIdentity("standalone", ((where if draft.kind != "gguf" else draft.source, what),))
    return _from_own_name(draft)


def _from_own_name(draft: CheckpointFacts) -> DraftIdentity | None:
    name = re.search(r"eagle-?3|eagle", draft.source.rstrip("/").rpartition("/")[2].lower())
    if name is None:
        return None
    layers = f", and {draft.num_layers} layer" if draft.num_layers else ""
    return DraftIdentity("eagle3" if "3" in name[0] else "eagle", ((draft.source, f"its name{layers}"),))


def fc_evidence(draft: CheckpointFacts) -> tuple[tuple[str, str], ...]:
    fc = draft.tensor(*FC_NAMES)
    return ((f"{draft.source}: {fc.file}", f"fc.weight {list(fc.shape)}"),) if fc is not None else ()


def fc_tensor(draft: CheckpointFacts) -> TensorInfo | None:
    """The fusion layer ``[hidden, inputs]``, or ``None``."""
    fc = draft.tensor(*FC_NAMES)
    return fc if fc is not None and len(fc.shape) == 2 else None


def state_width(draft: CheckpointFacts, target: CheckpointFacts | None) -> int | None:
    """Values per hidden state that the draft takes from its target."""
    if target is not None and target.hidden_size is not None:
        return target.hidden_size
    return draft.target_hidden_size or draft.hidden_size


def is_own_draft(situation: Situation) -> bool:
    """The target's own multi-token-prediction layers draft."""
    draft, target = situation.draft, situation.target
    if situation.knobs.method == "draft_model":
        return False
    if draft is None:
        return situation.knobs.drafter is None
    return target is not None and draft.source == target.source
