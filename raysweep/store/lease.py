"""Who may write into a sweep's place in a store: an object that its holder renews. Two that come at once are told apart late.

Object stores have no lock. A put that fails where an object exists would be one, but pyarrow does not offer it for any of them
(S3 has it, through its own API only). So the holder is who wrote last: it reads the lease again a moment after taking it and
before each part of the journal. Two that take it in the same second can both write for that second, no longer.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

from raysweep.errors import StoreError
from raysweep.store.objects import ObjectStore, tried

NAME = "lease.json"
RENEWED_EVERY_S = 15.0
STALE_AFTER_S = 60.0
"""A lease that has not changed for so long is nobody's."""
_LONG_AGO_S = 900.0
"""Of two machines whose clocks differ by more, S3 refuses one."""
_BYTES = 512
_LOOK_EVERY_S, _SETTLE_S = 5.0, 1.0


class LostLease(Exception):
    """Another process has taken the lease; `args[0]` says who."""


class Lease:
    """The right to write into one sweep's place.

    Args:
        store: the sweep's place.
        shown: its URI, for people.
        home: names the local directory, which only one process at a time works in: its own lease is taken over at once.
        say: takes lines for people.
        clock: seconds since 1970.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        shown: str,
        home: str,
        say: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._shown, self._home, self._say = store, shown, home, say
        self._clock, self._sleep = clock, sleep
        self._token = uuid.uuid4().hex

    def acquire(self) -> None:
        """Take the lease; one that another process left behind first has to stay unchanged for a minute.

        Raises:
            StoreError: another process holds it.
            OSError: the store cannot be reached.
        """
        found = tried(self._read)
        if found and found.get("home") != self._home and self._clock() - float(found.get("renewed", 0)) < _LONG_AGO_S:
            self._watch(found)
        tried(self._write)
        self._sleep(_SETTLE_S)
        try:
            self.check()
        except LostLease as lost:
            raise self._in_use(str(lost)) from None

    def _watch(self, found: dict[str, Any]) -> None:
        self._say(f"{self._shown} was last in use by {found.get('who')}; looking for {STALE_AFTER_S:g} s whether it still is")
        for _ in range(int(STALE_AFTER_S / _LOOK_EVERY_S)):
            self._sleep(_LOOK_EVERY_S)
            now = tried(self._read)
            if now is None:
                return
            if now != found:
                raise self._in_use(str(now.get("who")))

    def _in_use(self, who: str) -> StoreError:
        return StoreError(f"{self._shown} is in use by {who}; wait until it has ended, or start beside it with --fresh")

    def check(self) -> None:
        """Do nothing while the lease is held.

        Raises:
            LostLease: it is not.
            OSError: the store cannot be reached.
        """
        found = self._read()
        if found is None or found.get("token") != self._token:
            raise LostLease(str(found.get("who")) if found else "nobody, for its lease was deleted")

    def renew(self) -> None:
        """Say that the holder is alive; as check() otherwise."""
        self.check()
        self._write()

    def release(self) -> None:
        """Let the lease go, if it is held.

        Raises:
            OSError: the store cannot be reached; the lease goes stale instead.
        """
        found = self._read()
        if found is not None and found.get("token") == self._token:
            self._store.delete(NAME)

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._store.get(NAME))
        except FileNotFoundError:
            return None
        except ValueError:
            return {"who": "an unreadable lease"}
        return found if isinstance(found, dict) else {"who": "an unreadable lease"}

    def _write(self) -> None:
        who = f"process {os.getpid()} on {socket.gethostname()}"
        lease = {"who": who, "token": self._token, "home": self._home, "renewed": round(self._clock(), 3)}
        # Always of one size, so that a reader gets the old one or the new one (ObjectStore.get).
        self._store.put(NAME, json.dumps(lease).encode().ljust(_BYTES))
