"""Whole objects below one prefix of an object store, through fsspec; every failure is one of our errors.

Two things are relied on, and S3 promises both: an object is there whole or not
at all, and a listing shows everything that was written before it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spectune.errors import BadInput, EnvironmentFailed, StoreUnreachable
from spectune.store.places import Bucket

CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS = 5.0, 20.0, 2
AT_ONCE = 16
_DENIED = ("AccessDenied", "Forbidden", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_CLIENTS: dict[Hashable, Any] = {}
_HOW_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


@dataclass(frozen=True)
class ObjectFacts:
    """What a listing says of an object; ``modified`` is the store's own clock."""

    size: int
    modified: datetime


class ObjectStore:
    """Objects below ``place``, named relative to it. Thread-safe; blocks."""

    def __init__(self, place: Bucket) -> None:
        self.place = place
        self._root = f"{place.bucket}/{place.prefix}".rstrip("/")
        self._fs = _file_system(place)

    def put(self, name: str, data: bytes) -> None:
        with self._reached(name):
            self._fs.pipe_file(self._key(name), data)

    def put_file(self, name: str, path: Path) -> None:
        with self._reached(name):
            self._fs.put_file(str(path), self._key(name))

    def get(self, name: str) -> bytes | None:
        """``None`` if there is no such object."""
        with self._reached(name):
            try:
                data: bytes = self._fs.cat_file(self._key(name))
            except FileNotFoundError as error:
                self._check_bucket(error)
                return None
            return data

    def get_files(self, wanted: Mapping[str, tuple[Path, ObjectFacts]]) -> None:
        """Each object into its file, whole or not at all, with the object's time; those that are gone are left out."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(self._get_file, wanted, *zip(*wanted.values(), strict=True)) if wanted else ():
                pass

    def _get_file(self, name: str, path: Path, facts: ObjectFacts) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with self._reached(name):
                try:
                    self._fs.get_file(self._key(name), str(temporary))
                except FileNotFoundError:
                    return
            os.utime(temporary, (facts.modified.timestamp(),) * 2)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Also if it is gone already."""
        with self._reached(name):
            try:
                self._fs.rm_file(self._key(name))
            except FileNotFoundError:
                return

    def listing(self, below: str = "") -> dict[str, ObjectFacts]:
        """Every object below, at any depth, by its name relative to the store's place."""
        with self._reached(below):
            found = self._fs.find(self._key(below), detail=True, refresh=True)
            if not found:
                self._check_bucket(None)
        return {
            key[len(self._root) + 1 :]: ObjectFacts(int(facts["size"] or 0), _time_of(facts))
            for key, facts in found.items()
            if key.startswith(f"{self._root}/")
        }

    def children(self, below: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and of the objects directly below, without what stands before them."""
        with self._reached(below):
            try:
                found = self._fs.ls(self._key(below), detail=True, refresh=True)
            except FileNotFoundError as error:
                self._check_bucket(error)
                return [], []
        start = len(self._key(below)) + 1
        folders = [entry["name"][start:] for entry in found if entry["type"] == "directory"]
        files = [entry["name"][start:] for entry in found if entry["type"] != "directory"]
        return [f for f in folders if f], [f for f in files if f]

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _check_bucket(self, error: BaseException | None) -> None:
        """Raises unless the bucket is there: a missing object and a missing bucket look alike."""
        try:
            self._fs.call_s3("list_objects_v2", Bucket=self.place.bucket, MaxKeys=1)
        except FileNotFoundError:
            raise BadInput(
                f"{self.place.url}: there is no bucket {self.place.bucket!r}; create it, or correct the address"
            ) from error

    @contextmanager
    def _reached(self, name: str) -> Iterator[None]:
        where = self.place.below(name).url
        failures, clients = _error_types()
        try:
            yield
        except (BadInput, EnvironmentFailed):
            raise
        except FileNotFoundError as error:
            self._check_bucket(error)
            raise EnvironmentFailed(f"{where}: is gone") from error
        except PermissionError as error:
            raise BadInput(
                f"{where}: access refused ({_first_line(error)}); the keys in use may not do this: {_HOW_KEYS}"
            ) from error
        except failures as error:
            raise _named(where, error, clients) from error


def _named(where: str, error: BaseException, clients: Sequence[type[BaseException]]) -> Exception:
    kind, text = type(error).__name__, _first_line(error)
    if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return BadInput(f"{where}: no keys for the object store ({text}); {_HOW_KEYS}")
    if kind in (
        "ProfileNotFound",
        "InvalidRegionError",
        "NoRegionError",
        "InvalidEndpointDiscoveryConfigurationError",
    ):
        return BadInput(f"{where}: {text}")
    if isinstance(error, tuple(clients)):
        code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
        if code in _DENIED:
            return BadInput(f"{where}: access refused ({text}); {_HOW_KEYS}")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    asked = f"; AWS_ENDPOINT_URL is {endpoint}" if endpoint else ""
    return StoreUnreachable(f"{where}: the object store does not answer ({text or kind}){asked}")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _time_of(facts: Mapping[str, Any]) -> datetime:
    modified = facts.get("LastModified")
    return modified if isinstance(modified, datetime) else datetime.fromtimestamp(0, UTC)


def _error_types() -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
    """What a store may raise, and those of it that are replies."""
    import aiohttp
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    return (OSError, BotoCoreError, ClientError, HTTPClientError, aiohttp.ClientError), (ClientError,)


def _file_system(place: Bucket) -> Any:
    """One client for all stores of a process: to make one takes half a second."""
    try:
        import s3fs
    except ImportError as error:
        raise BadInput(f"{place.url}: needs s3fs: pip install 'spectune[s3]'") from error
    settings = frozenset((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    key = (os.getpid(), READ_TIMEOUT_S, settings)
    if key not in _CLIENTS:
        _CLIENTS[key] = _client(s3fs)
    return _CLIENTS[key]


def _client(s3fs: Any) -> Any:
    files = s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": READ_TIMEOUT_S,
            "retries": {"max_attempts": ATTEMPTS, "mode": "standard"},
            "max_pool_connections": 2 * AT_ONCE,
        },
    )
    files.retries = ATTEMPTS  # its own, around botocore's: a silent store is given up within a minute or two
    return files
