"""A running sweep's directory, copied into a store by a thread: the journal in parts, checkpoints, and what the report needs.

The order of writing keeps each moment's copy good to go on from. A checkpoint counts when its marker is there, and the marker is
sent after the rows that the checkpoint builds on; best.pt and the checkpoint itself are sent before the journal may tell of the
trial's end. What a population's member copies is sent before the journal may tell of it, and stays until the journal tells of
the next one. A copy is at most a few seconds behind.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from raysweep.store.directory import COPIED, SweepDirectory, copied
from raysweep.store.lease import RENEWED_EVERY_S, Lease, LostLease
from raysweep.store.objects import ObjectStore, told
from raysweep.store.parts import FOLDER, PART_BYTES, Part, chain, part
from raysweep.store.sent import Sent, beside_the_journal, stamp
from raysweep.store.tail import Tail

EVERY_S = 2.0
_LONGEST_WAIT_S = 60.0
GIVE_UP_AFTER_S = 60.0
"""How long the end of a sweep waits for a store that cannot be reached."""
_CHECKPOINT = re.compile(r"ckpt-(\d+)\.(pt|json)")
_COPY = re.compile(rf"trials/([^/]+)/{COPIED}-(\d+)")
_KEPT = ("best.pt", "samples.npz")


class Mirror:
    """Sends what is new in a sweep's directory, every two seconds. One thread sends, another keeps the lease.

    Attributes:
        unsent: why the store does not have the last state; "" where it has.

    Args:
        directory: the sweep's.
        store: its place.
        shown: the place's URI, for people.
        lease: is held.
        sent: what the store has already.
        say: takes lines for people.
        every_s: seconds between two rounds.
        give_up_after_s: how long close() waits for a store that cannot be reached.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        store: ObjectStore,
        shown: str,
        lease: Lease,
        sent: Sent,
        say: Callable[[str], None],
        every_s: float = EVERY_S,
        give_up_after_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self._directory, self._store, self._shown, self._lease, self._sent, self._say = directory, store, shown, lease, sent, say
        self._every_s, self._give_up_after_s = every_s, give_up_after_s
        self.unsent = "nothing was sent yet"
        self._tail = Tail(directory.journal)
        self._part: Part | None = None
        self._remote: defaultdict[str, set[str]] = defaultdict(set)  # names there, by folder
        self._has_looked = self._has_noted = self._has_sent_everything = False
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_sending, name="raysweep-mirror", daemon=True),
            threading.Thread(target=self._keep_lease, name="raysweep-lease", daemon=True),
        ]

    def start(self) -> None:
        """Begin to send in the background."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Send the last state and end; `unsent` says where that failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _keep_lease(self) -> None:
        while not self._stop.wait(RENEWED_EVERY_S):
            try:
                self._lease.renew()
            except LostLease:
                return  # the other thread meets it, too, and tells
            except Exception:
                continue  # a store that cannot be reached is told of by the other thread

    def _keep_sending(self) -> None:
        failures, give_up = 0, float("inf")
        while True:
            is_last = self._stop.wait(min(_LONGEST_WAIT_S, self._every_s * 2**failures)) or self._stop.is_set()
            if is_last and give_up == float("inf"):
                give_up = time.monotonic() + self._give_up_after_s
            try:
                self.send(everything=is_last)
                failures = 0
                if is_last:
                    return
            except LostLease as lost:
                self.unsent = f"{lost} has taken {self._shown}"
                self._note(f"{self.unsent}; this sweep goes on here only, in {self._directory.path.name}/")
                return
            except Exception as error:  # whatever a filesystem raises: the sweep must not end for it
                failures = min(failures + 1, 10)
                self.unsent = told(error)
                self._note(f"{self._shown}: {self.unsent}; the sweep goes on, and what is missing there is sent later")
            if is_last:
                if time.monotonic() >= give_up:
                    return
                time.sleep(min(self._every_s, self._give_up_after_s / 10))

    def _note(self, text: str) -> None:
        if not self._has_noted:
            self._has_noted = True
            self._say(f"note: {text}")

    def send(self, everything: bool = False) -> None:
        """Send what is new.

        Args:
            everything: look at all trials and at the files beside the journal, not only at trials that run or have just ended.

        Raises:
            LostLease: somebody else writes there now.
            OSError: the store cannot be reached.
        """
        self._look()
        everything = everything or not self._has_sent_everything
        # Listed before the journal is read, so that the rows which a checkpoint builds on are among those that are sent.
        listed = self._changed(self._keys() if everything else self._tail.running)
        end = self._send_copies()
        # Their markers wait for the next round: one that copies after its end could have gone on since the journal was read.
        listed |= {name: path for name, path in self._changed(self._tail.just_ended).items() if not name.endswith(".json")}
        if listed:
            self._lease.check()
        markers = {name: path for name, path in listed.items() if name.endswith(".json")}
        for name in listed.keys() - markers.keys():
            self._send_file(name, listed[name])
        self._send_journal(end)
        self._delete_older_copies()
        for name, path in markers.items():
            self._send_file(name, path)
            self._delete_older(name)
        if everything:
            for path in beside_the_journal(self._directory.path):
                if self._sent.is_new(path.name, path):
                    self._send_file(path.name, path)
            self._has_sent_everything = True
        self._tail.settled()
        self.unsent = ""

    def _look(self) -> None:
        """What the store holds, once; a shorter self of a part is what a killed writer left."""
        if self._has_looked:
            return
        names = set(self._store.list())
        parts = chain(names)
        for name in names - {each.name for each in parts}:
            if name.startswith(f"{FOLDER}/"):
                self._store.delete(name)
        self._part = parts[-1] if parts else None
        for name in names:
            self._remote[name.rpartition("/")[0]].add(name)
        self._has_looked = True
        self._sent.keep_only(names)

    def _keys(self) -> list[str]:
        trials = self._directory.path / "trials"
        return [path.name for path in trials.iterdir()] if trials.is_dir() else []

    def _changed(self, keys: Iterable[str]) -> dict[str, Path]:
        """Files of trials that the store lacks; a checkpoint only when it has its marker."""
        found: dict[str, Path] = {}
        for key in keys:
            folder = self._directory.trial(key)
            names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
            for name in names:
                match = _CHECKPOINT.fullmatch(name)
                is_whole = match is not None and {f"ckpt-{match[1]}.pt", f"ckpt-{match[1]}.json"} <= names
                if (name in _KEPT or is_whole) and self._sent.is_new(f"trials/{key}/{name}", folder / name):
                    found[f"trials/{key}/{name}"] = folder / name
        return found

    def _send_copies(self) -> int:
        """Read the journal, and send what it tells that members of a population copied; the bytes that were read in all.

        With their best.pt: what a member trained before cannot be trained again.
        """
        done: dict[str, int] = {}
        end = self._tail.read()
        # Again after sending: a copy is deleted as soon as the journal has the next one of that member.
        while new := {key: n for key, n in self._tail.copied.items() if done.get(key) != n}:
            self._lease.check()
            for key, generation in new.items():
                trial = self._directory.trial(key)
                files = sorted(copied(trial, generation).glob("*"), key=lambda path: path.suffix == ".json")
                for path in (trial / "best.pt", *files):
                    name = path.relative_to(self._directory.path).as_posix()
                    if self._sent.is_new(name, path):
                        self._send_file(name, path)
            done |= new
            end = self._tail.read()
        return end

    def _delete_older_copies(self) -> None:
        newest = self._tail.copied
        for folder in list(self._remote) if newest else ():
            match = _COPY.fullmatch(folder)
            if match and int(match[2]) < newest.get(match[1], 0):
                for name in sorted(self._remote[folder]):  # .json before .pt
                    self._delete(name)
                del self._remote[folder]

    def _send_file(self, name: str, path: Path) -> None:
        try:
            stamped = stamp(path)
            self._store.put(name, path)
        except FileNotFoundError:
            if path.exists():
                raise
            return  # an older checkpoint, deleted in between
        self._remote[name.rpartition("/")[0]].add(name)
        self._sent.add(name, stamped)

    def _send_journal(self, end: int) -> None:
        while end > (self._part.end if self._part else 0):
            before = self._part
            grows = before is not None and before.end - before.start < PART_BYTES
            start = 0 if before is None else before.start if grows else before.end
            with self._directory.journal.open("rb") as file:
                file.seek(start)
                # In one piece where it tells of copies: only those of its end are here. Else of whole lines.
                content = file.read(end - start if self._tail.copied else min(end - start, 2 * PART_BYTES))
                content += file.readline() if start + len(content) < end else b""
            self._lease.check()
            self._part = part(start, content)
            try:
                self._store.put(self._part.name, content)
            except BaseException:
                self._part = before
                raise
            if before is not None and grows:
                self._store.delete(before.name)

    def _delete_older(self, marker: str) -> None:
        """Delete what retention has deleted here: checkpoints before the one whose marker was just sent."""
        folder, _, last = marker.rpartition("/")
        newest = _CHECKPOINT.fullmatch(last)
        if newest is None:
            return
        for name in sorted(self._remote[folder]):  # .json before .pt
            match = _CHECKPOINT.fullmatch(name.rpartition("/")[2])
            if match and int(match[1]) < int(newest[1]) and not (self._directory.path / name).exists():
                self._delete(name)

    def _delete(self, name: str) -> None:
        self._store.delete(name)
        self._remote[name.rpartition("/")[0]].discard(name)
        self._sent.drop(name)
