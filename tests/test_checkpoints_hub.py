"""Models of the hub: from a local server that answers as it does, and from a cache as its library lays it out."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from healthy.models import eagle3_head, eagle3_tensors, make_model, write_safetensors

from spectune.checkpoints.read import read_checkpoint

hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

REPO = "org/head"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret_of_the_test"
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 4000,
    "draft_vocab_size": 1000,
}


class Site:
    """Two servers: the hub, which redirects weights, and the storage it redirects to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, str, str | None, str | None]] = []
        """Server, path, Range, Authorization."""
        self.status: int | None = None
        self.refused = "/"
        """Only paths with this in them are answered with ``status``."""
        self.listing: bytes | None = None
        self.ignore_ranges = False
        self.servers = [
            ThreadingHTTPServer(("127.0.0.1", 0), self._handler(name)) for name in ("hub", "storage")
        ]
        self.urls = [f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def _handler(self, name: str) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append(
                    (name, self.path, self.headers.get("Range"), self.headers.get("Authorization"))
                )
                site.answer(self, name)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def answer(self, request: BaseHTTPRequestHandler, name: str) -> None:
        if self.status is not None and self.refused in request.path:
            self.send(request, self.status, b"no")
        elif request.path.startswith("/api/"):
            names = [{"rfilename": path.name} for path in self.root.iterdir()]
            body = json.dumps({"sha": COMMIT, "siblings": [*names, {"rfilename": "sub/other.safetensors"}]})
            self.send(request, 200, self.listing if self.listing is not None else body.encode())
        elif name == "hub" and request.path.endswith(".safetensors"):
            request.send_response(302)
            request.send_header("Location", f"{self.urls[1]}{request.path}")
            request.send_header("Content-Length", "0")
            request.end_headers()
        else:
            self.send_range(request, self.root / request.path.rpartition("/")[2])

    def send_range(self, request: BaseHTTPRequestHandler, path: Path) -> None:
        content = path.read_bytes()
        first, _, last = (request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
        if self.ignore_ranges:
            self.send(request, 200, content)
            return
        piece = content[int(first) : int(last) + 1 if last else None]
        total = f"bytes {first}-{int(first) + len(piece) - 1}/{len(content)}"
        self.send(request, 206, piece, total)

    def send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, content_range: str = ""
    ) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        if content_range:
            request.send_header("Content-Range", content_range)
        request.end_headers()
        request.wfile.write(body)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    eagle3_head(tmp_path / "repo", CONFIG, readme="---\nbase_model: org/target\n---\n")
    (tmp_path / "repo" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    site = Site(tmp_path / "repo")
    monkeypatch.setattr(constants, "ENDPOINT", site.urls[0])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield site
    site.close()


def in_cache(tmp_path: Path, names: list[str]) -> Path:
    """A snapshot as ``huggingface_hub`` lays it out, with some of the repository's files."""
    base = tmp_path / "cache" / "models--org--head"
    snapshot = base / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(COMMIT)
    (base / "blobs").mkdir()
    for name in names:
        blob = base / "blobs" / f"blob-{name}"
        blob.write_bytes((tmp_path / "repo" / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/blob-{name}")
    return snapshot


def test_a_hub_id_reads_as_the_same_folder_would(tmp_path: Path, site: Site) -> None:
    remote, local = read_checkpoint(REPO), read_checkpoint(str(tmp_path / "repo"))
    assert remote.kind == "hub" and remote.fetched
    assert remote.config == local.config and remote.d2t == local.d2t and remote.t2d == local.t2d
    assert remote.tensors == local.tensors and remote.tensors_complete
    assert [base.name for base in remote.base_models] == ["org/target"]


def test_only_ranges_are_asked_for_and_weights_are_not_among_them(tmp_path: Path, site: Site) -> None:
    facts = read_checkpoint(REPO)
    weights = [line for line in site.requests if line[1].endswith(".safetensors")]
    assert weights and all(line[2] is not None for line in weights)
    assert not any("tokenizer.json" in line[1] for line in site.requests)
    assert any("tokenizer.json" in note for note in facts.not_read)
    size = (tmp_path / "repo" / "model.safetensors").stat().st_size
    assert size > 200_000 > facts.bytes_read
    assert all(COMMIT in line[1] for line in site.requests if "/resolve/" in line[1])


def test_the_token_goes_to_the_hub_and_to_no_other_host(site: Site) -> None:
    facts = read_checkpoint(REPO)
    sent = {server: {line[3] for line in site.requests if line[0] == server} for server in ("hub", "storage")}
    assert sent == {"hub": {f"Bearer {TOKEN}"}, "storage": {None}}
    assert TOKEN not in repr(facts)


@pytest.mark.parametrize(
    ("status", "words"), [(401, "log in"), (403, "gated"), (404, "misspelt"), (500, "500")]
)
def test_a_refusal_is_a_reason_and_no_failure(site: Site, status: int, words: str) -> None:
    site.status = status
    facts = read_checkpoint(REPO)
    assert facts.kind == "absent" and words in facts.not_read[0] and TOKEN not in facts.not_read[0]


def test_a_refused_configuration_is_a_reason_and_not_called_broken(site: Site) -> None:
    site.status, site.refused = 503, "config.json"
    facts = read_checkpoint(REPO)
    assert facts.kind == "absent" and "503" in facts.not_read[0]


def test_a_refused_shard_leaves_the_configuration(site: Site) -> None:
    site.status, site.refused = 503, ".safetensors"
    facts = read_checkpoint(REPO)
    assert facts.hidden_size == 64 and facts.tensors is None and facts.faults == ()
    assert any("model.safetensors" in note and "503" in note for note in facts.not_read)


def test_a_hub_that_is_down_is_a_reason_and_no_failure(site: Site) -> None:
    site.close()
    facts = read_checkpoint(REPO)
    assert facts.kind == "absent" and "cannot be reached" in facts.not_read[0]


@pytest.mark.parametrize(
    "listing", [b"", b"[]", b"{", b"[" * 100_000, b'{"siblings": 5}', b'{"siblings": [1, {}]}']
)
def test_a_listing_that_is_none_is_a_reason_and_no_failure(site: Site, listing: bytes) -> None:
    site.listing = listing
    assert read_checkpoint(REPO).not_read


def test_a_server_that_ignores_ranges_does_not_send_us_the_weights(site: Site) -> None:
    site.ignore_ranges = True
    facts = read_checkpoint(REPO)
    assert facts.bytes_read < 200_000 and facts.hidden_size == 64


def test_offline_only_the_cache_is_read(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    facts = read_checkpoint(REPO)
    assert facts.kind == "absent" and "HF_HUB_OFFLINE" in facts.not_read[0]
    in_cache(tmp_path, ["config.json"])
    facts = read_checkpoint(REPO)
    assert (facts.kind, facts.hidden_size, facts.tensors, facts.fetched) == ("hub", 64, None, False)
    assert site.requests == []


def test_a_cached_model_is_not_asked_for_again(tmp_path: Path, site: Site) -> None:
    in_cache(tmp_path, ["config.json", "model.safetensors", "tokenizer.json"])
    facts = read_checkpoint(REPO)
    assert facts.kind == "hub" and facts.tensors_complete and site.requests == []
    assert facts.tokenizer is not None and facts.tokenizer.num_tokens == 1


def test_a_part_of_a_model_in_the_cache_is_no_damage(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    write_safetensors(tmp_path / "repo" / "model-00001-of-00002.safetensors", {"a": ("BF16", (4,))})
    in_cache(tmp_path, ["config.json", "model-00001-of-00002.safetensors"])
    facts = read_checkpoint(REPO)
    assert facts.faults == () and not facts.tensors_complete
    assert any("not in the cache" in note for note in facts.not_read)


def test_many_shards_are_read_side_by_side_and_in_order(tmp_path: Path, site: Site) -> None:
    (tmp_path / "repo" / "model.safetensors").unlink()
    for number in range(1, 21):
        name = f"model-{number:05d}-of-00020.safetensors"
        write_safetensors(tmp_path / "repo" / name, {f"t{number}": ("BF16", (number,))})
    facts = read_checkpoint(REPO)
    assert {name: info.shape for name, info in (facts.tensors or {}).items()} == {
        f"t{n}": (n,) for n in range(1, 21)
    }
    assert facts.tensors_complete


def test_network_can_be_forbidden(site: Site) -> None:
    facts = read_checkpoint(REPO, network=False)
    assert facts.kind == "absent" and "not allowed" in facts.not_read[0] and site.requests == []


def test_an_existing_folder_wins_over_a_hub_id(tmp_path: Path, site: Site) -> None:
    make_model(tmp_path / "here" / "org" / "head", CONFIG, eagle3_tensors(CONFIG))
    assert read_checkpoint(REPO, base_dir=tmp_path / "here").kind == "folder"
    assert site.requests == []
