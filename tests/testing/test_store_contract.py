"""Every kind of store passes the suite that ships with the package; S3 as moto serves it."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from pyarrow import fs

from raysweep.store.objects import ArrowStore, Below, ObjectStore, is_uri, open_store
from raysweep.testing.store_contract import StoreContract


class _InDirectory(StoreContract):
    root: Path

    @pytest.fixture(autouse=True)
    def _in_a_directory(self, tmp_path: Path) -> None:
        self.root = tmp_path


class TestDirectory(_InDirectory):
    def make(self) -> ObjectStore:
        return ArrowStore(fs.LocalFileSystem(), tempfile.mkdtemp(dir=self.root))


class TestFileUri(_InDirectory):
    def make(self) -> ObjectStore:
        return open_store((self.root / uuid.uuid4().hex / "not there yet").as_uri())


class TestMemory(StoreContract):
    def make(self) -> ObjectStore:
        memory = fsspec.filesystem("memory", skip_instance_cache=True)
        return ArrowStore(fs.PyFileSystem(fs.FSSpecHandler(memory)), f"/{uuid.uuid4().hex}")


class TestArrowsOwnMock(StoreContract):
    def make(self) -> ObjectStore:
        return ArrowStore(fs._MockFileSystem(datetime.datetime(2026, 1, 1)), "root")


class TestBelow(StoreContract):
    def make(self) -> ObjectStore:
        return Below(ArrowStore(fs._MockFileSystem(datetime.datetime(2026, 1, 1)), "root"), "a/b")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 that moto serves, from an environment of its own (see the Makefile)."""
    server = os.environ.get("MOTO_SERVER")
    if server is None or not Path(server).exists():
        pytest.skip("MOTO_SERVER names no moto_server; `make test` installs one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/sweeps", method="PUT"), timeout=5)
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
class TestS3(StoreContract):
    address: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _keys(self, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        type(self).address = s3

    def make(self) -> ObjectStore:
        options = f"endpoint_override={self.address}&scheme=http&region=us-east-1"
        return open_store(f"s3://sweeps/{uuid.uuid4().hex}?{options}")


def test_the_suite_finds_a_store_that_writes_in_place() -> None:
    looks = threading.Semaphore(0)

    class InPlace(ArrowStore):
        def put(self, name: str, content: bytes | Path) -> None:
            assert isinstance(content, bytes)
            path = Path(self._path(name))
            is_read = path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content[: len(content) // 2])
            while looks.acquire(blocking=False):
                pass
            for _ in range(2 if is_read else 0):  # the second look from now on began after that half was written
                assert looks.acquire(timeout=200)
            path.write_bytes(content)

        def get(self, name: str) -> bytes:
            content = super().get(name)
            looks.release()
            return content

    class Suite(StoreContract):
        def make(self) -> ObjectStore:
            return InPlace(fs.LocalFileSystem(), folder)

    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.raises(AssertionError, match="a reader sees the old content or the new one"),
    ):
        Suite().test_an_object_is_replaced_as_a_whole()


@pytest.mark.parametrize(
    ("text", "answer"),
    [("s3://bucket/x", True), ("file:///tmp/x", True), ("results", False), ("/mnt/x", False), ("a:b", False), ("~/x//y", False)],
)
def test_what_is_a_uri(text: str, answer: bool) -> None:
    assert is_uri(text) == answer
