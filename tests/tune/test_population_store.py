"""A population whose machine is lost goes on from its store: cut after any object that was sent, it ends the same."""

from __future__ import annotations

import io
import json
import math
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from population_sweeps import Killed, Run, history, settings

from raysweep.store.directory import SweepDirectory
from raysweep.store.journal import JournalWriter
from raysweep.store.lease import Lease
from raysweep.store.mirror import Mirror
from raysweep.store.objects import Below
from raysweep.store.parts import chain, joined
from raysweep.store.remote import RemotePlace
from raysweep.store.results import load
from raysweep.store.sent import Sent
from raysweep.train import checkpoint, clone

SWEEP = settings(epochs=7, interval=3)
URI = "memory://bucket"


class Store:
    """Objects in a dict. `before` is called before each change."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.before: Callable[[], None] = lambda: None

    def put(self, name: str, content: bytes | Path) -> None:
        self.before()
        self.objects[name] = content if isinstance(content, bytes) else content.read_bytes()

    def get(self, name: str) -> bytes:
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]

    def list(self, prefix: str = "") -> dict[str, int]:
        return {name: len(content) for name, content in self.objects.items() if name.startswith(f"{prefix}/")}

    def delete(self, name: str) -> None:
        self.before()
        self.objects.pop(name, None)


class Turns:
    """Two threads of which one runs at a time: at each of its marks it is drawn who goes on, so a seed repeats all of it."""

    def __init__(self, seed: int, share: float) -> None:
        self._draw, self._share = random.Random(seed), share
        self._now, self._changed, self.is_alone = "sweep", threading.Condition(), False

    def mark(self) -> None:
        me = "mirror" if threading.current_thread().name == "mirror" else "sweep"
        with self._changed:
            if not self.is_alone:
                self._now = "mirror" if self._draw.random() < self._share else "sweep"
                self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_alone or self._now == me, timeout=200)

    def leave(self) -> None:
        with self._changed:
            self.is_alone = True
            self._changed.notify_all()


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _descriptor: None)
        patched.setattr("raysweep.store.lease._SETTLE_S", 0.0)
        patched.setattr("raysweep.store.mirror.PART_BYTES", 600)
        yield


def cuts(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    objects: dict[str, bytes],
    seed: int,
    share: float,
    dies_after: float = math.inf,
) -> list[dict[str, bytes]]:
    """Go on with a sweep at `path` from a store of these objects, and copy it there meanwhile; what that held at each change.

    The sweep and its copy take turns before and after each of their steps: a journal's line, a file, a link, a look. Both die
    after so many lines.
    """
    turns, store, moments = Turns(seed, share), Store(objects), list[dict[str, bytes]]()
    fetch(path, store)
    with monkeypatch.context() as patched:

        def marked(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def step(*given: Any, **options: Any) -> Any:
                turns.mark()
                result = real(*given, **options)
                turns.mark()
                return result

            patched.setattr(owner, name, step)

        run = Run(SWEEP, path)
        for owner, name in (
            (JournalWriter, "_append"), (checkpoint, "_write"), (checkpoint, "_delete"), (clone, "_link"), (Path, "unlink"),
            (clone.shutil, "rmtree"), (Path, "rename"),
        ):  # fmt: skip
            marked(owner, name)
        place = Below(store, "s")
        sent = Sent(run.directory.path, f"{URI}/s")
        lease = Lease(place, "memory", sent.home)
        lease.acquire()
        mirror = Mirror(run.directory, place, "memory", lease, sent, lambda _text: None)
        marked(mirror, "_changed")
        marked(mirror._tail, "read")

        def before() -> None:
            moments.append(dict(store.objects))
            turns.mark()
            if is_dead:
                raise Killed

        store.before = before
        failed, is_dead = list[BaseException](), list[bool]()

        def sends() -> None:
            try:
                turns.mark()
                while not turns.is_alone:
                    mirror.send()
                    turns.mark()
                mirror.send(everything=True)
            except Killed:
                pass
            except BaseException as error:
                failed.append(error)
                turns.leave()

        thread = threading.Thread(target=sends, name="mirror")
        thread.start()
        try:
            if not run.to_the_end(at_once=2, dies_after=dies_after):
                is_dead.append(True)
        finally:
            turns.leave()
            thread.join()
    assert not failed, failed
    moments.append(dict(store.objects))
    return [moment for moment, after in zip(moments, [*moments[1:], None], strict=True) if moment != after]


def fetch(path: Path, store: Store) -> None:
    """What a machine does that has nothing but the URI."""
    store.objects.pop("s/lease.json", None)
    place = RemotePlace(URI, store, path, lambda _text: None, every_s=3600)
    place.fetch("s")
    if (path / "s").is_dir():
        with place.kept(SweepDirectory(path / "s"), [trial.key for trial in Run(SWEEP, path).plan.trials]):
            pass


def outcome(path: Path) -> dict[str, Any]:
    """Rows, copies and ends of a sweep, its table, and what best.pt holds of each trial."""
    results = load(path / "s")
    told: dict[str, Any] = history(SweepDirectory(path / "s"))
    columns = ["trial", "status", "val_loss", "best_epoch", "optim.lr", "momentum"]
    told["board"] = results.leaderboard[[c for c in columns if c in results.leaderboard]].astype(object).to_dict("records")
    weights = {key: checkpoint.load(path / "s" / "trials" / key / "best.pt") for key in results.trials["key"]}
    told["best"] = {key: (best["val_loss"], best["epoch"], best["model"]["weight"].item()) for key, best in weights.items()}
    return told


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("whole")
    assert Run(SWEEP, path).to_the_end()
    return outcome(path)


def journal(objects: dict[str, bytes]) -> bytes:
    store = Below(Store(objects), "s")
    return joined(store, chain(store.list()))


@lru_cache(maxsize=200)
def val_loss(best: bytes) -> float:
    return float(torch.load(io.BytesIO(best), weights_only=True)["val_loss"])


def lacking(objects: dict[str, bytes]) -> set[str]:
    """What the store's journal says that members have copied last, or were best in before, and the store does not have whole."""
    store = Below(Store(objects), "s")
    events = [json.loads(line) for line in journal(objects).splitlines()]
    keys = {e["trial"]: e["key"] for e in events if e.get("event") == "trial"}
    names = next((e["columns"] for e in events if e.get("event") == "columns"), [])
    losses = defaultdict[int, list[float]](list)
    newest: dict[int, tuple[int, float]] = {}
    for event in events:
        if "row" in event and (loss := event["row"][1 + names.index("val_loss")]) is not None:
            losses[event["row"][0]].append(loss)
        elif event.get("event") == "population":
            newest[event["trial"]] = event["generation"], min(losses[event["trial"]])
    found = set()
    for number, (generation, best) in newest.items():
        folder = f"trials/{keys[number]}/clone-{generation}"
        markers = [name for name in store.list(folder) if name.endswith(".json")]
        if not any(len(store.get(name[:-4] + "pt")) == json.loads(store.get(name))["size"] for name in markers):
            found.add(folder)
        kept = objects.get(f"s/trials/{keys[number]}/best.pt")
        if kept is None or val_loss(kept) > best:
            found.add(f"{keys[number]}/best.pt")
    return found


@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.2, 0.5, 0.8])
def test_no_moments_copy_tells_of_weights_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """With a share of 0 all is sent when the sweep is over, in an order that is good at every moment, too."""
    moments = cuts(tmp_path, monkeypatch, {}, seed=1, share=share)
    assert [number for number, objects in enumerate(moments) if lacking(objects)] == []
    copies = {(c["trial"], c["generation"]) for c in history(SweepDirectory(tmp_path / "s"))["events"] if "overrides" in c}
    assert len(copies) > len({trial for trial, _ in copies}), "somebody copied twice"
    here = {f"s/{path.relative_to(tmp_path / 's').as_posix()}" for path in tmp_path.glob("s/trials/*/clone-*/*")}
    assert {name for name in moments[-1] if "/clone-" in name} == here
    assert len(here) == 2 * len({trial for trial, _ in copies}), "what was copied before is deleted, here and there"


@pytest.mark.parametrize("seed", [1, 2])
def test_cut_after_any_object_the_copy_goes_on_to_the_same_end(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    moments = cuts(tmp_path / "first", monkeypatch, {}, seed, share=0.3 * seed)
    assert outcome(tmp_path / "first") == whole
    for number in sorted(random.Random(seed).sample(range(len(moments)), 30)):
        path = tmp_path / str(number)
        path.mkdir()
        fetch(path, Store(moments[number]))
        assert Run(SWEEP, path).to_the_end()
        assert outcome(path) == whole, f"cut {number} of {len(moments)}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_machine_after_machine_is_lost_and_the_end_is_the_same(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw, objects, known = random.Random(seed), dict[str, bytes](), 0
    for number in range(6):
        path = tmp_path / str(number)
        path.mkdir()
        moments = cuts(path, monkeypatch, objects, seed + number, share=draw.choice([0.1, 0.3, 0.6]))
        assert outcome(path) == whole
        assert not any(lacking(moment) for moment in moments)
        objects = moments[draw.randrange(len(moments) // 3)]
        assert len(journal(objects)) >= known, "the copy never knows less than it did"
        known = len(journal(objects))


@pytest.mark.parametrize("seed", range(1, 5))
def test_there_and_back_again_the_end_is_the_same(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two machines that die again and again, and keep what they had: of a time before the other one went on, or never sent."""
    draw, objects = random.Random(seed), dict[str, bytes]()
    for life in range(12):
        path = tmp_path / draw.choice("ab")
        path.mkdir(exist_ok=True)
        share, lines = draw.choice([0.1, 0.3, 0.6]), draw.randrange(4, 16) if life < 11 else math.inf
        if life == 0:
            share, lines = 0.8, 16  # or nothing was sent, and the other machine begins a sweep of its own
        moments = cuts(path, monkeypatch, objects, 100 * seed + life, share, lines)
        assert not any(lacking(moment) for moment in moments)
        objects = moments[-1]
    assert outcome(path) == whole
