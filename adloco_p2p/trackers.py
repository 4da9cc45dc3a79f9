"""Experiment trackers: TensorBoard and Weights & Biases, each behind an extra. Nothing else imports them."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from adloco_p2p.errors import ConfigError

PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
"""The module that each tracker needs; a tracker's name is also that of its extra. tensorboardX writes the files of TensorBoard,
without the server that shows them."""
PROJECT = "adloco"
"""The project of the runs at Weights & Biases, unless its own variable WANDB_PROJECT is set."""


class Tracker(Protocol):
    """One open tracker, called in one thread. Its methods may block, and raise whatever its library does."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check_installed(trackers: Sequence[str]) -> None:
    """Raise ConfigError for a tracker whose package is missing. Imports nothing."""
    missing = [name for name in trackers if importlib.util.find_spec(PACKAGES[name]) is None]
    problems = [
        f"trackers: {name} needs the package {PACKAGES[name]}; in the checkout: pip install -c constraints.txt '.[{name}]'"
        for name in missing
    ]
    if problems:
        raise ConfigError(*problems, code="E231")


def open_tracker(tracker: str, *, folder: Path, name: str, identity: str, settings: Mapping[str, object]) -> Tracker:
    """Open a tracker. `name`: the name of this peer in the run. `identity` stays the same over restarts. `settings`: the run's
    settings, for the tracker's page. Raises whatever the library does."""
    match tracker:
        case "tensorboard":
            return _TensorBoard(folder / "tensorboard")
        case "wandb":
            return _WeightsAndBiases(folder, name=name, identity=identity, settings=settings)
    raise AssertionError(tracker)


class _TensorBoard:
    """Writes a file of events per session; `tensorboard --logdir` reads them all as one curve."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """One run of W&B per peer. Offline mode, account and project are set by its own variables, such as WANDB_MODE=offline."""

    def __init__(self, folder: Path, *, name: str, identity: str, settings: Mapping[str, object]) -> None:
        import os

        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=identity,
            resume="allow",
            dir=str(folder),
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True),
        )
        # Values of several instances come in any order, and W&B's own step may never fall.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()
