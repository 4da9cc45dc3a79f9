"""Every error of the node, by its origin. `error_codes.py` has the cause and the remedy of each code.

AdlocoError
  ConfigError                 the user's: every problem is listed; exit 2
  ProtocolError
    LocalProtocolError        ours: a bug; crash, the supervisor restarts
    RemoteProtocolError       theirs: drop the message, count it against the peer
  SwarmError                  the network's: retried until a deadline, then an event
    AveragingError            an averaging attempt ended without a result
      ContributionNotShown    a contributor did not show what it had committed itself to
    DaemonSilent              one call to the p2p daemon failed, and the daemon lives: repeated work skips a turn
    ProtocolOutgrown          the run needs a newer version: the user's to upgrade
    StateTransferFailed       no donor could serve the requested state
    RunNotHeld                no peer that answers has the run: most likely a wrong link
    NoNodeError               no node runs where a verb looks for one: the user's; exit 2
  TaskScoringFailed           this machine's: the run's tasks cannot be scored here; training goes on
  StorageError                the disk's: refuse to start, or stop cleanly; never train on without durability
  DeviceError                 the machine's: even one sample does not fit the device
  ShardLost                   a process that held a part of the model ended: the supervisor restarts
"""

import errno

from adloco_p2p.error_codes import ERROR_CODES


class AdlocoError(Exception):
    """The base class of all errors. `exit_code`: the process ends with it when the error reaches the user. `code`: the error's
    entry in the table, whose remedy a traceback shows below the message."""

    exit_code = 1
    code = "E101"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code
        assert self.code in ERROR_CODES and self.code[1] == str(self.exit_code), self.code
        self.add_note(f"{self.code}, remedy: {ERROR_CODES[self.code].remedy}")


class ConfigError(AdlocoError):
    """The user's input cannot be used. Holds every problem found, not only the first."""

    exit_code = 2
    code = "E201"

    def __init__(self, *problems: str, code: str | None = None) -> None:
        assert problems
        super().__init__("\n".join(problems), code=code)
        self.problems = problems


class ProtocolError(AdlocoError):
    """A message or a state that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """This node broke the protocol itself: a bug."""


class RemoteProtocolError(ProtocolError):
    """A remote peer sent something that no honest peer of this run and version sends."""

    exit_code = 3
    code = "E313"


class SwarmError(AdlocoError):
    """The network failed to deliver; another try may succeed."""

    exit_code = 3
    code = "E301"


class RunNotHeld(SwarmError):
    """Every peer that was asked for a run answers that it does not have it."""

    code = "E304"


class DaemonSilent(SwarmError):
    """One call to the p2p daemon failed, as when no descriptor is free, but the daemon lives. The next call may succeed."""

    code = "E306"


class AveragingError(SwarmError):
    """An averaging attempt ended without a result. `suspects`: the peers that did not answer. `because`: the member whose
    report ended the attempt here; the suspects are then those of that report."""

    code = "E310"

    def __init__(self, reason: str, *, suspects: tuple[str, ...] = (), because: str | None = None) -> None:
        super().__init__(reason)
        self.suspects = suspects
        self.because = because
        self.upload_bytes_per_second = 0.0
        """The upload rate of this peer, if it is a suspect that was still sending, with the bytes of its vector below; else
        0."""
        self.vector_bytes = 0


class ContributionNotShown(AveragingError):
    """A contributor was asked in time, and did not show the contribution to which it was committed."""


class ProtocolOutgrown(SwarmError):
    """The run follows a newer protocol than the installed version; another try does not help."""

    code = "E316"


class StateTransferFailed(SwarmError):
    """The requested state could not be fetched from any donor."""

    code = "E311"


class NoNodeError(SwarmError):
    """No node runs in the directory that a verb names. A waiting verb tries again, as after failures of the network."""

    exit_code = 2
    code = "E225"


class TaskScoringFailed(AdlocoError):
    """The run's tasks could not be scored on this machine; the message has the reason. Other machines may be able to."""


class StorageError(AdlocoError):
    """The disk is full, unreadable, or not ours. Nothing was overwritten."""

    exit_code = 4
    code = "E401"


def storage_code(number: int | None) -> str | None:
    """Return the code of an operating system's error of a disk by its number, where there is a better one than E401."""
    return _STORAGE_CODES.get(number or 0)


_STORAGE_CODES = {
    errno.ENOSPC: "E402",
    errno.EDQUOT: "E402",
    errno.EACCES: "E403",
    errno.EPERM: "E403",
    errno.EROFS: "E403",
}


class DeviceError(AdlocoError):
    """The device cannot do the smallest piece of work."""

    exit_code = 5
    code = "E501"


class ShardLost(AdlocoError):
    """A process that held a part of the model ended, or did not answer. The same command goes on from the last checkpoint."""

    code = "E103"


def brief(error: BaseException) -> str:
    """Return the message of a library's error, on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
