"""The averaging attempts that this peer has begun, over restarts, so that it signs nothing twice under one attempt's key.

A peer that was restarted in the middle of a round trains again and has another contribution. If it sent that under the old key,
it would have signed two commitments, which is evidence against it; so it fails that attempt, and takes part in the next one.
"""

from pathlib import Path
from threading import Lock

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.storage.disk import read_text, replace_file, reported

_KEYS_KEPT = 256
"""The number of newest keys that stay, more than a plan has attempts, in all instances, before all peers drop it."""


class AttemptKeys:
    """The file of begun attempts: one key per line, oldest first."""

    def __init__(self, path: Path) -> None:
        """Read the file, if it exists. Raises StorageError."""
        self._path = path
        self._lock = Lock()
        self._keys = dict.fromkeys(read_text(path).split())

    def begin(self, key: Digest) -> bool:
        """Persist that the attempt begins; return false if it was begun before. Any thread may call it. Raises StorageError."""
        with self._lock, reported(self._path):
            if key in self._keys:
                return False
            self._keys[key] = None
            while len(self._keys) > _KEYS_KEPT:
                del self._keys[next(iter(self._keys))]
            replace_file(self._path, "".join(f"{known}\n" for known in self._keys).encode("ascii"))
            return True
