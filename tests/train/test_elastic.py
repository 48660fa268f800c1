"""The driver of a run on Ray's workers, with workers and cluster played: sizes, resizes, notices, failures; no Ray."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers_train import tiny_experiment

from raysweep.cluster.resources import Allocation, Machine
from raysweep.errors import ClusterError, DiskError, TrialError
from raysweep.train import elastic
from raysweep.train.attempts import Event
from raysweep.train.left import LeftRows
from raysweep.train.mailbox import Mailbox, WorkerError
from raysweep.train.progress import Outcome
from raysweep.train.runtime import Row


class World:
    """A cluster whose machines (name: CPUs) come and go, and a clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.machines = {"a": 1}
        self.held: dict[str, int] = {}
        self.start_s = self.lag_s = 0.0
        self.freed: list[list[str]] = []
        self.draining: dict[str, int] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.sizes: list[int] = []
        self.micro_batches: list[int | None] = []

    def free(self) -> dict[str, Machine]:
        alive = {name: cpus for name, cpus in self.machines.items() if name not in self.draining}
        return {name: Machine(cpus - self.held.get(name, 0), 0) for name, cpus in alive.items()}

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for item in [i for i in self.later if i[0] <= self.now]:
            self.later.remove(item)
            item[1]()

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        self.later.append((self.now + seconds, what))


class PlayedWorkers:
    """Workers that do a step every 0.1 s, heed the mailbox, and follow a script: step -> what happens there."""

    scripts: list[dict[int, Any]] = []
    world: World
    checkpoint = 0
    slow_trainer_s = 0.0  # of the next one, up to the gate

    def __init__(
        self, experiment: Any, directory: Path, attempt: int, number: int, cpus: int, gpus: float, started_in: str
    ) -> None:
        self.mail, self.cpus = Mailbox(directory, attempt), cpus
        self.gate = directory / "mail" / str(attempt)
        self.number, self.step, self.has_begun, self.has_ended = number, 0, False, False
        self.saves, self.ray_error, self.script = 0, None, dict[int, Any]()
        self.micro_batch = experiment.train.micro_batch
        self.ready_at, PlayedWorkers.slow_trainer_s = self.world.now + self.slow_trainer_s, 0.0
        self.come_up()

    def come_up(self) -> None:
        if self.world.now >= self.ready_at and self.gate.exists():
            (self.gate / "ready").touch()

    def begin(self) -> None:
        """The gate is open: the workers take their CPUs."""
        self.has_begun = True
        self.world.sleep(self.world.start_s)
        self.script = self.scripts.pop(0) if self.scripts else {}
        self.world.sizes.append(self.number)
        self.world.micro_batches.append(self.micro_batch)
        self.step = PlayedWorkers.checkpoint
        places = [name for name, machine in self.world.free().items() for _ in range(int(machine.cpus // self.cpus))]
        for rank, name in enumerate(places[: self.number]):
            self.mail.put_place(rank, name)
            self.world.held[name] = self.world.held.get(name, 0) + self.cpus
        self.mail.put_began(self.step, 100)

    def wait(self, seconds: float) -> bool:
        if not self.has_begun:
            if not (self.gate / "ready").exists():
                self.world.sleep(seconds)
                self.come_up()
            elif (self.gate / "open").exists():
                self.begin()
            return not self.gate.exists()
        self.world.sleep(seconds)
        if self.has_ended:
            assert self.mail._pulse is not None
            self.mail._pulse.close()  # a real worker's process ends
            self.world.at(self.world.lag_s, self.world.held.clear)
            self.world.sleep(0)
            return True
        self.step += 1
        happens = self.script.get(self.step)
        if happens is not None:
            self.has_ended = True
            self.ray_error = happens if isinstance(happens, WorkerError) else None
            if isinstance(happens, Exception):
                self.mail.put_failure(0, happens, "Traceback: in forward")
            return False
        self.mail.put_step(self.step)
        if self.step % 20 == 0:
            self.mail.put_row({"epoch": self.step // 20})
        try:
            wishes = self.mail.wishes()
        except TrialError:  # the driver has given them up
            self.has_ended = True
            return False
        if wishes.save or wishes.end or self.step >= 100:
            PlayedWorkers.checkpoint, self.saves = self.step, self.saves + 1
        if wishes.end or self.step >= 100:
            self.mail.put_outcome(Outcome(wishes.end or "completed"))
            self.has_ended = True
        return False

    def error(self) -> WorkerError | None:
        return self.ray_error

    def clean_up(self) -> None:
        pass


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    PlayedWorkers.world, PlayedWorkers.scripts, PlayedWorkers.checkpoint = made, [], 0
    played = types.ModuleType("raysweep.train.ray_runtime")
    played.Workers = PlayedWorkers  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "raysweep.train.ray_runtime", played)
    clock = types.SimpleNamespace(time=lambda: made.now, monotonic=lambda: made.now, sleep=made.sleep)
    for module in ("elastic", "room", "mailbox"):
        monkeypatch.setattr(f"raysweep.train.{module}.time", clock)
    monkeypatch.setattr(elastic.capacity, "free_machines", made.free)
    totals = lambda: {name: Machine(cpus, 0) for name, cpus in made.machines.items() if name not in made.draining}  # noqa: E731
    monkeypatch.setattr(elastic.capacity, "all_machines", totals)
    monkeypatch.setattr(elastic.capacity, "draining_nodes", lambda: made.draining)
    monkeypatch.setattr(elastic.capacity, "free_leftovers", made.freed.append)
    monkeypatch.setattr(elastic.capacity, "can_grow_to", lambda: None)
    return made


def run(
    directory: Path, allocation: Allocation, on_row: Callable[[Row], None] = lambda _row: None, **scale: Any
) -> tuple[Outcome, list[Event], list[str]]:
    events: list[Event] = []
    said: list[str] = []
    settings = {"scale__resize_check_s": 0.5, **{f"scale__{k}": v for k, v in scale.items()}}
    outcome = elastic.fit(tiny_experiment(**settings), directory, allocation, on_row, events.append, said.append)
    assert not (directory / "mail").exists()
    return outcome, events, said


def test_a_run_starts_with_all_that_fit_up_to_its_largest_number(world: World, tmp_path: Path) -> None:
    world.machines = {"a": 3, "b": 1}
    run(tmp_path, Allocation(1, 1, 0, 3))
    PlayedWorkers.checkpoint = 0
    run(tmp_path, Allocation(1, 2, 0, 3))
    assert world.sizes == [3, 1], "a worker of two CPUs lies on one machine"


def test_it_waits_for_its_smallest_number_and_says_so(world: World, tmp_path: Path) -> None:
    world.machines = {}
    world.at(30, lambda: world.machines.update(a=2))
    _, _, said = run(tmp_path, Allocation(2, 1, 0, 4))
    assert world.sizes == [2]
    assert said[0] == "waiting for room: 2 needed, 0 fit now"


def test_a_cluster_that_does_not_answer_for_a_while_ends_no_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(answer: Callable[[], Any]) -> Callable[[], Any]:
        def asked() -> Any:
            if world.now < 1005:
                raise ClusterError("the Ray cluster does not answer")
            return answer()

        return asked

    for name in ("free_machines", "all_machines", "draining_nodes"):
        monkeypatch.setattr(elastic.capacity, name, silent(getattr(elastic.capacity, name)))
    outcome, _, _ = run(tmp_path, Allocation(1, 1, 0, 1))
    assert outcome.status == "completed"


def test_it_gives_up_with_both_numbers(world: World, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"start_timeout_s 20: 2 to 4 workers x \(1 CPU\) were asked for, 1 fit now"):
        run(tmp_path, Allocation(2, 1, 0, 4), start_timeout_s=20)


def test_it_grows_when_there_is_room_in_two_looks_and_redoes_nothing(world: World, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(elastic, "_PAUSE_S", 0.1)
    world.lag_s = 1.0  # before Ray counts the CPUs of workers that have ended as free
    world.at(2.0, lambda: world.machines.update(b=1))
    _, events, said = run(tmp_path, Allocation(1, 1, 0, 4))
    assert world.sizes == [1, 2]
    (event,) = events
    assert (event["event"], event["from"], event["to"], event["redone_steps"]) == ("resize", 1, 2, 0)
    assert "room for 2 workers: saving, and starting again with them" in said


def test_what_a_resize_costs_is_measured_from_the_gate(world: World, tmp_path: Path) -> None:
    PlayedWorkers.slow_trainer_s = 20.0  # twice what the whole training takes; the next trainer comes up while it trains
    world.start_s = 0.5
    world.at(22.5, lambda: world.machines.update(b=1))
    run(tmp_path, Allocation(1, 1, 0, 2))
    assert world.sizes == [1, 2]


def test_it_does_not_grow_beyond_its_largest_number_or_for_the_last_steps(world: World, tmp_path: Path) -> None:
    world.at(2.0, lambda: world.machines.update(b=9))
    run(tmp_path, Allocation(1, 1, 0, 1))
    assert world.sizes == [1]
    del world.machines["b"]
    PlayedWorkers.checkpoint = 80  # 2 s of steps are left
    world.start_s = 5.0
    world.at(5.2, lambda: world.machines.update(b=9))
    run(tmp_path, Allocation(1, 1, 0, 4))
    assert world.sizes == [1, 1]


def test_a_machine_that_is_about_to_go_makes_it_save_at_once_and_again(world: World, tmp_path: Path) -> None:
    lost = WorkerError("ActorDiedError", "the actor died", "")
    PlayedWorkers.scripts = [{80: lost}]
    world.at(2.0, lambda: world.draining.update(a=0))
    world.at(6.0, lambda: world.machines.update(b=1))
    _, events, said = run(tmp_path, Allocation(1, 1, 0, 1), max_failures=0)
    (event,) = events
    assert (event["event"], event["from"], event["to"]) == ("preemption", 1, 1), "it does not count as a failure"
    assert event["redone_steps"] <= 50, "5 s of steps: it was told at step 20, and saved then and later"
    assert said[0] == "machine a is about to go: saving, and going on until it does"


def test_lost_workers_are_replaced_by_what_is_left(world: World, tmp_path: Path) -> None:
    world.machines = {"a": 1, "b": 1}
    PlayedWorkers.scripts = [{30: WorkerError("RuntimeError", "Connection closed by peer", "")}]
    world.at(2.0, lambda: world.machines.pop("b"))
    _, events, said = run(tmp_path, Allocation(1, 1, 0, 2))
    assert world.sizes == [2, 1]
    assert [(e["event"], e["from"], e["to"], e["step"], e["redone_steps"]) for e in events] == [("failure", 2, 1, 29, 29)]
    assert said == ["a worker was lost at step 29 (1 of 3)", "going on with 1 worker (attempt 2)"]
    assert world.freed == [[tmp_path.name]] * 2, "at its start, and after the failure"


def test_a_start_whose_room_went_is_no_failure(world: World, tmp_path: Path) -> None:
    gone = WorkerError("ControllerError", "Training failed: The worker group startup timed out after 15.0 seconds waiting", "")
    PlayedWorkers.scripts = [{1: gone}, {1: gone}]
    _, events, said = run(tmp_path, Allocation(1, 1, 0, 2), max_failures=0)
    assert world.sizes == [1, 1, 1]
    assert events == []
    assert said == ["the room for the workers went while they started: looking again"] * 2


def test_an_error_of_the_users_ends_it_with_the_traceback(world: World, tmp_path: Path) -> None:
    PlayedWorkers.scripts = [{1: ValueError("wrong")}]
    with pytest.raises(TrialError, match="ValueError: wrong") as caught:
        run(tmp_path, Allocation(1, 1, 0, 1))
    assert caught.value.traceback_text == "Traceback: in forward"
    assert world.sizes == [1]


def test_out_of_memory_goes_on_with_half_the_micro_batch(world: World, tmp_path: Path) -> None:
    PlayedWorkers.scripts = [{1: MemoryError("can't allocate memory")}]
    run(tmp_path, Allocation(1, 1, 0, 1))
    assert world.micro_batches == [None, 4]


def test_what_on_row_raises_ends_the_workers_at_a_step_boundary_first(world: World, tmp_path: Path) -> None:
    told: list[int] = []

    def stop(row: Row) -> None:
        told.append(row["epoch"])
        raise SystemExit

    with pytest.raises(SystemExit):
        run(tmp_path, Allocation(1, 1, 0, 1), stop)
    assert told == [1], "it is not called again"
    assert PlayedWorkers.checkpoint in (21, 22)


def test_a_worker_without_room_on_the_disk_ends_the_run_as_the_disks_failure(world: World, tmp_path: Path) -> None:
    PlayedWorkers.scripts = [{30: DiskError("cannot write ckpt: the disk is full")}]
    with pytest.raises(DiskError, match=r"^cannot write ckpt: the disk is full$"):
        run(tmp_path, Allocation(1, 1, 0, 1))
    assert world.sizes == [1], "it is not tried again"
    PlayedWorkers.scripts = [{30: WorkerError("DiskError", "cannot write pulse: the disk is full", "")}]
    with pytest.raises(DiskError, match=r"^cannot write pulse"):  # which Ray carried, where the mailbox had no room either
        run(tmp_path, Allocation(1, 1, 0, 1))


def test_rows_that_the_driver_could_not_write_are_told_by_the_next_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> None:
        raise DiskError("cannot write journal.jsonl: the disk is full")

    def no_mail(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Mailbox, "request_end", no_mail)
        with pytest.raises(DiskError, match=r"journal\.jsonl"):
            elastic.fit(tiny_experiment(), tmp_path, Allocation(1, 1, 0, 1), full)
    told: list[int] = []
    rows = LeftRows(tmp_path, lambda row: told.append(row["epoch"]))
    rows({"epoch": 3})
    assert told == [1, 3]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_rows_behind_the_one_that_ended_a_trial_are_told_by_the_next_driver(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Epochs are short: the workers are three further when the driver is told to end at the first, and save there."""
    taken: list[int] = []

    def stop(row: Row) -> None:
        taken.append(row["epoch"])
        raise error

    new_rows = Mailbox.new_rows
    monkeypatch.setattr(Mailbox, "new_rows", lambda mail: new_rows(mail) if (pulse := mail.pulse()) and pulse.step >= 80 else [])
    with pytest.raises(error):
        elastic.fit(tiny_experiment(), tmp_path, Allocation(1, 1, 0, 1), stop)
    assert taken == [1]
    assert PlayedWorkers.checkpoint >= 80, "epochs 2 to 4 are not trained again"
    assert not (tmp_path / "mail").exists(), "by which the sweep's driver knows that the workers have ended"
    rows = LeftRows(tmp_path, lambda row: taken.append(row["epoch"]))
    rows({"epoch": 5})
    assert taken[1:] == [1, 2, 3, 4, 5], "who takes them knows the first one"


def test_a_prepared_group_is_given_up_when_its_room_goes(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Mailbox.is_ready
    monkeypatch.setattr(Mailbox, "is_ready", lambda mail: world.now > 1005 and ready(mail))  # its trainer takes a while
    world.at(2.0, lambda: world.machines.update(b=1))
    world.at(4.0, lambda: world.machines.pop("b"))
    _, events, said = run(tmp_path, Allocation(1, 1, 0, 2))
    assert (world.sizes, events, said) == ([1], [], [])


def test_a_prepared_group_serves_after_a_failure_too_if_its_size_fits(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mailbox, "is_ready", lambda _mail: False)
    PlayedWorkers.scripts = [{40: WorkerError("ActorDiedError", "the actor died", "")}]
    world.at(2.0, lambda: world.machines.update(b=1))
    _, events, _ = run(tmp_path, Allocation(1, 1, 0, 2))
    assert [(e["event"], e["from"], e["to"]) for e in events] == [("failure", 1, 2)]


class Share:
    """A trial's share of a sweep's workers, which changes at times."""

    def __init__(self, world: World, first: int, *then: tuple[float, int]) -> None:
        self.now = first
        for seconds, share in then:
            world.at(seconds, lambda share=share: setattr(self, "now", share))

    def __call__(self) -> int:
        return self.now


def shared(directory: Path, allocation: Allocation, share: Share) -> tuple[list[Event], list[str]]:
    events: list[Event] = []
    said: list[str] = []
    experiment = tiny_experiment(scale__resize_check_s=0.5)
    outcome = elastic.fit(experiment, directory, allocation, lambda _row: None, events.append, said.append, share)
    assert outcome.status == "completed"
    return events, said


def test_a_trial_takes_its_share_and_more_when_it_rises(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "_PAUSE_S", 0.1)
    world.machines = {"a": 8}
    events, _ = shared(tmp_path, Allocation(1, 1, 0, 4), Share(world, 1, (2.0, 3), (5.0, 8)))
    assert world.sizes == [1, 3, 4], "never more than scale.workers"
    assert [(e["from"], e["to"], e["redone_steps"], e["why"]) for e in events] == [
        (1, 3, 0, "room for 3 workers"), (3, 4, 0, "room for 4 workers"),
    ]  # fmt: skip


def test_a_trial_gives_room_back_when_its_share_falls(world: World, tmp_path: Path) -> None:
    world.machines = {"a": 4}
    events, said = shared(tmp_path, Allocation(1, 1, 0, 4), Share(world, 4, (2.0, 1)))
    assert world.sizes == [4, 1]
    (event,) = events
    assert (event["event"], event["from"], event["to"], event["redone_steps"]) == ("resize", 4, 1, 0)
    assert event["why"] == "its share of the workers is down to 1"
    assert 18 <= event["step"] <= 30, "at the next look, not at the run's end"
    assert said[-1] == "going on with 1 worker (attempt 2)"


def test_a_resize_that_its_share_does_not_allow_any_more_is_dropped(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Mailbox.is_ready
    monkeypatch.setattr(Mailbox, "is_ready", lambda mail: world.now > 1005 and ready(mail))  # its trainer takes a while
    world.machines = {"a": 4}
    events, _ = shared(tmp_path, Allocation(1, 1, 0, 4), Share(world, 1, (1.0, 2), (3.0, 1)))
    assert (world.sizes, events) == ([1], [])


def test_a_single_run_asks_an_autoscaler_and_a_trial_leaves_that_to_its_sweep(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(elastic.capacity, "can_grow_to", lambda: (8, 0))
    monkeypatch.setattr(elastic.capacity, "ask_autoscaler", lambda workers, _cpus, _gpus: asked.append(workers))
    shared(tmp_path, Allocation(1, 1, 0, 4), Share(world, 1))
    assert asked == []
    PlayedWorkers.checkpoint = 0
    run(tmp_path, Allocation(1, 1, 0, 4))
    assert asked == [4, 0]
