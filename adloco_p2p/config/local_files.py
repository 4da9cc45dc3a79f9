"""Limits on the runs of other authors: which files of this machine, and which versions on the hub, they may name."""

import glob
import re
from dataclasses import replace
from pathlib import Path

from adloco_p2p.config.combinations import combinations
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.plugins import check_packages
from adloco_p2p.config.run_config import ModelConfig, RunConfig
from adloco_p2p.errors import ConfigError

SHARED_MODEL = "base"
"""The folder of a working directory with the pretrained model that came from other peers."""
SHARED_TEXT = "text"
"""The folder of a working directory with the text that came from other peers."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def check_run_of_others(run: RunConfig, machine: PeerConfig) -> None:
    """Raise ConfigError where another author's run cannot work, asks for files of this machine, or does not pin the version of
    a data set, a model or a tokenizer."""
    problems = combinations(run)
    if problems:
        raise ConfigError(*(f"run {run.name}: {problem}" for problem in problems), code="E201")
    check_packages(run)
    check_local_files(run, machine)
    open_versions = unpinned(run)
    if open_versions:
        raise ConfigError(
            f"run {run.name} downloads from the hub without naming a commit: {'; '.join(open_versions)};"
            " its owner could change it. Its author has to set these to commit hashes of 40 digits",
            code="E215",
        )


def unpinned(run: RunConfig) -> list[str]:
    """Return the settings that should pin the commit of a download from the hub and do not, each as `setting: value`."""
    revisions = {
        "data.path": ("data.revision", run.data.source == "hub", run.data.revision),
        "model.pretrained": ("model.revision", run.model.pretrained is not None, run.model.revision),
        "tokenizer.source": ("tokenizer.revision", run.tokenizer.source != "bytes", run.tokenizer.revision),
    }
    local = {asked.partition(":")[0] for asked in local_files(run)}
    return [
        f"{setting}: {revision or 'not set'}"
        for source, (setting, is_from_hub, revision) in revisions.items()
        if is_from_hub and source not in local and not _COMMIT.fullmatch(revision or "")
    ]


def check_local_files(run: RunConfig, machine: PeerConfig) -> None:
    """Raise ConfigError where another author's run names files of this machine and the machine does not allow it."""
    asked = [asked for asked in local_files(run) if not _is_shared(run, asked)]
    if asked and not machine.allow_local_files:
        raise ConfigError(
            f"run {run.name} asks for files of this machine: {'; '.join(asked)}; what it learns from them, others can learn."
            " If you want that, add --peer-set allow_local_files=true",
            code="E214",
        )


def local_files(run: RunConfig) -> list[str]:
    """Return the settings that name files of this machine, or may, each as `setting: value`."""
    names = [
        ("data.path", run.data.path),
        *(("data.mixture", path) for path in run.data.mixture),
        ("data.heldout_path", run.data.heldout_path),
        ("model.pretrained", run.model.pretrained),
        ("tokenizer.source", run.tokenizer.source if run.tokenizer.source != "bytes" else None),
    ]
    return [f"{setting}: {name}" for setting, name in names if name is not None and _may_be_local(run, setting, name)]


def with_plain_paths(run: RunConfig) -> RunConfig:
    """Return the run with every directory of this machine written as a path, so that a machine without `models/mine` does not
    ask the hub for a model of that name."""
    model, tokenizer, data = run.model, run.tokenizer, run.data
    if model.pretrained is not None:
        model = replace(model, pretrained=_plain_path(model.pretrained))
    if tokenizer.source != "bytes":
        tokenizer = replace(tokenizer, source=_plain_path(tokenizer.source))
    if data.source == "hub" and data.path is not None:
        data = replace(data, path=_plain_path(data.path))
    return replace(run, model=model, tokenizer=tokenizer, data=data)


def _plain_path(name: str) -> str:
    return f"./{name}" if _HUB_ID.fullmatch(name) and Path(name).is_dir() else name


def check_sources(run: RunConfig) -> None:
    """Raise ConfigError where neither the hub nor this machine can have the run's model or tokenizer."""
    if run.model.pretrained is not None:
        check_source("model.pretrained", run.model.pretrained, code="E209")
    if run.tokenizer.source != "bytes":
        check_source("tokenizer.source", run.tokenizer.source, code="E208")


def check_source(setting: str, name: str, *, code: str) -> None:
    """Raise ConfigError where the name of a model or tokenizer is neither a possible hub id nor a directory here, without
    asking the hub."""
    if not _HUB_ID.fullmatch(name) and not Path(name).is_dir():
        raise ConfigError(
            f"{setting}: {name!r} looks like a path, and there is no such directory on this machine;"
            " give an existing one, or a hub id such as owner/name",
            code=code,
        )


def is_hub_id(name: str) -> bool:
    """Return whether a model or tokenizer of that name comes from the hub: no directory here has it."""
    return bool(_HUB_ID.fullmatch(name)) and not Path(name).exists()


def check_no_program(model: ModelConfig) -> None:
    """Raise ConfigError where the run's model is that of a program, which alone can build it."""
    if model.program:
        raise ConfigError(
            f"model.program: the model {model.program!r} is one of its author's program, and this command cannot build it; run"
            " that program with the join link, or read the run with `status`, `ledger` and `report`",
            code="E230",
        )


def _is_shared(run: RunConfig, asked: str) -> bool:
    """Return whether other peers provide the files of a name that a run asks for, so that none of this machine is read."""
    if asked.startswith("data."):
        return run.data.share
    own = {f"model.pretrained: {run.model.pretrained}", f"tokenizer.source: {run.model.pretrained}"}
    return run.model.share and asked in own


def needs_shared_model(run: RunConfig, machine: PeerConfig) -> bool:
    """Return whether this peer gets the pretrained model from others: it may not read a directory of that name, or there is
    none."""
    return run.model.share and not (machine.allow_local_files and Path(run.model.pretrained or "").is_dir())


def needs_shared_text(run: RunConfig, machine: PeerConfig) -> bool:
    """Return whether this peer gets the text from others: it may not read files of those names, or some are missing."""
    are_here = machine.allow_local_files and all(glob.glob(path, recursive=True) for path in run.data.paths)  # noqa: PTH207
    return run.data.share and not are_here


def with_shared_inputs(run: RunConfig, workdir: Path) -> RunConfig:
    """Return the run as this machine reads it: inputs that came from other peers lie in the working directory. The digest of
    the result is not the run's."""
    if run.model.share and (workdir / SHARED_MODEL).is_dir():
        base = str((workdir / SHARED_MODEL).resolve())
        tokenizer = replace(run.tokenizer, source=base) if run.tokenizer.source == run.model.pretrained else run.tokenizer
        run = replace(run, model=replace(run.model, pretrained=base), tokenizer=tokenizer)
    if run.data.share and (workdir / SHARED_TEXT).is_dir():
        run = _with_text_in(run, (workdir / SHARED_TEXT).resolve())
    return run


def _with_text_in(run: RunConfig, directory: Path) -> RunConfig:
    """Return the run with each path of its data, also as the name of a data set, replaced by a glob of the files that came for
    it. Their order stays the same, and so does the meaning of every sample number."""
    data = run.data
    here = {path: str(Path(glob.escape(str(directory))) / f"{number:04}-*") for number, path in enumerate(data.paths)}
    moved = replace(
        data,
        path=data.path and here[data.path],
        mixture={here[path]: weight for path, weight in data.mixture.items()},
        heldout_path=data.heldout_path and here[data.heldout_path],
    )
    return replace(run, data=moved, instances=replace(run.instances, data=tuple(here[name] for name in run.instances.data)))


def _may_be_local(run: RunConfig, setting: str, name: str) -> bool:
    """Return whether the name may mean a directory of this machine. The libraries prefer a directory to a hub id of the same
    name; and for a data set with the name of a file format, which has no owner, `datasets` reads the current directory."""
    if not is_hub_id(name):
        return True
    return setting.startswith("data.") and (run.data.source != "hub" or "/" not in name)
