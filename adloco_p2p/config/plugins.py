"""A user's own models, data sources and losses: entry points of packages that are installed here. Code never comes from the
network."""

import re
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.errors import ConfigError, brief

GROUPS = {"model.plugin": "adloco_p2p.models", "data.plugin": "adloco_p2p.data_sources", "model.loss": "adloco_p2p.losses"}
"""For each setting the group of entry points from which it chooses."""
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,98}")


def plugins_of(run: RunConfig) -> dict[str, str]:
    """Return the entry points that a run names, by setting."""
    named = {"model.plugin": run.model.plugin, "data.plugin": run.data.plugin, "model.loss": run.model.loss}
    return {setting: name for setting, name in named.items() if name}


def packages_of(run: RunConfig) -> dict[str, str]:
    """Return the installed packages from which the run's entry points come, and their versions, for `start` to write into the
    run. Raises ConfigError for an entry point that no installed package has."""
    found = [_entry_point(setting, name) for setting, name in plugins_of(run).items()]
    return {point.dist.name: point.dist.version for point in found if point.dist is not None}


def check_packages(run: RunConfig) -> None:
    """Raise ConfigError where this machine lacks a package of the run or has another version, where the run names packages that
    it cannot need, and where an entry point of the run comes from another package. Runs none of their code."""
    installed = {name: installed_version(name) for name in run.packages}
    _check_needed(run, installed)
    wrong = {name: version for name, version in run.packages.items() if installed[name] != version}
    if wrong:
        asked = " ".join(f"'{name}=={version}'" for name, version in wrong.items())
        here = ", ".join(f"{name} {installed[name] or 'is not installed'}" for name in wrong)
        raise ConfigError(
            f"run {run.name} needs packages of its author's: {here}; pip install {asked}, after a look at where they come from:"
            " their code runs with your rights",
            code="E232",
        )
    for setting, name in plugins_of(run).items():
        dist = _entry_point(setting, name).dist
        if dist is None or dist.name not in run.packages:
            owner = "no package" if dist is None else dist.name
            raise ConfigError(
                f"{setting}: {name!r} comes from {owner} here, which the run does not name among its packages"
                f" ({', '.join(run.packages)}); uninstall one of the two",
                code="E232",
            )


def _check_needed(run: RunConfig, installed: Mapping[str, str | None]) -> None:
    """Raise ConfigError where the run names more packages than its entry points can come from, so that nobody is asked to
    install an unused package. An entry point comes from one package, whose name is known where the run's version of it is
    installed."""
    owners = [_owner(setting, name) for setting, name in plugins_of(run).items()]
    used = {name for name in run.packages if name in owners and installed[name] == run.packages[name]}
    unused = [name for name in run.packages if name not in used]
    if len(unused) > sum(owner not in used for owner in owners):
        named = ", ".join(f"{setting} {name}" for setting, name in plugins_of(run).items()) or "none"
        raise ConfigError(
            f"packages: {', '.join(unused)}, but run {run.name} does not need that many: an entry point comes from one package,"
            f" and its entry points are: {named}. Leave packages out if the run is yours, `adloco-peer start` fills it in;"
            " install none of them for the run of another",
            code="E232",
        )


def packages_problems(packages: Mapping[str, str]) -> list[str]:
    """Return the problems of names and versions: people copy the command that contains them, so only these forms are
    accepted."""
    return [
        f"packages: {name!r} {version!r} is no package with a version; leave it out, `adloco-peer start` fills it in"
        for name, version in packages.items()
        if not (_PACKAGE.fullmatch(name) and _VERSION.fullmatch(version))
    ]


def load_plugin(setting: str, name: str) -> Callable[..., Any]:
    """Import and return what the entry point names. Raises ConfigError where that fails."""
    point = _entry_point(setting, name)
    try:
        found = point.load()
    except Exception as error:  # other people's code, which may fail in any way
        raise ConfigError(f"{setting}: {name!r} ({point.value}) cannot be imported: {one_line(error)}", code="E232") from error
    if not callable(found):
        raise ConfigError(f"{setting}: {name!r} ({point.value}) is no function", code="E232")
    return found  # type: ignore[no-any-return]


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {brief(error)}"


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _owner(setting: str, name: str) -> str | None:
    """Return the package here that has the entry point."""
    found = metadata.entry_points(group=GROUPS[setting], name=name)
    return next((point.dist.name for point in found if point.dist is not None), None)


def _entry_point(setting: str, name: str) -> metadata.EntryPoint:
    group = GROUPS[setting]
    known = metadata.entry_points(group=group)
    if name not in known.names:
        offered = ", ".join(sorted(known.names)) or "none"
        raise ConfigError(
            f"{setting}: no installed package has an entry point {name!r} in the group {group}; it has: {offered}. Install the"
            " package with pip, into the environment of adloco-peer",
            code="E232",
        )
    return known[name]
