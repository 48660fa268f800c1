"""Where a sweep is kept: a directory, or a URI with a working directory before it. What is there is fetched first.

Each sweep NAME has its place below the URI: NAME/journal/ (parts.py), NAME/trials/KEY/ (checkpoints), NAME/lease.json (lease.py),
and the files of its report. Checkpoints are fetched only for trials that go on.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from raysweep.errors import StoreError
from raysweep.store.directory import MANIFEST, SweepDirectory, check_storage, newest_number, write_atomically
from raysweep.store.lease import Lease
from raysweep.store.mirror import EVERY_S, GIVE_UP_AFTER_S, Mirror
from raysweep.store.objects import Below, ObjectStore, is_uri, open_store, told, tried
from raysweep.store.parts import FOLDER, chain, joined
from raysweep.store.sent import Sent, beside_the_journal, stamp

Say = Callable[[str], None]


class Place:
    """A directory that sweeps are kept in; also the working directory of a RemotePlace.

    Attributes:
        local: the directory that sweeps work in.
        unsent: why the place does not have the last state; "" where it has.
    """

    unsent = ""

    def __init__(self, local: Path) -> None:
        self.local = local

    def check(self) -> None:
        """Refuse a place that cannot be written.

        Raises:
            StoreError: with what is wrong.
        """
        check_storage(self.local)

    def fetch(self, name: str) -> None:
        """Bring the journals of the sweep `name` and of name-2, name-3, ... into the working directory, where they are newer."""

    @contextmanager
    def kept(self, directory: SweepDirectory, going_on: Collection[str] = (), is_new: bool = False) -> Iterator[None]:
        """For the time of a block the place follows what happens in a locked directory.

        Args:
            directory: the sweep's, in the working directory.
            going_on: keys of the trials whose checkpoints are needed.
            is_new: the directory was made for this sweep just now; it is taken away again where the place refuses it.

        Raises:
            StoreError: another process uses the place, or it cannot be reached.
        """
        yield

    def settle(self, directory: SweepDirectory) -> None:
        """Send what an earlier process left behind in a directory in which nothing is to do.

        Raises:
            StoreError: as kept().
        """

    def send_report(self, directory: SweepDirectory) -> None:
        """Send the report's files, which are written when the sweep has ended."""


class RemotePlace(Place):
    """A URI that sweeps are kept at, and a directory that they work in.

    Args:
        uri: for people.
        store: what is behind it.
        local: the working directory.
        say: takes lines for people.
        every_s, give_up_after_s: as Mirror.
    """

    def __init__(
        self,
        uri: str,
        store: ObjectStore,
        local: Path,
        say: Say,
        every_s: float = EVERY_S,
        give_up_after_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        super().__init__(local)
        self._uri, self._store, self._say = _without_options(uri), store, say
        self._every_s, self._give_up_after_s = every_s, give_up_after_s
        self._sizes: dict[str, int] = {}  # of the journals there, as they were fetched
        self._newer: set[str] = set()  # sweeps that had gone on elsewhere

    def check(self) -> None:
        check_storage(self.local, "working_directory")
        name = f".writable-{uuid.uuid4().hex[:8]}"
        try:
            tried(partial(self._store.put, name, b""))
            tried(partial(self._store.delete, name))
        except OSError as error:
            raise StoreError(f"storage {self._uri} cannot be written: {told(error)}; set `storage` elsewhere") from None

    def fetch(self, name: str) -> None:
        number, last_here = 1, newest_number(self.local, name)
        while True:
            sweep = name if number == 1 else f"{name}-{number}"
            place = Below(self._store, sweep)
            try:
                parts = chain(tried(partial(place.list, FOLDER)))
                if parts:
                    self._fetch_journal(sweep, place, partial(joined, place, parts))
                elif number > last_here and not (self.local / sweep).is_dir():
                    return
            except OSError as error:
                raise StoreError(f"{self._uri}/{sweep} cannot be read: {told(error)}") from None
            self._sizes[sweep] = parts[-1].end if parts else 0
            number += 1

    def _fetch_journal(self, sweep: str, place: ObjectStore, read: Callable[[bytes], bytes]) -> None:
        directory = SweepDirectory(self.local / sweep)
        have = _whole_lines(directory.journal.read_bytes()) if directory.journal.exists() else b""
        there = _whole_lines(tried(partial(read, have)))
        if have.startswith(there):
            return
        self._newer.add(sweep)
        if not there.startswith(have):
            self._set_aside(directory, have, there)
        directory.path.mkdir(parents=True, exist_ok=True)
        with directory.locked():
            write_atomically(directory.journal, there)
            with suppress(FileNotFoundError):
                write_atomically(directory.path / MANIFEST, tried(partial(place.get, MANIFEST)))
        self._say(f"fetched {sweep}/ from {self._uri}: {len(there):,} bytes of its journal, {len(have):,} of them were here")

    def _set_aside(self, directory: SweepDirectory, have: bytes, there: bytes) -> None:
        """Move a directory away whose newest lines never reached the place before the sweep went on elsewhere.

        Raises:
            StoreError: it is another sweep, or in use.
        """
        if have.partition(b"\n")[0] != there.partition(b"\n")[0]:
            raise StoreError(
                f"{directory.path} and {self._uri}/{directory.path.name} are two sweeps of one name; "
                "set `working_directory`, `storage` or the sweep's `name` to another one"
            )
        number = 1
        while (aside := directory.path.with_name(f"{directory.path.name}.aside-{number}")).exists():
            number += 1
        with directory.locked():
            directory.path.rename(aside)
        self._say(
            f"note: {directory.path.name}/ had gone on elsewhere while its last lines here were not sent; it was moved to "
            f"{aside.name}/"
        )

    @contextmanager
    def kept(self, directory: SweepDirectory, going_on: Collection[str] = (), is_new: bool = False) -> Iterator[None]:
        name = directory.path.name
        shown = f"{self._uri}/{name}"
        place = Below(self._store, name)
        sent = Sent(directory.path, shown)
        lease = Lease(place, shown, sent.home, self._say)
        with ExitStack() as held:
            try:
                lease.acquire()
                held.callback(_let_go, lease)
                self._check_unchanged(name, place)
                self._fetch_checkpoints(directory, place, sent, {*going_on, _best_key(directory, name in self._newer)})
            except (OSError, StoreError) as error:
                if is_new:
                    for path in directory.path.iterdir():
                        path.unlink()
                    directory.path.rmdir()
                raise error if isinstance(error, StoreError) else StoreError(f"{shown} cannot be used: {told(error)}") from None
            mirror = Mirror(directory, place, shown, lease, sent, self._say, self._every_s, self._give_up_after_s)
            mirror.start()
            try:
                yield
            finally:
                mirror.close()
                self.unsent = mirror.unsent
                if self.unsent:
                    self._say(
                        f"warning: {shown} does not have the last state of the sweep: {self.unsent}. It is whole in "
                        f"{directory.path}; the same command sends it"
                    )

    def settle(self, directory: SweepDirectory) -> None:
        with directory.locked(), self.kept(directory):
            pass

    def _check_unchanged(self, name: str, place: ObjectStore) -> None:
        parts = chain(tried(partial(place.list, FOLDER)))
        if (parts[-1].end if parts else 0) != self._sizes.get(name, 0):
            raise StoreError(f"another process has gone on with {self._uri}/{name} in the meantime; start the command again")

    def _fetch_checkpoints(self, directory: SweepDirectory, place: ObjectStore, sent: Sent, keys: Collection[str]) -> None:
        """Fetch what trials go on from, markers last: best.pt too where the sweep has gone on elsewhere."""
        names = [name for name in tried(partial(place.list, "trials")) if name.split("/")[1] in keys]
        for name in sorted(names, key=lambda name: name.endswith(".json")):
            path = directory.path / name
            is_newer = directory.path.name in self._newer and name.endswith(("best.pt", "samples.npz"))
            if path.exists() and not is_newer:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, tried(partial(place.get, name)))
            sent.add(name, stamp(path))

    def send_report(self, directory: SweepDirectory) -> None:
        if self.unsent:
            return
        place = Below(self._store, directory.path.name)
        sent = Sent(directory.path, f"{self._uri}/{directory.path.name}")
        try:
            for path in beside_the_journal(directory.path):
                if sent.is_new(path.name, path):
                    stamped = stamp(path)
                    tried(partial(place.put, path.name, path))
                    sent.add(path.name, stamped)
        except OSError as error:
            self._say(f"warning: the report was not sent to {self._uri}: {told(error)}; it is in {directory.path}")
            return
        self._say(f"kept at {self._uri}/{directory.path.name}")


def _let_go(lease: Lease) -> None:
    # What cannot be reached now goes stale by itself.
    with suppress(OSError):
        lease.release()


def _without_options(uri: str) -> str:
    return re.sub(r"\?.*$", "", uri).rstrip("/")


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _best_key(directory: SweepDirectory, is_needed: bool) -> str:
    """The key of the best trial so far, whose weights the report asks for; "" where nobody can need them."""
    if not is_needed:
        return ""
    from raysweep.store.results import load

    best = load(directory.path).best
    return "" if best is None else str(best["key"])


def open_place(storage: str | os.PathLike[str], working_directory: str, say: Say = lambda _text: None) -> Place:
    """The place that `storage` names.

    Args:
        storage: a directory, or a URI.
        working_directory: the directory that a sweep works in where `storage` is a URI.
        say: takes lines for people.

    Raises:
        StoreError: the URI cannot be opened, or is mistyped.
    """
    if mistyped := re.match(r"(s3|gs|hdfs|file)(:/(?!/)|//)", str(storage)):
        right = f"{mistyped[1]}://{'/' if mistyped[1] == 'file' else ''}{str(storage)[mistyped.end() :]}"
        raise StoreError(f"storage {storage} is neither a directory nor a URI; set `storage` to {right}, or to ./{storage}")
    if not is_uri(str(storage)):
        return Place(Path(storage).expanduser())
    return RemotePlace(str(storage), open_store(str(storage)), Path(working_directory).expanduser(), say)
