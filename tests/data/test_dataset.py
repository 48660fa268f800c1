"""open_dataset: paths, the split as a pure function of numbers, the fingerprint as a function of content."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.data import dataset as module
from raysweep.data.dataset import Dataset, fingerprint, load_samples, open_dataset, resolved, split
from raysweep.data.samples import Samples
from raysweep.errors import DataError
from raysweep.experiment import Experiment
from raysweep.settings import DataConfig

X = np.random.default_rng(1).integers(0, 256, (12, 5, 6, 3), dtype=np.uint8)


def arrays(path: Path | str, **more: object) -> DataConfig:
    return DataConfig(source="arrays", path=str(path), **more)


def saved(path: Path, array: np.ndarray = X) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


def test_open_dataset(tmp_path):
    data = open_dataset(arrays(saved(tmp_path / "x.npy"), val_fraction=0.25))
    assert isinstance(data, Dataset)
    assert (len(data.train), len(data.val)) == (9, 3)
    assert data.train.dtype == data.val.dtype == np.int64
    assert sorted([*data.train, *data.val]) == list(range(12))
    assert len(data.fingerprint) == 12
    assert int(data.fingerprint, 16) >= 0
    np.testing.assert_array_equal(data.samples.x, X)


# --- paths


def test_relative_paths_start_here_and_are_resolved_once(tmp_path, monkeypatch):
    saved(tmp_path / "data/x.npy")
    saved(tmp_path / "data/y.npy")
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path)
    config = arrays("data/x.npy", target_path="./data/../data/y.npy", count=5)
    absolute = resolved(config)
    assert absolute.path == str(tmp_path / "data/x.npy")
    assert absolute.target_path == str(tmp_path / "data/y.npy")
    assert absolute.count == 5
    assert config.path == "data/x.npy"
    monkeypatch.chdir(tmp_path / "worker")
    assert len(load_samples(absolute)) == 5
    with pytest.raises(DataError, match=rf"data\.path must exist, there is no {tmp_path}/worker/data/x\.npy; set data\.path"):
        load_samples(config)


def test_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    saved(tmp_path / "x.npy")
    assert resolved(arrays("~/x.npy")).path == str(tmp_path / "x.npy")
    assert len(load_samples(arrays("~/x.npy"))) == 12
    with pytest.raises(DataError, match=r"data\.path must be a path, got ~nobody-of-this-name/x"):
        resolved(arrays("~nobody-of-this-name/x.npy"))


def test_links_stay_as_they_are_called(tmp_path):
    saved(tmp_path / "real/x.npy")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resolved(arrays(tmp_path / "link/x.npy")).path == str(tmp_path / "link/x.npy")


def test_resolving_changes_no_identity_and_travels_small(tmp_path):
    assert resolved(DataConfig()) == DataConfig()
    assert resolved(DataConfig()).model_fields_set == DataConfig().model_fields_set
    experiment = Experiment.from_dict({"data": {"source": "arrays", "path": "x.npy"}})
    moved = experiment.model_copy(update={"data": resolved(experiment.data)})
    assert moved.identity() == experiment.identity()
    assert len(pickle.dumps(resolved(arrays(saved(tmp_path / "x.npy", np.zeros((1000, 8, 8))))))) < 2000


def test_a_url_is_refused():
    with pytest.raises(DataError, match=r"data\.target_path must be a path in the file system.*s3://bucket/y"):
        resolved(arrays("x.npy", target_path="s3://bucket/y.npy"))


@pytest.mark.parametrize("source", ["arrays", "idx", "folder"])
@pytest.mark.parametrize("setting", ["path", "target_path"])
def test_missing_files_and_folders(source, setting, tmp_path):
    there = saved(tmp_path / "x.npy")
    paths = {"path": str(there), "target_path": str(there)} | {setting: str(tmp_path / "gone")}
    with pytest.raises(DataError, match=rf"data\.{setting} must exist, there is no {tmp_path}/gone; set data\.{setting}"):
        load_samples(DataConfig(source=source, **paths))


@pytest.mark.parametrize(("source", "name"), [("arrays", "x.npy"), ("arrays", "x.npz"), ("idx", "x")])
def test_a_folder_for_a_file(source, name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=rf"must be able to read {tmp_path}/{name}, got: Is a directory.*set data\.path"):
        load_samples(DataConfig(source=source, path=str(tmp_path / name)))


@pytest.mark.parametrize("source", ["arrays", "idx", "folder"])
def test_no_permission(source, tmp_path, monkeypatch):
    path = saved(tmp_path / "x.npy")

    def refuse(config: DataConfig) -> Samples:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setitem(module.SOURCES, source, refuse)
    with pytest.raises(DataError, match=rf"data\.source {source} must be able to read {path}, got: Permission denied"):
        load_samples(DataConfig(source=source, path=str(path)))


def test_every_source_has_its_reader():
    assert set(module.SOURCES) == set(DataConfig.model_json_schema()["properties"]["source"]["enum"])


# --- the split


def test_the_split_is_pinned():
    """A pure function of (seed, N, groups, val_fraction): these indices never change, in any release, with any numpy."""
    assert split(20, None, 0.2, 0)[1].tolist() == [8, 13, 16, 17]
    assert split(20, None, 0.2, 1)[1].tolist() == [9, 12, 13, 15]
    assert split(21, None, 0.2, 0)[1].tolist() == [8, 13, 16, 17]
    assert split(12, np.repeat([5, 3, 9, 1], 3), 0.25, 4)[1].tolist() == [3, 4, 5]


def test_the_whole_data_set_is_pinned(tmp_path):
    data = open_dataset(arrays(saved(tmp_path / "x.npy", np.arange(40 * 4, dtype=np.uint8).reshape(40, 2, 2)), count=10, seed=3))
    assert (data.samples.x[:, 0, 0, 0] // 4).tolist() == [0, 2, 6, 8, 9, 14, 17, 20, 26, 34]
    assert data.val.tolist() == [1, 9]
    assert data.fingerprint == "d3dac61642e8"


def test_the_split_knows_no_content(tmp_path):
    a = open_dataset(arrays(saved(tmp_path / "a.npy", X)))
    b = open_dataset(arrays(saved(tmp_path / "b.npy", 255 - X)))
    np.testing.assert_array_equal(a.val, b.val)
    assert a.fingerprint != b.fingerprint


def test_another_seed_another_split():
    assert len({tuple(split(50, None, 0.2, seed)[1]) for seed in range(20)}) == 20


@given(st.integers(2, 500), st.floats(0.001, 0.999), st.integers(0, 2**31 - 1))
def test_single_samples(num, val_fraction, seed):
    train, val = split(num, None, val_fraction, seed)
    assert sorted([*train, *val]) == list(range(num))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(val) > 0)
    assert len(train) > 0
    assert len(val) > 0
    if 1 <= val_fraction * num <= num - 1:
        assert abs(len(val) - val_fraction * num) <= 0.5


@settings(max_examples=200)
@given(st.lists(st.integers(-3, 12), min_size=2, max_size=120), st.floats(0.01, 0.99), st.integers(0, 1000))
def test_groups_stay_whole_and_the_share_is_near(ids, val_fraction, seed):
    groups = np.array(ids, dtype=np.int64)
    sizes = np.unique(groups, return_counts=True)[1]
    if len(sizes) == 1:
        with pytest.raises(DataError, match=r"1 group of \d+ samples.*raise data\.count"):
            split(len(ids), groups, val_fraction, seed)
        return
    train, val = split(len(ids), groups, val_fraction, seed)
    assert sorted([*train, *val]) == list(range(len(ids)))
    assert not set(groups[train]) & set(groups[val])
    assert len(train) > 0
    assert len(val) > 0
    assert abs(len(val) - val_fraction * len(ids)) <= max(sizes) / 2 + max(min(sizes), 1)


def test_one_giant_group_goes_to_training():
    groups = np.array([0] * 99 + [1])
    for seed in range(10):
        assert split(100, groups, 0.2, seed)[1].tolist() == [99]


def test_a_count_that_leaves_one_group():
    with pytest.raises(DataError, match=r"got 1 group of 2 samples for a data\.val_fraction of 0\.2; raise data\.count"):
        split(2, np.array([7, 7]), 0.2, 0)


# --- the fingerprint


def of(x: np.ndarray, y: np.ndarray | None = None, groups: np.ndarray | None = None) -> str:
    return fingerprint(Samples(x, x if y is None else y, groups))


def test_a_copy_keeps_the_fingerprint(tmp_path):
    first = saved(tmp_path / "a/x.npy")
    second = tmp_path / "b/elsewhere.npy"
    second.parent.mkdir()
    shutil.copy(first, second)
    np.savez(tmp_path / "packed.npz", X)
    prints = {open_dataset(arrays(path)).fingerprint for path in (first, second, tmp_path / "packed.npz")}
    assert prints == {of(X)}
    assert of(X, X.copy()) == of(X)  # Y is X, or a copy of it: the same training
    assert of(np.asfortranarray(X)) == of(X)


def test_every_difference_counts():
    y = 255 - X
    one_pixel = X.copy()
    one_pixel[7, 2, 3, 1] ^= 1
    variants = [
        of(X), of(one_pixel), of(X[::-1]), of(X[:11]), of(X.reshape(12, 6, 5, 3)), of(X.reshape(12, 15, 6)),
        of(X.astype(np.uint16)), of(X.astype(np.float32)), of(X, y), of(y, X), of(y),
        of(X, None, np.arange(12)), of(X, None, np.arange(12) // 2),
    ]  # fmt: skip
    assert len(set(variants)) == len(variants)


def test_split_settings_do_not_count(tmp_path):
    path = saved(tmp_path / "x.npy")
    settings = [{}, {"seed": 3}, {"val_fraction": 0.5}, {"noise": 0.2}, {"count": 12}]
    assert len({open_dataset(arrays(path, **more)).fingerprint for more in settings}) == 1
    assert open_dataset(arrays(path, count=11)).fingerprint != of(X)


def test_large_arrays_are_known_by_blocks(monkeypatch):
    monkeypatch.setattr(module, "_MB", 64)
    monkeypatch.setattr(module, "_BLOCKS", 4)
    x = np.zeros((10, 10, 10, 1), np.uint8)  # 1,000 bytes; blocks start at 0, 312, 624, 936
    plain = of(x)

    def with_byte(i: int) -> str:
        changed = x.copy()
        changed.reshape(-1)[i] = 1
        return of(changed)

    seen = [i for i in range(1000) if with_byte(i) != plain]
    assert seen == [*range(64), *range(312, 376), *range(624, 688), *range(936, 1000)]
    assert of(x[:9]) != plain
    whole = np.zeros((4, 64, 1, 1), np.uint8)  # just 4 blocks: every byte counts
    changed = whole.copy()
    changed[2, 33] = 1
    assert of(changed) != of(whole)


def test_a_large_memory_map_stays_one(tmp_path):
    path = tmp_path / "x.npy"
    big = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(300, 512, 512, 3))  # 236 MB, sparse on disk
    big[-1] = 9
    del big
    data = open_dataset(arrays(path))
    assert isinstance(data.samples.x, np.memmap)
    assert len(data.val) == 60
    big = np.lib.format.open_memmap(path, mode="r+")
    big[0, 0, 0, 0] = 1
    big.flush()
    assert open_dataset(arrays(path)).fingerprint != data.fingerprint
    path.unlink()
