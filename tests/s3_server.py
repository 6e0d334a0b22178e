"""A local S3-compatible server for tests and benchmarks: moto's, over TCP, that can go away and come back."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BUCKET = "studies"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


class S3Server:
    """Runs in a thread of this process and holds its objects in memory, also while it is stopped."""

    def __init__(self) -> None:
        self._port = 0
        self._server: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.url}

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """With one bucket, ``BUCKET``."""
    from moto.s3.models import s3_backends

    server = S3Server()
    server.start()
    try:
        backend = s3_backends["123456789012"]["aws"]
        backend.create_bucket(BUCKET, "us-east-1")
        yield server
    finally:
        server.stop()
        backend.reset()
