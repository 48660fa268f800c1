"""The training loop, from top to bottom. It knows nothing of Ray, and of other workers only what Runtime offers."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import torch

from raysweep.data.dataset import Dataset
from raysweep.data.loader import Loader, Request
from raysweep.data.order import epoch_order, num_steps, sample_keys
from raysweep.experiment import Experiment
from raysweep.models import set_sample_keys, uses_batch_norm
from raysweep.plugins import build_model
from raysweep.train import checkpoint, optim
from raysweep.train.evaluate import psnr, validation_loss
from raysweep.train.exact import ShardedStep, deterministic, fix_threads
from raysweep.train.ledger import Ledger
from raysweep.train.progress import EpochClock, Outcome, Progress, agree, judge, next_epoch, patience_ended
from raysweep.train.runtime import Runtime
from raysweep.train.saver import Saver
from raysweep.train.step import GradientStep, Part, clip, gradient_norm
from raysweep.train.summaries import Summaries


def train(experiment: Experiment, dataset: Dataset, runtime: Runtime) -> Outcome:
    """Train to experiment.train.epochs, or to an earlier end, going on from the newest complete checkpoint.

    Args:
        experiment: everything the result follows from.
        dataset: the images and their split.
        runtime: rank, collectives, where rows go, and the trial's directory for checkpoints.

    Raises:
        ConfigError: the images do not fit the model.
        CheckpointError: a checkpoint cannot be written, or belongs to another model.
    """
    with ExitStack() as closed:
        if experiment.train.exactness == "bitwise":
            closed.enter_context(deterministic(runtime.device))
        return _train(experiment, dataset, runtime, closed)


def _train(experiment: Experiment, dataset: Dataset, runtime: Runtime, closed: ExitStack) -> Outcome:
    config, device = experiment.train, runtime.device
    samples, num_train = dataset.samples, len(dataset.train)
    steps_per_epoch = num_steps(num_train, config.batch_size)
    values = int(np.prod(samples.y.shape[1:]))

    # Model, optimizer, and where an earlier attempt left off.
    raw = build_model(experiment.model, samples.x.shape[1:], samples.y.shape[1:], config.seed).to(device)
    if config.channels_last:
        raw = raw.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if runtime.world_size > 1 and uses_batch_norm(raw):
        raw = torch.nn.SyncBatchNorm.convert_sync_batchnorm(raw)  # type: ignore[no-untyped-call]
    parameters = [p for p in raw.parameters() if p.requires_grad]
    optimizer = optim.build(experiment.optim, parameters)
    progress = Progress()
    found = checkpoint.start(runtime.directory) if runtime.rank == 0 else None
    path = runtime.broadcast(found.path if found else None)
    if path:
        content = found.content if found else checkpoint.load(path)
        checkpoint.restore_weights(raw, content["model"], path)
        optimizer.load_state_dict(content["optimizer"])
        progress = Progress(**content["progress"])
        del content, found  # as large as what they were loaded into
        if progress.row:
            runtime.report(progress.row)
    if config.exactness == "bitwise":
        progress.threads = fix_threads(experiment, progress.threads)
    raw.train()
    model: torch.nn.Module = torch.compile(raw) if config.compile else raw  # type: ignore[assignment]
    gradient_step = (ShardedStep if config.exactness == "bitwise" else GradientStep)(model, experiment, runtime, values)
    loader = Loader(samples, experiment.data.noise, device)
    observed = experiment.train.tensorboard and runtime.rank == 0
    summaries = closed.enter_context(closing(Summaries(runtime.directory, dataset, experiment, device))) if observed else None
    saver = closed.enter_context(Saver(experiment, dataset, runtime, raw, optimizer))
    ledger = closed.enter_context(Ledger(runtime, dataset, config.batch_size, progress)) if config.ledger else None
    if runtime.rank == 0:
        runtime.began(progress.global_step, steps_per_epoch * config.epochs)

    ended = patience_ended(config, progress)
    while progress.epoch <= config.epochs and ended is None:
        order = dataset.train[epoch_order(config.seed, progress.epoch, num_train)]
        keys = sample_keys(config.seed, progress.epoch, order)
        plans = [gradient_step.part(order, keys, step) for step in range(progress.step, steps_per_epoch)]
        batches = loader.batches(_requests(plans))
        clock = EpochClock(progress, loader)
        # A lane is added to by one worker, step after step: its rounding knows of no checkpoint.
        lanes = progress.squared_error or [0.0] * gradient_step.lanes
        lanes = [total if lane in gradient_step.owned else 0.0 for lane, total in enumerate(lanes)]
        squared_error = torch.tensor(lanes, dtype=torch.float64, device=device)
        first_bad = torch.full((), math.inf, dtype=torch.float64, device=device)
        norm = torch.zeros(())
        next_sync = progress.step + 1

        with closing(batches):
            for plan in plans:
                step = progress.step
                rate = optim.learning_rate(experiment.optim, progress.global_step, steps_per_epoch, config.epochs)
                optim.set_learning_rate(optimizer, rate)
                optimizer.zero_grad(set_to_none=True)
                in_step = min(config.batch_size, num_train - step * config.batch_size)
                error = gradient_step.backward(batches, plan, in_step, progress.epoch, step)
                is_last = step == steps_per_epoch - 1
                if experiment.optim.clip_norm is not None or is_last:
                    norm = gradient_norm(parameters)
                if experiment.optim.clip_norm is not None:
                    clip(parameters, norm, experiment.optim.clip_norm)
                optimizer.step()
                if ledger is not None:
                    ledger.note(progress, plan)
                squared_error += error
                first_bad = torch.where(torch.isfinite(error).all(), first_bad, first_bad.clamp(max=progress.global_step + 1))
                progress.step += 1
                progress.global_step += 1
                if runtime.rank == 0:
                    runtime.step_done(progress.global_step)

                # All workers agree, about once a second and at the epoch's end, on what comes next.
                if progress.step == next_sync or is_last:
                    agreed = agree(runtime, first_bad, saver.is_due(), clock.steps_until_sync(progress.step))
                    if math.isfinite(agreed.first_bad):
                        ended = Outcome("diverged", {"what": "train_loss", "step": int(agreed.first_bad), "lr": rate})
                        break
                    if agreed.save and not is_last:
                        clock.add_to(progress)
                        progress.squared_error = runtime.reduce(squared_error.tolist())
                        saver.save(progress, wait=agreed.urgent)
                    if agreed.end:
                        text = f"stopped on request in epoch {progress.epoch}"
                        ended = Outcome(agreed.end, {"text": text, "step": progress.global_step})
                        if not is_last:
                            break
                    next_sync = progress.step + agreed.steps_until_sync
        set_sample_keys(raw, None)
        if ended is not None and ended.status in ("interrupted", "resized") and progress.step < steps_per_epoch:
            break

        # The epoch's row.
        clock.end_of_training(progress)
        total = math.fsum(runtime.reduce(squared_error.tolist()))
        train_loss = total / (num_train * values) if ended is None or ended.status != "diverged" else math.nan
        val_loss = math.nan
        if math.isfinite(train_loss):
            val_loss = validation_loss(
                raw, dataset, loader, experiment, runtime.reduce, runtime.rank, runtime.world_size, gradient_step.autocast
            )
            if not math.isfinite(val_loss):
                ended = Outcome("diverged", {"what": "val_loss", "step": progress.global_step, "lr": rate})
        clock.add_to(progress)
        progress.row = {
            "epoch": progress.epoch,
            "step": progress.global_step,
            "train_loss": train_loss,
            "val_loss": val_loss,
            "psnr": psnr(val_loss),
            "lr": rate,
            "grad_norm": float(norm),
            "world_size": runtime.world_size,
            "attempt": runtime.attempt,
            "samples_per_second": num_train / progress.train_s if progress.train_s else math.nan,
            "data_wait": progress.wait_s / progress.train_s if progress.train_s else 0.0,
            "seconds": progress.seconds,
            "peak_memory_bytes": max(_from_each(runtime, float(_peak_memory_bytes(device)))),
        }
        judge(config, progress, val_loss)
        row, done = progress.row, progress.epoch
        if ended is None or ended.status == "resized":
            # A run that is over has nothing to go on with at another size.
            ended = patience_ended(config, progress) or (ended if done < config.epochs else None)
        next_epoch(progress)
        if summaries is not None:
            summaries.epoch(row, raw)
        if ended is None or ended.status != "diverged":
            is_end = ended is not None or done == config.epochs
            saver.end_of_epoch(progress, done, row, is_end)
        with saver.saved_if_ended_here(progress):
            runtime.report(row)
    return ended or Outcome("completed")


def _requests(plans: list[Part]) -> Iterator[Request]:
    return (request for plan in plans for request in plan.requests)


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts KiB, macOS bytes; of a reused process it is the peak over all its trials.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _from_each(runtime: Runtime, value: float) -> list[float]:
    """Every rank's value, on every rank."""
    return runtime.reduce([value if rank == runtime.rank else 0.0 for rank in range(runtime.world_size)])
