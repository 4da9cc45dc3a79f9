"""Environment of the hub's libraries, read when they are imported: how much they print, and whether they ask the hub."""

import os

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""No bars, and no line for every retry, which the libraries print twice: a failure is reported once, by our own error."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def settle(*, is_offline: bool) -> None:
    """Call before any of the libraries is imported. Settings of the user stay, except that `--offline` never asks the hub."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if is_offline:
        os.environ.update(_OFFLINE)
