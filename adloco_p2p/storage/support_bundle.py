"""One zip file by which others can trace an incident on this machine, without its secrets.

crash.txt      the traceback of the last crash, if there was one
about.json     versions, machine, command line
run.json       the run's configuration
events.jsonl   the last events
files.txt      names and sizes of the files in the working directory

The content of no other file goes into it: not the identity, the journal, the address book, checkpoints or data. Each file goes
through `redaction.py`.
"""

import base64
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path

from adloco_p2p.storage.disk import replace_file, reported
from adloco_p2p.storage.redaction import redacted

MAX_TEXT_BYTES = 1 << 20
"""The most bytes of one file inside, of which a longer one keeps its end. So the bundle cannot exceed five times this."""
MAX_FILES_LISTED = 1000
BUNDLE = "support-bundle.zip"
CRASH = "crash.txt"
RECORDS = ("run.json", "events.jsonl")
PACKAGES = ("adloco-peer", "torch", "hivemind", "transformers", "datasets", "numpy", "grpcio", "protobuf", "safetensors")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSPHRASE|KEY|CREDENTIAL", re.IGNORECASE)


def is_of_a_node(workdir: Path) -> bool:
    """Return whether a node or another verb left anything here; the files of any other directory are nobody's business."""
    return any((workdir / name).exists() for name in ("lock", CRASH, *RECORDS))


def write_crash(workdir: Path, error: BaseException) -> Path:
    """Write the traceback of a crash, make a bundle, and return the path of the bundle. Raises StorageError."""
    words = "".join(traceback.format_exception(error))
    with reported(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        replace_file(workdir / CRASH, _bytes_of(_clean(words, workdir)))
    return write_bundle(workdir)


def write_bundle(workdir: Path) -> Path:
    """Write the bundle of a working directory, in place of an earlier one, and return its path. Raises StorageError."""
    path = workdir / BUNDLE
    aside = path.with_name(BUNDLE + ".tmp")
    with reported(workdir):
        try:
            with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as file:
                aside.chmod(0o600)
                for name, text in _contents(workdir):
                    file.writestr(name, _end_of(_bytes_of(_clean(text, workdir))))
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)  # on a full disk it takes the space that the next start needs
            raise
    return path


def _contents(workdir: Path) -> Iterator[tuple[str, str]]:
    yield "about.json", json.dumps(_about(workdir), indent=1)
    yield "files.txt", "\n".join(_files(workdir))
    for name in (CRASH, *RECORDS):
        path = workdir / name
        if path.is_file():
            with path.open("rb") as file:
                start = max(0, path.stat().st_size - 2 * MAX_TEXT_BYTES)
                file.seek(start)
                if start:
                    file.readline()  # half a secret would not be recognised
                yield name, file.read(2 * MAX_TEXT_BYTES).decode("utf-8", "replace")


def _about(workdir: Path) -> dict[str, object]:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "command": sys.argv,
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_free_bytes": shutil.disk_usage(workdir).free,
        "nvidia_driver": driver.read_text().splitlines()[0] if driver.is_file() else None,
        "versions": versions,
    }


def _files(workdir: Path) -> list[str]:
    listed = []
    for path in sorted(Path(folder, name) for folder, _, names in os.walk(workdir) for name in names):
        with contextlib.suppress(OSError):  # a running node may remove files and folders meanwhile; `os.walk` passes over these
            if path.is_file():
                listed.append(f"{path.stat().st_size:>14} {path.relative_to(workdir)}")
    return listed[:MAX_FILES_LISTED]


def _clean(text: str, workdir: Path) -> str:
    return redacted(text, secrets=_known_secrets(workdir), home=str(Path.home()))


def _known_secrets(workdir: Path) -> list[str]:
    """Return values that must not appear in any encoding: the private key, the control token, secrets of the environment."""
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name)]
    with contextlib.suppress(OSError):
        key = (workdir / "identity.key").read_bytes()
        for part in (key, key[-64:], key[-64:-32]):  # the whole file, the seed with the public half, the seed
            secrets += [part.hex(), repr(part)[2:-1]]
            secrets += [base64.b64encode(part).decode().rstrip("="), base64.urlsafe_b64encode(part).decode().rstrip("=")]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        secrets.append(str(json.loads((workdir / "control" / "endpoint.json").read_bytes())["token"]))
    return secrets


def _bytes_of(text: str) -> bytes:
    """Encode the text, which may name files whose names are no text."""
    return text.encode(errors="backslashreplace")


def _end_of(content: bytes) -> bytes:
    """Return the end of the content, which replacements may have made longer."""
    return content[-MAX_TEXT_BYTES:]
