"""Checkpoints: the whole state of a peer at the boundary before a round, each complete or absent.

    checkpoints/
      round-000012.tmp/            being written; removed at the next start
      round-000012/
        instance-3.safetensors     tensors of one instance
        instance-3.json            its small values: data cursor, counters
        manifest.json              written last: size and SHA-256 of every file, the decisions (`Durable`), the run's digest
      round-000012.old/            for a moment, while a checkpoint of the same round is replaced

The manifest stands in an envelope with its own SHA-256, which tells a damaged manifest from one of another run or version. The
file must be the canonical form of its content: a digit beyond a double's precision changes no value, but it is damage, too. The
order is: files, sync, manifest, sync, rename, sync, and only then are older checkpoints removed.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from adloco_p2p import decode
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.errors import RemoteProtocolError, StorageError
from adloco_p2p.storage.disk import remove, reported
from adloco_p2p.storage.tensor_file import write_tensors
from adloco_p2p.synced import sync_directory, write_synced

logger = logging.getLogger(__name__)

FORMAT = 2
"""The version of the layout above."""
MAX_MANIFEST_BYTES = 64 << 20
"""The most bytes of a manifest, which holds plans of at most 4096 peers; anything longer is damage."""

_NAME = re.compile(r"round-([0-9]{6,})")
_LEFT = re.compile(r"round-[0-9]{6,}\.(old|tmp)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """The size and hash of one file of a checkpoint."""

    size_bytes: int
    sha256: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The list of files that makes a directory a checkpoint."""

    format: int
    run: Digest
    round: int
    files: dict[str, FileRecord]
    durable: Durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint all of whose bytes were checked."""

    round: int
    durable: Durable
    instances: tuple[InstanceId, ...]


class _Damaged(Exception):
    """A checkpoint cannot be used; another one may be."""


@dataclass(slots=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one run on this machine. Used by one thread at a time, under the lock of the working directory."""

    directory: Path
    run: Digest
    kept: int
    """The number of newest checkpoints that stay."""
    _written: dict[int, dict[str, FileRecord]] = field(default_factory=dict)
    """The files of unfinished checkpoints, by round."""
    _checked: set[int] = field(default_factory=set)
    """The rounds whose files were read and found whole."""
    _refused: set[int] = field(default_factory=set)

    @classmethod
    def open(cls, directory: Path, *, run: Digest, kept: int) -> "CheckpointStore":
        """Open the store: make its directory, and remove the files of an interrupted process. Raises StorageError."""
        assert kept >= 2, "a torn checkpoint needs one before it"
        with reported(directory):
            directory.mkdir(parents=True, exist_ok=True)
            for left in sorted(path for path in directory.iterdir() if _LEFT.fullmatch(path.name)):
                complete = left.with_suffix("")
                if left.suffix == ".old" and not complete.exists():
                    os.replace(left, complete)  # noqa: PTH105
                else:
                    remove(left)
            sync_directory(directory)
            sync_directory(directory.parent)
        return cls(directory=directory, run=run, kept=kept)

    # --- writing -------------------------------------------------------------------------------------------------

    def save_instance(
        self, round: int, instance: InstanceId, tensors: dict[str, torch.Tensor], meta: dict[str, object]
    ) -> None:
        """Write one instance's state into the unfinished checkpoint of `round`. Raises StorageError.

        Tensors are contiguous and share no memory; `meta` has plain JSON values. The state counts only after `complete`.
        """
        with self._writing(round) as aside:
            aside.mkdir(exist_ok=True)
            files = self._written.setdefault(round, {})
            size, sha256 = write_tensors(aside / _tensor_file(instance), tensors)
            files[_tensor_file(instance)] = FileRecord(size_bytes=size, sha256=sha256)
            write_synced(aside / _meta_file(instance), [canonical.encode(meta)])
            files[_meta_file(instance)] = _measure(aside / _meta_file(instance))

    def complete(self, durable: Durable) -> None:
        """Make the unfinished checkpoint of `durable.round` the newest one, then remove those that are too old.

        Every instance that `durable` holds was saved before. Raises StorageError; then the previous one still stands.
        """
        files = self._written.get(durable.round, {})
        wanted = {name for instance in durable.held for name in (_tensor_file(instance), _meta_file(instance))}
        assert wanted <= files.keys(), f"not saved: {sorted(wanted - files.keys())}"
        manifest = Manifest(
            format=FORMAT,
            run=self.run,
            round=durable.round,
            files={name: files[name] for name in sorted(wanted)},
            durable=durable,
        )
        final = self._final(durable.round)
        with self._writing(durable.round) as aside:
            aside.mkdir(exist_ok=True)
            write_synced(aside / "manifest.json", [_in_envelope(manifest)])
            for path in aside.iterdir():
                if path.name not in wanted | {"manifest.json"}:  # the instance was saved and then dropped
                    path.unlink()
            sync_directory(aside)
            replaced = final.with_name(final.name + ".old")
            if final.exists():
                os.replace(final, replaced)  # noqa: PTH105
            os.replace(aside, final)  # noqa: PTH105
            sync_directory(self.directory)
            self._refused.discard(durable.round)
            self._checked.add(durable.round)
            # nothing may be removed before this point
            if replaced.exists():
                remove(replaced)
            for round in [begun for begun in self._written if begun < durable.round]:
                remove(self._aside(round))
                del self._written[round]
            self._written.pop(durable.round, None)
            self._prune(durable.round)

    @contextmanager
    def _writing(self, round: int) -> Iterator[Path]:
        """Yield the folder of the unfinished checkpoint, and remove it after a failure, because on a full disk it takes the
        space that the next start needs."""
        aside = self._aside(round)
        try:
            with reported(aside):
                yield aside
        except StorageError:
            shutil.rmtree(aside, ignore_errors=True)
            self._written.pop(round, None)
            raise

    def _prune(self, newest: int) -> None:
        """Remove all but the `kept` checkpoints up to the `newest`. A refused one does not count as kept. Later ones are of a
        history that lost, in which rounds had gone further; the next start would take one of them for the newest."""
        sound = [round for round in self._rounds() if round <= newest and round not in self._refused]
        for round in self._rounds():
            if round not in sound[: self.kept]:
                # renamed first, so that a half-removed one is never mistaken for a damaged one
                os.replace(self._final(round), self._aside(round))  # noqa: PTH105
                remove(self._aside(round))
                self._checked.discard(round)
                self._refused.discard(round)

    # --- reading -------------------------------------------------------------------------------------------------

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint all of whose hashes are right; None if there is no checkpoint at all.

        A damaged one is logged and the one before is used. Raises StorageError if all are damaged, or if one belongs to
        another run or version: then nothing is touched.
        """
        with reported(self.directory):
            rounds = self._rounds()
        reasons = []
        for round in rounds:
            try:
                manifest = self._check(round)
            except _Damaged as damage:
                if round not in self._rounds():
                    return self.latest()  # a running node has removed it meanwhile, and has written newer ones
                logger.warning(
                    "a damaged checkpoint is not used",
                    extra={"round": round, "path": str(self._final(round)), "reason": str(damage)},
                )
                reasons.append(f"{self._final(round)}: {damage}")
                self._refused.add(round)
                continue
            durable = manifest.durable
            return Checkpoint(round=round, durable=durable, instances=durable.held)
        if reasons:
            raise StorageError(
                "no checkpoint can be used; restore one from a copy, or delete them to fetch the state from others:\n"
                + "\n".join(reasons),
                code="E405",
            )
        return None

    def holds(self, round: int) -> bool:
        """Return whether there is a checkpoint of that round, whole or not."""
        return self._final(round).exists()

    def load_instance(self, round: int, instance: InstanceId) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the tensors, on the CPU, and the small values of one instance. Raises StorageError."""
        folder = self._final(round)
        try:
            if round not in self._checked:
                self._check(round)
            with reported(folder):
                tensors: dict[str, torch.Tensor] = load_file(folder / _tensor_file(instance))
                meta: dict[str, Any] = json.loads((folder / _meta_file(instance)).read_bytes())
        except (_Damaged, SafetensorError, ValueError) as damage:
            raise StorageError(f"{folder}: instance {instance} cannot be read: {damage}", code="E405") from damage
        return tensors, meta

    def _check(self, round: int) -> Manifest:
        """Return the manifest if every file matches it. Raises _Damaged, and StorageError for another run or version."""
        folder = self._final(round)
        try:
            manifest = self._read_manifest(folder)
            for name, record in manifest.files.items():
                if (folder / name).stat().st_size != record.size_bytes or _measure(folder / name) != record:
                    raise _Damaged(f"{name} differs from the manifest")
        except PermissionError as error:
            raise StorageError(f"{error.filename}: permission denied; give this user read access", code="E403") from error
        except OSError as error:  # a file is missing, or on a part of the disk that cannot be read
            raise _Damaged(str(error)) from error
        if manifest.round != round or manifest.durable.round != round:
            raise _Damaged(f"holds round {manifest.round}")
        self._checked.add(round)
        return manifest

    def _read_manifest(self, folder: Path) -> Manifest:
        path = folder / "manifest.json"
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise _Damaged("manifest.json is too long")
        try:
            found = path.read_bytes()
            envelope = json.loads(found)
            content = canonical.encode(envelope["manifest"])
            is_intact = canonical.encode(envelope) == found and hashlib.sha256(content).hexdigest() == envelope["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            is_intact = False
        if not is_intact:
            raise _Damaged("manifest.json is damaged")
        manifest = envelope["manifest"]
        if manifest.get("format") != FORMAT:
            raise StorageError(
                f"{folder}: checkpoint format {manifest.get('format')}, but this version reads and writes format {FORMAT}",
                code="E405",
            )
        if manifest.get("run") != self.run:
            raise StorageError(
                f"{folder}: belongs to run {manifest.get('run')}, not to run {self.run}; use another working directory",
                code="E405",
            )
        try:
            return decode.decode(Manifest, content, max_bytes=MAX_MANIFEST_BYTES)
        except RemoteProtocolError as error:
            raise _Damaged(f"manifest.json: {error}") from None

    def _rounds(self) -> list[int]:
        """Return the rounds of the checkpoints that exist, whole or not, newest first."""
        names = [path.name for path in self.directory.iterdir()]
        rounds = [int(name[1]) for name in map(_NAME.fullmatch, names) if name]
        return sorted((round for round in rounds if self._final(round).name in names), reverse=True)

    def _final(self, round: int) -> Path:
        return self.directory / f"round-{round:06d}"

    def _aside(self, round: int) -> Path:
        return self.directory / f"round-{round:06d}.tmp"


def _tensor_file(instance: InstanceId) -> str:
    return f"instance-{instance}.safetensors"


def _meta_file(instance: InstanceId) -> str:
    return f"instance-{instance}.json"


def _measure(path: Path) -> FileRecord:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(size_bytes=file.tell(), sha256=Digest(sha256))


def _in_envelope(manifest: Manifest) -> bytes:
    return canonical.encode({"manifest": canonical.to_plain(manifest), "sha256": canonical.digest(manifest)})
