"""Who measures which size when, with Ray's calls answered in this process and a clock that the measuring moves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysweep.cluster.resources import Allocation, Available
from raysweep.errors import ClusterError
from raysweep.experiment import Experiment
from raysweep.tune.cost import calibrate as calibrating
from raysweep.tune.cost.calibrate import Calibration, calibrate
from raysweep.tune.cost.measure import Measured
from raysweep.tune.cost.sizes import Size


class Ray:
    """Processes that are there at once and answer at once; a size of depth d costs 0.01 d seconds an image.

    Attributes:
        rounds: of each round the depths that were measured, and the seconds for each.
        broken, slow: depths that fail, and that do not come back.
        absent: processes for which there is no room.
    """

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self) -> None:
        self.rounds: list[list[tuple[int, float]]] = []
        self.options: dict[str, float] = {}
        self.broken: set[int] = set()
        self.lost: set[int] = set()
        self.slow: set[int] = set()
        self.absent = 0
        self.started: list[Any] = []
        self.killed: list[Any] = []
        self._open: list[tuple[int, float]] = []

    def remote(self, _kind: type) -> Any:
        return SimpleNamespace(options=self._options)

    def _options(self, **resources: float) -> Any:
        self.options = resources
        return SimpleNamespace(remote=self._start)

    def _start(self, *_given: object) -> Any:
        one = SimpleNamespace(number=len(self.started))
        one.ready = SimpleNamespace(remote=lambda: ("ready", one.number))
        one.measure = SimpleNamespace(remote=lambda *given: self._measure(one.number, *given))
        self.started.append(one)
        return one

    def _measure(self, number: int, text: str, seconds: float, directory: str, workers: int) -> Any:
        assert Path(directory).is_dir()
        depth = Experiment.model_validate_json(text).model.depth
        self._open.append((depth, seconds))
        return ("measured", number, len(self.rounds), depth)

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(refs)
        if refs[0][0] == "ready":
            room = len(refs) - self.absent
            return refs[:room], refs[room:]
        self.rounds.append(self._open)
        self._open = []
        return [r for r in refs if r[3] not in self.slow], [r for r in refs if r[3] in self.slow]

    def get(self, ref: Any) -> Measured | str:
        depth = ref[3]
        if depth in self.lost:
            raise self.exceptions.RayError("out of memory\nmore lines")
        if depth in self.broken:
            return "ValueError: no"
        # The second time a little slower.
        return Measured(0.01 * depth, 0.001, 0.5, [0.8, 1.2], depth * 1e6 + ref[2])

    def kill(self, one: Any) -> None:
        self.killed.append(one)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ray:
    made = Ray()
    monkeypatch.setattr(calibrating, "ray", made)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where nobody else's are
    return made


def sizes(*depths: int) -> list[Size]:
    return [Size(Experiment.from_dict({"model": {"depth": d}}), 100, 10, d, float(d)) for d in depths]


def run(depths: tuple[int, ...], at_once: int = 2, cpus: int = 2, workers: int = 1) -> Calibration:
    return calibrate(sizes(*depths), Allocation(workers, 1, 0), Available(cpus, 0), at_once)


def test_all_places_measure_all_the_time(ray: Ray) -> None:
    found = run((1, 2, 3))
    assert [[depth for depth, _ in rounds] for rounds in ray.rounds] == [[1, 2], [3, 1]], "the last round is filled up"
    assert [cost.epoch_s for cost in found.costs] == pytest.approx([1.51, 2.51, 3.51])
    assert [cost.memory_bytes for cost in found.costs] == [1e6 + 1, 2e6, 3e6 + 1]
    assert (found.measured, found.at_once, found.notes) == (3, 2, [])
    assert found.spread == pytest.approx((0.8, 1.2))
    assert ray.killed == ray.started
    assert ray.options == {"num_cpus": 1, "num_gpus": 0}
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


@pytest.mark.parametrize(("number", "seconds"), [(1, 6.0), (4, 6.0), (10, 4.0), (40, 1.0)])
def test_the_time_is_shared_among_the_sizes(ray: Ray, number: int, seconds: float) -> None:
    found = calibrate(sizes(*[1] * number), Allocation(1, 1, 0), Available(2, 0), 2)
    spent = {s for rounds in ray.rounds for _, s in rounds}
    assert spent == {seconds}
    assert len(ray.rounds) * seconds <= calibrating.MEASURING_S
    assert found.measured == number


def test_of_more_sizes_than_there_is_time_for_some_are_worked_out(ray: Ray) -> None:
    depths = tuple(d for d in range(1, 11) for _ in range(10))
    found = calibrate(sizes(*depths), Allocation(1, 1, 0), Available(2, 0), 2)
    assert len(ray.rounds) == 20
    assert found.measured == sum(cost.measured for cost in found.costs) == 40
    assert len(found.costs) == 100
    assert "40 of 100 model sizes" in found.describe()
    # Sizes of equal work, of which some were measured, cost the same.
    assert found.costs[5].epoch_s == pytest.approx(1.51)


def test_no_more_processes_than_trials_or_room(ray: Ray) -> None:
    assert run((1, 2), at_once=1, cpus=8).at_once == 1
    ray.started.clear()
    assert run((1, 2), at_once=8, cpus=2).at_once == 2


def test_workers_share_an_epoch_and_each_has_a_process(ray: Ray) -> None:
    found = run((1, 2), at_once=2, cpus=4, workers=2)
    assert found.at_once == 4
    assert [cost.epoch_s for cost in found.costs] == pytest.approx([0.5 + 1.01 / 2, 0.5 + 2.01 / 2])
    assert found.notes == ["what the 2 workers of a trial take to exchange gradients is not in the seconds"]


def test_a_size_that_fails_is_said_and_worked_out(ray: Ray) -> None:
    ray.broken, ray.lost = {2}, {4}
    found = run((1, 2, 3, 4))
    assert found.measured == 2
    assert [cost.measured for cost in found.costs] == [True, False, True, False]
    assert found.costs[1].epoch_s == pytest.approx(2.51)
    assert found.notes == [
        "a trial with 2 parameters fails: ValueError: no",
        "a trial with 4 parameters fails: its process was lost: out of memory",
    ]


def test_where_all_fail_there_are_no_costs(ray: Ray) -> None:
    ray.broken = {1}
    found = run((1,))
    assert found.costs == []
    assert "no model size" in found.describe()


def test_what_takes_too_long_ends_it(ray: Ray) -> None:
    ray.slow = {2}
    found = run((1, 2, 3, 4))
    assert len(ray.rounds) == 1
    assert [cost.measured for cost in found.costs] == [True, False, False, False]
    assert found.notes == ["a few steps of some sizes take longer than 40 s"]
    assert ray.killed == ray.started


def test_others_hold_some_of_the_cluster(ray: Ray) -> None:
    ray.absent = 1
    assert run((1, 2)).at_once == 1
    assert [[d for d, _ in rounds] for rounds in ray.rounds] == [[1], [2]]
    ray.absent = 2
    ray.started.clear()
    with pytest.raises(ClusterError, match="no process with 1 CPUs and 0 GPUs has started in 60 s: the cluster is in use"):
        run((1, 2))
    assert len(ray.killed) == 4


def test_the_process_measures_and_tells_its_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def played(experiment: Experiment, dataset: Any, device: Any, seconds: float, directory: Path, workers: int) -> Measured:
        seen.append((experiment.model.depth, len(dataset.train), device.type, seconds, directory.is_dir(), workers))
        if experiment.model.depth == 2:
            raise ValueError("what the user did wrong")
        return Measured(1.0, 1.0, 1.0, [], 1.0)

    monkeypatch.setattr(calibrating, "measure", played)
    bench = calibrating._Bench(str(tmp_path), 1, False)
    assert bench.ready()
    good, bad = (
        Experiment.from_dict({"model": {"depth": d}, "data": {"source": "digits", "count": 50}}).model_dump_json() for d in (1, 2)
    )
    assert bench.measure(good, 3.0, str(tmp_path / "new"), 2) == Measured(1.0, 1.0, 1.0, [], 1.0)
    assert bench.measure(bad, 3.0, str(tmp_path / "new"), 1) == "ValueError: what the user did wrong"
    assert seen[0] == (1, 40, "cpu", 3.0, True, 2)
    assert list((tmp_path / "new").iterdir()) == [], "each has a directory of its own, which is gone"
