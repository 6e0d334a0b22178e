"""The HTTP client; see ``client``."""

from spectune.transport.client import BadStatus, HttpClient, OnEvent, Response, StreamEnd

__all__ = ["BadStatus", "HttpClient", "OnEvent", "Response", "StreamEnd"]
