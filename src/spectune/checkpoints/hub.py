"""Models on the Hugging Face hub: the local cache first, else byte ranges over HTTPS.

``huggingface_hub`` (the extra ``hub``) says where the cache, the endpoint and
the token are, and whether to stay offline. It has no public call for a range
of bytes, so those are fetched here. The token goes to the endpoint's host
only, and into no message.
"""

from __future__ import annotations

import http.client
import importlib
import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path
from typing import IO, Any

from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.folder import CONFIG, read_folder
from spectune.checkpoints.reading import MAX_CHECKPOINT_BYTES, MAX_FILES, LocalFiles, Unreachable, Unreadable

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9._-]{1,96}")
_TIMEOUT_S = 20.0
_MAX_LISTING_BYTES = 16_000_000
_LOG_IN = "private, gated or misspelt: accept its terms, or log in with `hf auth login`"


@dataclass(frozen=True)
class _Library:
    """What is asked of ``huggingface_hub``, once."""

    endpoint: str
    token: str | None
    offline: bool
    cached: Any
    """``cached(repo, file, revision)`` -> path or ``None``."""


def _library() -> _Library | None:
    try:
        huggingface_hub = importlib.import_module("huggingface_hub")
        constants = importlib.import_module("huggingface_hub.constants")
    except ImportError:
        return None

    def cached(repo: str, file: str, revision: str | None) -> Path | None:
        found = huggingface_hub.try_to_load_from_cache(repo, file, revision=revision)
        return Path(found) if isinstance(found, str) else None

    return _Library(
        endpoint=constants.ENDPOINT.rstrip("/"),
        token=huggingface_hub.get_token(),
        offline=bool(constants.HF_HUB_OFFLINE),
        cached=cached,
    )


def read_hub(repo: str, *, revision: str | None, network: bool) -> CheckpointFacts:
    """Never fails for a model that cannot be reached: then ``kind`` is ``absent`` and ``not_read`` says why."""
    library = _library()
    if library is None:
        return _absent(
            repo, "a hub id: reading those needs the package huggingface_hub (pip install 'spectune[hub]')"
        )
    try:
        config = library.cached(repo, CONFIG, revision)
    except ValueError:  # the library's check of names
        return _absent(repo, "not a name of the hub, which has the form OWNER/NAME, and no file here")
    may_fetch = network and not library.offline
    if config is not None:
        facts = _from_cache(repo, config.parent)
        if facts.tensors is not None or not may_fetch:
            return facts
    elif not may_fetch:
        why = "HF_HUB_OFFLINE is set" if library.offline else "fetching was not allowed"
        return _absent(repo, f"a hub id that is not in the cache, and {why}")
    try:
        files = HubFiles(repo, revision or "main", library=library)
        if CONFIG not in files.names():
            return _absent(repo, f"no {CONFIG} in it (GGUF files are read from disk only)")
        facts = read_folder(files, source=repo, kind="hub", vocabulary=False)
    except Unreadable as error:
        return _from_cache(repo, config.parent) if config is not None else _absent(repo, str(error))
    return replace(facts, fetched=True)


def _from_cache(repo: str, folder: Path) -> CheckpointFacts:
    return read_folder(LocalFiles(folder), source=repo, kind="hub", partial=True)


def _absent(repo: str, reason: str) -> CheckpointFacts:
    return CheckpointFacts(source=repo, kind="absent", not_read=(f"{repo}: {reason}",))


class HubFiles:
    """The files of one revision, each read a cached copy or a range request."""

    parallel = 8

    def __init__(self, repo: str, revision: str, *, library: _Library) -> None:
        self._repo = repo
        self._library = library
        self._lock = threading.Lock()
        self.bytes_read = 0
        self._sizes: dict[str, int] = {}
        quoted = urllib.parse.quote(revision, safe="")
        listing = self._get(f"/api/models/{repo}/revision/{quoted}", start=None, length=_MAX_LISTING_BYTES)[0]
        self._names, self._revision = _parse_listing(listing, revision)

    def names(self) -> frozenset[str]:
        return self._names

    def size(self, name: str) -> int | None:
        return self._sizes.get(name)

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        cached = self._library.cached(self._repo, name, self._revision)
        if cached is not None:
            return self._read_cached(cached, start, length)
        path = f"/{self._repo}/resolve/{self._revision}/{urllib.parse.quote(name)}"
        content, size = self._get(path, start=start, length=length)
        if size is not None:
            self._sizes[name] = size
        return content

    def _read_cached(self, path: Path, start: int, length: int) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(start)
                content = file.read(length)
        except (OSError, OverflowError) as error:
            raise Unreadable(str(error)) from error
        with self._lock:
            self.bytes_read += len(content)
        return content

    def _get(self, path: str, *, start: int | None, length: int) -> tuple[bytes, int | None]:
        """The content, and the whole file's size if the reply names it."""
        with self._lock:
            if self.bytes_read + (length if start is not None else 0) > MAX_CHECKPOINT_BYTES:
                raise Unreadable(
                    f"more than {MAX_CHECKPOINT_BYTES // 1_000_000} MB of this model would be read"
                )
        headers = {"User-Agent": "spectune"}
        if self._library.token:
            headers["Authorization"] = f"Bearer {self._library.token}"
        if start is not None:
            if length <= 0:
                return b"", None
            headers["Range"] = f"bytes={start}-{start + length - 1}"
        request = urllib.request.Request(self._library.endpoint + path, headers=headers)  # noqa: S310
        content, size = _exchange(request, start=start, length=length)
        with self._lock:
            self.bytes_read += len(content)
        return content, size


def _exchange(request: urllib.request.Request, *, start: int | None, length: int) -> tuple[bytes, int | None]:
    try:
        with _opener().open(request, timeout=_TIMEOUT_S) as reply:
            if start and reply.status != 206:
                raise Unreachable("the server does not serve byte ranges")
            return reply.read(length), _whole_size(reply)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return b"", None
        why = _LOG_IN if error.code in (401, 403, 404) else error.reason
        raise Unreachable(f"the hub answered {error.code}: {why}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(f"the hub cannot be reached: {reason}") from None


def _whole_size(reply: Any) -> int | None:
    total = (reply.headers.get("Content-Range") or "").rpartition("/")[2]
    if not total and reply.status == 200:
        total = reply.headers.get("Content-Length") or ""
    return int(total) if total.isdigit() and len(total) < 19 else None


class _TokenStaysHome(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but hands the token to no other host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if following is not None and _origin(newurl) != _origin(req.full_url):
            following.remove_header("Authorization")
        return following


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _TokenStaysHome(),
    ):
        opener.add_handler(handler)
    return opener


def _parse_listing(content: bytes, revision: str) -> tuple[frozenset[str], str]:
    """File names at the top, and the commit, so that all reads are of one state."""
    try:
        listing = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable("the hub's list of files is not JSON") from error
    if not isinstance(listing, dict):
        raise Unreadable("the hub's list of files is not an object")
    siblings = listing.get("siblings")
    names = [
        entry["rfilename"]
        for entry in (siblings[:MAX_FILES] if isinstance(siblings, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("rfilename"), str)
    ]
    commit = listing.get("sha")
    if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40}", commit):
        revision = commit
    return frozenset(name for name in names if "/" not in name), revision
