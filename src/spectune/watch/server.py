"""The live page over HTTP: on one address, for whoever has the token, and for pages of its own origin alone.

Everything needs the token. The page's address carries it; its script sends it on as a header, which no
other site's form can. A ``Host`` that is a foreign name is refused, so that a site whose name is pointed
at this address (DNS rebinding) learns nothing.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import json
import re
import secrets
import socket
import socketserver
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spectune.errors import BadInput, EnvironmentFailed, SpectuneError
from spectune.report.html import render_html, render_live
from spectune.watch.study_view import NothingToAbort, StudyView

TOKEN_HEADER = "X-Spectune-Token"  # noqa: S105 - a header's name
MAX_BODY_BYTES = 4096
IDLE_S = 30.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_CLOSED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def page_policy(nonce: str) -> str:
    """What the live page may do: its own script, its own style, and asking where it came from."""
    return (
        f"{_CLOSED}; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"
    )


class WatchServer(ThreadingHTTPServer):
    """Serves one study. ``url`` is the address to open."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, view: StudyView, *, address: str = "127.0.0.1", port: int = 0) -> None:
        """Raises ``BadInput`` if the address cannot be listened on."""
        self.view = view
        self.token = secrets.token_urlsafe(24)
        self._names = {"localhost", socket.gethostname().lower(), address.lower()}
        self._pages: dict[str, str] = {}
        if ":" in address:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise _refusal(address, port, error) from error

    def server_bind(self) -> None:
        """Without the base class's look-up of our own name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        host = str(self.server_address[0])
        if host in ("0.0.0.0", "::"):  # noqa: S104 - shown, not bound
            host = socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    def is_our_name(self, host: str | None) -> bool:
        """Whether a ``Host`` header names us: an address, or a name of this machine, with our port or none."""
        if not host:
            return False
        try:
            parts = urlsplit(f"//{host}")
            name, port = (parts.hostname or "").rstrip(".").lower(), parts.port
        except ValueError:
            return False
        if port is not None and port != self.port and not self._is_forwarded(name):
            return False
        return name in self._names or _is_address(name)

    def _is_forwarded(self, name: str) -> bool:
        """A tunnel (``ssh -L``) brings the port of its other end, on its own loopback."""
        return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)

    def report_page(self) -> tuple[str, str]:
        """The report as it stands, and its version; drawn once for each."""
        version, summary = self.view.report()
        if version not in self._pages:
            self._pages = {version: render_html(summary)}
        return version, self._pages[version]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is none of our business."""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusal(address: str, port: int, error: OSError) -> SpectuneError:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return BadInput(
            f"--bind {address}: is no address of this machine; give one, e.g. 127.0.0.1 (default) or 0.0.0.0 for all"
        )
    if error.errno == errno.EADDRINUSE:
        return BadInput(
            f"--port {port}: is taken on {address}; choose another, or leave --port out for a free one"
        )
    if error.errno == errno.EACCES:
        return BadInput(f"--port {port}: may not be used by this user; choose one from 1024 on")
    return EnvironmentFailed(f"{address}:{port}: cannot listen there: {error.strerror or error}")


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version = "spectune"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if not self._is_allowed(parse_qs(asked.query)):
            return
        routes = {"/": self._page, "/state": self._state, "/report": self._report}
        if asked.path not in routes:
            self._text(HTTPStatus.NOT_FOUND, "no such page; valid: /, /state, /report")
            return
        routes[asked.path]()

    def do_POST(self) -> None:
        body = self._body()
        if body is None or not self._is_allowed({}):
            return
        if urlsplit(self.path).path != "/abort":
            self._text(HTTPStatus.NOT_FOUND, "no such action; valid: /abort")
            return
        self._abort(body)

    def _is_allowed(self, query: Mapping[str, list[str]]) -> bool:
        """Refuses what did not come from a page of ours, or without the token."""
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if not self.server.is_our_name(host):
            self._text(
                HTTPStatus.MISDIRECTED_REQUEST,
                "not known by that name: open what was printed, or the same with an IP address of the machine",
            )
            return False
        if origin is not None and origin != f"http://{host}":
            self._text(HTTPStatus.FORBIDDEN, "another site may not ask here")
            return False
        given = self.headers.get(TOKEN_HEADER) or (query.get("token") or [""])[0]
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode()):
            self._text(
                HTTPStatus.FORBIDDEN, "the token is missing or wrong: open the address that was printed"
            )
            return False
        return True

    def _page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        try:
            version, summary = self.server.view.report()
        except (BadInput, OSError) as error:
            self._text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        page = render_live(summary, version=version, nonce=nonce)
        self._send(HTTPStatus.OK, page, "text/html", policy=page_policy(nonce))

    def _report(self) -> None:
        try:
            version, page = self.server.report_page()
        except (BadInput, OSError) as error:
            self._text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        policy = f"{_CLOSED}; style-src 'unsafe-inline'; img-src data:"
        self._send(HTTPStatus.OK, page, "text/html", policy=policy, version=version)

    def _state(self) -> None:
        self._send(HTTPStatus.OK, self.server.view.snapshot().model_dump_json(), "application/json")

    def _abort(self, body: bytes) -> None:
        try:
            asked = json.loads(body)
            trial_id = asked["trial_id"]
            if set(asked) != {"trial_id"} or not (trial_id is None or isinstance(trial_id, str)):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            self._text(HTTPStatus.BAD_REQUEST, 'give {"trial_id": "..."}, or null for the whole run')
            return
        try:
            self.server.view.abort(trial_id)
        except NothingToAbort as answer:
            self._text(HTTPStatus.CONFLICT, str(answer))
        except OSError as error:
            self._text(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot leave the request: {error.strerror or error}"
            )
        else:
            self._text(HTTPStatus.ACCEPTED, "asked for")

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self._text(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of at most {MAX_BODY_BYTES} bytes is needed"
            )
            return None
        return self.rfile.read(int(length))

    def _text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text + "\n", "text/plain")

    def _send(
        self, status: HTTPStatus, text: str, kind: str, *, policy: str = _CLOSED, version: str | None = None
    ) -> None:
        data = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", policy)
        if version is not None:
            self.send_header("X-Spectune-Version", version)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: the path of the first request holds the token."""
