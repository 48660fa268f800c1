"""16 short one-worker trials: raysweep against Ray's documented pattern and against a plain Tune function.

All on one running Ray with the machine's CPUs, two trials at a time, the same model, images and epochs in each trial;
raysweep's time includes its report.
`ratio_vs_documented`: TorchTrainer inside a Tune function at its default settings / raysweep.
`ratio_vs_plain_tune`: a plain Tune function, actors not used again (Tune's default) / raysweep.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import ray.train
import ray.train.torch
from common import arguments, finish, plain_images, plain_model, plain_training
from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

import raysweep
import raysweep.report.build
import raysweep.tune.engine  # what the driver imports is timed for none of the three
from raysweep.cluster.join import connected, environment
from raysweep.experiment import Experiment

EXPERIMENT: dict[str, Any] = {
    "data": {"source": "digits", "count": 200},
    "model": {"depth": 2, "base_channels": 8},
    "train": {"epochs": 2, "batch_size": 32},
}
AT_ONCE = 2


def learning_rates(trials: int) -> list[float]:
    return [round(1e-4 * 1.3**n, 8) for n in range(trials)]


def work(lr: float, report: Callable[[dict[str, float]], None]) -> None:
    """What a trial trains, in plain PyTorch."""
    experiment = Experiment.from_dict(EXPERIMENT).with_overrides({"optim.lr": lr})
    images = plain_images(experiment)
    for loss, _ in plain_training(experiment, images, plain_model(experiment, images)):
        report({"loss": loss})


def plain_trial(config: dict[str, Any]) -> None:
    work(config["lr"], tune.report)


def worker(config: dict[str, Any]) -> None:
    work(config["lr"], ray.train.report)


def documented_trial(config: dict[str, Any]) -> None:
    """A TorchTrainer inside a Tune function, as Ray's guide has it."""
    ray.train.torch.TorchTrainer(
        worker,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(
            name=f"trial-{tune.get_context().get_trial_id()}", storage_path=config["storage"], callbacks=[TuneReportCallback()]
        ),
    ).fit()


def time_tune(trial: Callable[[dict[str, Any]], None], resources: dict[str, float], trials: int, directory: str) -> float:
    began = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={"lr": tune.grid_search(learning_rates(trials)), "storage": directory},
        tune_config=tune.TuneConfig(max_concurrent_trials=AT_ONCE),
        run_config=tune.RunConfig(storage_path=directory, verbose=0),
    ).fit()
    seconds = time.perf_counter() - began
    if results.num_errors:
        raise RuntimeError(f"{results.num_errors} of {trials} trials failed: {results.errors[0]}")
    return seconds


def time_ours(trials: int, directory: str) -> float:
    began = time.perf_counter()
    sweep = {
        "experiment": EXPERIMENT,
        "space": {"optim.lr": {"grid": learning_rates(trials)}},
        "search": {"max_concurrent": AT_ONCE},
    }
    result = raysweep.sweep(sweep, storage=directory)
    seconds = time.perf_counter() - began
    if not (result.trials["status"] == "completed").all():
        raise RuntimeError(f"not all trials completed: {result.trials['status'].tolist()}")
    return seconds


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=16)
    options = parser.parse_args()
    with connected(), tempfile.TemporaryDirectory() as directory:
        ours = time_ours(options.trials, directory)
        plain = time_tune(plain_trial, {"CPU": 1}, options.trials, directory)
        # Ray's own defaults; the driver of a trial is given nearly nothing, so that two trials fit 2 CPUs.
        with environment(RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="2.0"):
            documented = time_tune(documented_trial, {"CPU": 0.01}, options.trials, directory)
    numbers = {
        "trials": float(options.trials),
        "ours_s": ours,
        "plain_tune_s": plain,
        "documented_s": documented,
        "ratio_vs_plain_tune": plain / ours,
        "ratio_vs_documented": documented / ours,
    }
    finish("short one-worker trials", numbers, options.json)


if __name__ == "__main__":
    main()
