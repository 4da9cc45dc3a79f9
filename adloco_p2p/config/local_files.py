"""Which files of a machine a run asks for. A run comes from somebody else, who must not choose among them unasked."""

import re
from pathlib import Path

from adloco_p2p.config.peer import PeerConfig
from adloco_p2p.config.run import RunConfig
from adloco_p2p.errors import ConfigError

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def check_local_files(run: RunConfig, machine: PeerConfig) -> None:
    """Raise ConfigError where somebody else's run names files of this machine and the machine does not allow it."""
    asked = local_files(run)
    if asked and not machine.allow_local_files:
        raise ConfigError(
            f"run {run.name} asks for files of this machine: {'; '.join(asked)}; what it learns from them, others can learn."
            " If you want that, add --peer-set allow_local_files=true",
            code="E214",
        )


def local_files(run: RunConfig) -> list[str]:
    """The settings that name files of this machine, or may, each as `setting: value`."""
    names = {"data.path": run.data.path, "model.pretrained": run.model.pretrained, "tokenizer.source": run.tokenizer.source}
    if run.tokenizer.source == "bytes":
        del names["tokenizer.source"]
    return [f"{setting}: {name}" for setting, name in names.items() if name is not None and _may_be_local(run, setting, name)]


def check_source(setting: str, name: str, *, code: str) -> None:
    """Raise ConfigError where a model or tokenizer cannot be a hub id and is no directory here: the hub need not be asked."""
    if not _HUB_ID.fullmatch(name) and not Path(name).is_dir():
        raise ConfigError(
            f"{setting}: {name!r} looks like a path, and there is no such directory on this machine;"
            " give an existing one, or a hub id such as owner/name",
            code=code,
        )


def _may_be_local(run: RunConfig, setting: str, name: str) -> bool:
    """The libraries take a directory of that name before a hub id; and `datasets` reads the directory that it was started in
    where a data set has the name of a file format, which has no owner."""
    if not _HUB_ID.fullmatch(name) or Path(name).exists():
        return True
    return setting == "data.path" and (run.data.source != "hub" or "/" not in name)
