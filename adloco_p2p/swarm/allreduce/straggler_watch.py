"""The contributors without which one reducer ends an attempt: the others are here, and theirs take too long."""

from adloco_p2p.core.model.quorum import Quorum, Upload, is_there, stragglers, words_of
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.uploads import Uploads

LOOK_SECONDS = 0.5


class StragglerWatch:
    """Looks at the uploads again and again; see `core/model/quorum.py`."""

    def __init__(self, spec: AllReduceSpec, quorum: Quorum, uploads: Uploads, now: float) -> None:
        """Instants are in seconds."""
        self._spec, self._quorum, self._uploads = spec, quorum, uploads
        self._last = self._since = now
        """Of the last look, and since when all contributors have begun."""
        self._waited_seconds = 0.0
        """Since then, with the quorum here."""

    def look(self, now: float) -> dict[int, str]:
        """The members without which the attempt ends, and why."""
        uploads = [self._uploads.of(member, now) for member in self._spec.contributors]
        passed, self._last = now - self._last, now
        if passed > 4 * LOOK_SECONDS:  # this process did not run: what has come in may wait to be read
            return {}
        if not all(upload.is_there or upload.seconds for upload in uploads):
            self._since, self._waited_seconds = now, 0.0
            return {}
        if is_there(self._quorum, uploads):
            self._waited_seconds += passed
        found = stragglers(self._quorum, uploads, waiting=self._waiting(uploads, now))
        return {
            self._spec.contributors[place]: words_of(uploads[place], self._quorum, round=self._spec.round) for place in found
        }

    def _waiting(self, uploads: list[Upload], now: float) -> float:
        if all(upload.rest_bytes == 0 for upload in uploads if upload.is_there):
            return 1.0
        return min(1.0, self._waited_seconds / max(now - self._since, LOOK_SECONDS))
