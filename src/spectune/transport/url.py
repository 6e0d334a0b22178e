"""The address of a server, and the bytes of a request to it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from spectune.domain.secrets import url_as_shown
from spectune.errors import BadInput

_EXAMPLE = "http://127.0.0.1:8000"
_TARGET = re.compile(r"/[!-~]*")
_KEY = re.compile(r"[!-~]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class BaseUrl:
    """A parsed ``http(s)://host[:port][/prefix]``; ``text`` has no slash at its end."""

    text: str
    is_https: bool
    host: str
    port: int
    host_header: str
    prefix: str

    def request_bytes(self, method: str, path: str, body: object | None, *, api_key: str | None) -> bytes:
        """Head and body of one HTTP/1.1 request, in one piece."""
        target = self.prefix + path
        if not path.startswith("/") or not _TARGET.fullmatch(target):
            raise BadInput(f"path {path!r}: must start with '/' and hold visible ASCII characters only")
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self.host_header}",
            "Accept: */*",
            "Accept-Encoding: identity",
            "User-Agent: spectune",
        ]
        if api_key is not None:
            lines.append(f"Authorization: Bearer {api_key}")
        payload = b""
        if body is not None:
            payload = json.dumps(body, separators=(",", ":")).encode()
            lines.append("Content-Type: application/json")
        if body is not None or method not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(payload)}")
        return "\r\n".join((*lines, "", "")).encode("ascii") + payload


def parse_base_url(text: str) -> BaseUrl:
    """The parts of ``text``; raises ``BadInput`` for anything that is no plain server address."""
    said = f"server URL {url_as_shown(text.strip())!r:.200}"
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise BadInput(f"{said}: host or port is not valid; expected something like {_EXAMPLE}") from None
    if parts.username is not None or parts.password is not None:
        raise BadInput("server URL holds a user name or password; give the key as the API key instead")
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise BadInput(f"{said}: expected http:// or https:// and a host, for example {_EXAMPLE}")
    if parts.query or parts.fragment:
        raise BadInput(f"{said}: must end with the path, without '?' or '#'")
    try:
        host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise BadInput(f"{said}: host name is not valid: {error}") from None
    prefix = parts.path.rstrip("/")
    if prefix and not _TARGET.fullmatch(prefix):
        raise BadInput(f"{said}: the path must hold visible ASCII characters only")
    shown_host = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        shown_host += f":{port}"
    return BaseUrl(
        text=f"{parts.scheme}://{shown_host}{prefix}",
        is_https=parts.scheme == "https",
        host=host,
        port=_DEFAULT_PORTS[parts.scheme] if port is None else port,
        host_header=shown_host,
        prefix=prefix,
    )


def check_api_key(api_key: str | None) -> str | None:
    """``api_key`` if it can stand in a header; the error does not show it."""
    if api_key is None or api_key == "":
        return None
    if not _KEY.fullmatch(api_key):
        raise BadInput("the API key holds a blank, a line end or a character outside ASCII")
    return api_key
