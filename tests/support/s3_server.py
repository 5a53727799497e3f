"""An S3 server of this process, for tests of run directories in a store. Skips where s3fs or moto
is not installed: `make test-stores` has both."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def serve_s3() -> Iterator[tuple[str, dict[str, str]]]:
    """The URL of an empty bucket, and the environment in which other processes reach it."""
    fsspec: Any = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    server_module: Any = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    env = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        fsspec.config.set_conf_env(fsspec.config.conf)
        store = fsspec.filesystem("s3", skip_instance_cache=True)
        bucket = uuid.uuid4().hex
        store.mkdir(bucket)
        yield f"s3://{bucket}", env
    server.stop()
    fsspec.config.conf.clear()
