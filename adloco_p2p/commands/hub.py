"""Sets the environment of the hub's libraries, which they read when they are imported: how much they print, and whether they
ask the hub."""

import logging
import os

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "critical",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""No progress bars, and no line for every retry or unreadable file, which the libraries print twice: our own error reports a
failure once."""
_CHATTY = ("torchao", "torch.utils._pytree")
"""Loggers that warn during their import: transformers imports torchao wherever it is installed, and torchao warns about kernels
for hardware that this machine does not have."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def settle(*, is_offline: bool) -> None:
    """Set the environment, before any of the libraries is imported. The user's own settings stay, but `--offline` never asks
    the hub."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    if is_offline:
        os.environ.update(_OFFLINE)
