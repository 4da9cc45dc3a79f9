"""Environment of the hub's libraries, read when they are imported: how much they print, and whether they ask the hub."""

import logging
import os

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""No bars, and no line for every retry, which the libraries print twice: a failure is reported once, by our own error."""
_CHATTY = ("torchao", "torch.utils._pytree")
"""Loggers that warn while they are imported: transformers imports torchao wherever it is installed, and it warns of kernels for
hardware that this machine does not have."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def settle(*, is_offline: bool) -> None:
    """Call before any of the libraries is imported. Settings of the user stay, except that `--offline` never asks the hub."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    if is_offline:
        os.environ.update(_OFFLINE)
