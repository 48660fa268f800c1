"""What --plan predicts for the default sweep against what the sweep then takes, both as commands of their own.

`predicted_s`, `low_s`, `high_s`: from the journal's start to its finish, as planned; `actual_s`: what that took.
`ratio`: predicted / actual. `command_predicted_s`, `command_s`: the same for the whole command, with Ray's start and the report.
`plan_s`: what --plan took; `plan_trials`: trials that it trained. `again_s`: the sweep's command once more, when all has ended;
`again_bytes`: by how much the journal has grown then.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import arguments, finish

from raysweep.store.prediction import prediction_file
from raysweep.store.results import load


def timed(*options: str) -> float:
    """Seconds that `python -m raysweep.tune` takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "raysweep.tune", *options], check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sweep", type=Path, help="instead of the default sweep, named lr_depth")
    parser.add_argument("--name", default="lr_depth", help="the sweep's name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        storage = Path(directory)
        sweep = [str(options.sweep)] if options.sweep else []
        plan_s = timed(*sweep, "--storage", directory, "--plan")
        written = json.loads(prediction_file(storage, options.name).read_text(encoding="utf-8"))["predicted"]
        trials = len(list(storage.glob("*/trials/*")))
        command_s = timed(*sweep, "--storage", directory)
        results = load(storage / options.name)
        journal = storage / options.name / "journal.jsonl"
        size = journal.stat().st_size
        again_s = timed(*sweep, "--storage", directory)
        again_bytes = journal.stat().st_size - size
    if results.wall.predicted is None:
        raise RuntimeError("the sweep did not take the prediction for its own")
    low_s, predicted_s, high_s = written["wall_s"]
    numbers = {
        "predicted_s": predicted_s,
        "low_s": low_s,
        "high_s": high_s,
        "actual_s": results.wall.seconds,
        "ratio": predicted_s / results.wall.seconds,
        "command_predicted_s": predicted_s + written["around_s"],
        "command_s": command_s,
        "command_ratio": (predicted_s + written["around_s"]) / command_s,
        "plan_s": plan_s,
        "plan_trials": float(trials),
        "again_s": again_s,
        "again_bytes": float(again_bytes),
    }
    finish("--plan against the sweep", numbers, options.json)


if __name__ == "__main__":
    main()
