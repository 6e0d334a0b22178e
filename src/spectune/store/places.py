"""Where a study lies: a folder, or ``s3://BUCKET/PATH`` in an object store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from spectune.domain.secrets import url_as_shown
from spectune.errors import BadInput

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,253}[a-z0-9]", re.IGNORECASE)
_SHARED = re.compile(r"s3a?:", re.IGNORECASE)
_KEY_PART = re.compile(r"[^\x00-\x1f\x7f\\?*\[\]]+")


@dataclass(frozen=True)
class Bucket:
    """A place in an object store; ``prefix`` has no slash at either end and may be empty."""

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def below(self, name: str) -> Bucket:
        return Bucket(self.bucket, f"{self.prefix}/{name}".strip("/"))


def place_of(text: str) -> Path | Bucket:
    """``BadInput`` for what looks like an address and is not one that spectune can use."""
    scheme, _, rest = text.partition(":")
    shown = url_as_shown(text)
    if not is_shared(text):
        if "://" in text and not Path(text).exists():
            raise BadInput(
                f"{shown}: {scheme}:// is not known here; a study lies in a folder or at s3://BUCKET/PATH"
            )
        return Path(text)
    if not rest.startswith("/"):
        raise BadInput(
            f"{shown}: an address has two slashes: s3://BUCKET/PATH (a folder of this name: ./{shown})"
        )
    bucket, _, key = rest.lstrip("/").partition("/")  # a ``Path`` makes one slash of two
    parts = [part for part in key.split("/") if part]
    if not _BUCKET.fullmatch(bucket):
        raise BadInput(
            f"{shown}: {bucket.rpartition('@')[2]!r} is no name of a bucket; give s3://BUCKET/PATH"
        )
    wrong = [part for part in parts if part in (".", "..") or not _KEY_PART.fullmatch(part)]
    if wrong:
        raise BadInput(f"{shown}: {wrong[0]!r} cannot be part of a path; give s3://BUCKET/PATH")
    return Bucket(bucket, "/".join(parts))


def is_shared(text: str) -> bool:
    """Whether this is meant as an address in an object store; ``place_of`` says if it is a good one."""
    return _SHARED.match(text) is not None


def same_place(text: str | Path) -> str:
    """Equal for two ways to write one place."""
    place = place_of(str(text))
    return place.url if isinstance(place, Bucket) else str(place.resolve())


def text_of(path: str | Path) -> str:
    """A place as a user writes it, also one that was carried as a ``Path``."""
    place = place_of(str(path))
    return place.url if isinstance(place, Bucket) else str(path)
