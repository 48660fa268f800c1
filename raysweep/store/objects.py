"""Objects in a store beyond this machine (s3, gs, hdfs, file, ...): put whole, get, list, delete. What they mean is remote.py's.

The filesystems are pyarrow's. What a store must keep to is testing/store_contract.py.
"""

from __future__ import annotations

import re
import time
import urllib.parse
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from raysweep.errors import StoreError

T = TypeVar("T")

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_APPEARS_WHOLE = ("s3", "gcs", "abfs")
"""Kinds of stores in which an object is not there before its writer has closed it."""
_FIRST_TRIES, _FIRST_WAIT_S = 3, 1.0


class ObjectStore(Protocol):
    """Named objects; names are relative, their parts joined by `/`. A store that cannot be reached raises OSError."""

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object, whole or not at all; one of that name is replaced. A path: that file's content."""
        ...

    def get(self, name: str) -> bytes:
        """An object's content. While it is replaced by one of another size, the content may be cut, or OSError be raised.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        ...

    def list(self, prefix: str = "") -> dict[str, int]:
        """Names and sizes (bytes) of all objects below the folder `prefix`, at any depth; empty where there is none."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object; that it is not there is no error."""
        ...


class ArrowStore:
    """Objects below one folder of a pyarrow filesystem.

    Args:
        filesystem: pyarrow.fs.FileSystem.
        root: the folder; it is made by the first put.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem, self._root = filesystem, root.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def put(self, name: str, content: bytes | Path) -> None:
        import pyarrow as pa

        data = pa.memory_map(str(content)).read_buffer() if isinstance(content, Path) and content.stat().st_size else content
        data = b"" if isinstance(data, Path) else data
        path = self._path(name)
        if self._filesystem.type_name in _APPEARS_WHOLE:
            self._write(path, data)
            return
        folder, _, last = path.rpartition("/")
        temporary = f"{folder}/.{last}.{uuid.uuid4().hex[:8]}"
        try:
            self._write(temporary, data)
            self._move(temporary, path)
        except BaseException:
            self._delete(temporary)
            raise

    def _write(self, path: str, data: Any) -> None:
        try:
            stream = self._filesystem.open_output_stream(path)
        except FileNotFoundError:
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            stream = self._filesystem.open_output_stream(path)
        with stream:
            stream.write(data)

    def _move(self, source: str, target: str) -> None:
        try:
            self._filesystem.move(source, target)
        except OSError:  # hdfs does not move onto a file
            self._delete(target)
            self._filesystem.move(source, target)

    def get(self, name: str) -> bytes:
        # In one request: a stream makes several, and would mix two contents where the object is replaced in between.
        with self._filesystem.open_input_file(self._path(name)) as file:
            return bytes(file.read_at(file.size(), 0))

    def list(self, prefix: str = "") -> dict[str, int]:
        from pyarrow.fs import FileSelector, FileType

        folder = self._path(prefix).rstrip("/")
        try:
            found = self._filesystem.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
        except (FileNotFoundError, NotADirectoryError):  # the folder is being made at this moment: fsspec tells the latter then
            return {}
        files = [info for info in found if info.type == FileType.File and not info.base_name.startswith(".")]
        # Some filesystems lead paths with a slash that the root does not have.
        root = self._root.strip("/")
        return {info.path.strip("/")[len(root) :].strip("/"): int(info.size) for info in files}

    def delete(self, name: str) -> None:
        self._delete(self._path(name))

    def _delete(self, path: str) -> None:
        try:
            self._filesystem.delete_file(path)
        except FileNotFoundError:
            return


class Below:
    """The part of a store below one of its folders.

    Args:
        store: the whole.
        folder: its name.
    """

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store, self._folder = store, folder

    def put(self, name: str, content: bytes | Path) -> None:
        self._store.put(f"{self._folder}/{name}", content)

    def get(self, name: str) -> bytes:
        return self._store.get(f"{self._folder}/{name}")

    def list(self, prefix: str = "") -> dict[str, int]:
        found = self._store.list(f"{self._folder}/{prefix}" if prefix else self._folder)
        return {name.removeprefix(f"{self._folder}/"): size for name, size in found.items()}

    def delete(self, name: str) -> None:
        self._store.delete(f"{self._folder}/{name}")


def is_uri(storage: str | Path) -> bool:
    """Whether `storage` names a place beyond the directories of this machine, such as s3://bucket/path."""
    return _URI.match(str(storage)) is not None


def open_store(uri: str) -> ObjectStore:
    """The store behind a URI.

    Raises:
        StoreError: pyarrow knows no such kind of store, it cannot be reached, or the URI holds a password.
    """
    from pyarrow.fs import FileSystem

    if urllib.parse.urlsplit(uri).password is not None:
        raise StoreError(
            "storage: leave keys and passwords out of the URI, it is written into the journal; "
            "give them as the store's own tools take them (for s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role)"
        )
    try:
        filesystem, root = tried(lambda: FileSystem.from_uri(uri))
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise StoreError(f"storage {uri} cannot be opened: {told(error)}; set `storage` elsewhere") from None
    if not root.strip("/"):
        raise StoreError(f"storage {uri} names no bucket or folder; set `storage` (--storage) to one, such as s3://bucket/path")
    return ArrowStore(filesystem, root)


def tried(action: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """What `action` returns; an OSError is tried again after 1 s and 2 s, but not that something is not there.

    Raises:
        OSError: of the last try.
    """
    for number in range(_FIRST_TRIES):
        try:
            return action()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if number == _FIRST_TRIES - 1:
                raise
            sleep(_FIRST_WAIT_S * 2**number)
    raise AssertionError


def told(error: BaseException) -> str:
    """An error of a store in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
