"""Every error of the node, by its origin. `error_codes.py` has the cause and the remedy of each code.

AdlocoError
  ConfigError                 the user's: every problem is listed; exit 2
  ProtocolError
    LocalProtocolError        ours: a bug; crash, the supervisor restarts
    RemoteProtocolError       theirs: drop the message, count it against the peer
  SwarmError                  the network's: retried until a deadline, then an event
    AveragingError            an averaging attempt ended without a result
      ContributionNotShown    a contributor did not show what it had committed itself to
    ProtocolOutgrown          the run needs a newer version: the user's to upgrade
    StateTransferFailed       no donor could serve the requested state
    NoNodeError               no node runs where a verb looks for one: the user's; exit 2
  TaskScoringFailed           this machine's: the run's tasks cannot be scored here; training goes on
  StorageError                the disk's: refuse to start, or stop cleanly; never train on without durability
  DeviceError                 the machine's: even one sample does not fit the device
  ShardLost                   a process that held a part of the model ended: the supervisor restarts
"""

from adloco_p2p.error_codes import ERROR_CODES


class AdlocoError(Exception):
    """Base of all; `exit_code` is what the process ends with when the error reaches the user, `code` its entry in the table,
    whose remedy a traceback shows below the message."""

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
    """We broke the protocol ourselves: a bug."""


class RemoteProtocolError(ProtocolError):
    """A remote peer sent something that no honest peer of this run and version sends."""

    exit_code = 3
    code = "E313"


class SwarmError(AdlocoError):
    """The network did not deliver; worth another try."""

    exit_code = 3
    code = "E301"


class AveragingError(SwarmError):
    """An averaging attempt ended without a result; `suspects` are the peers that did not answer. `because`: the member whose
    report ended it here; then the suspects are those that it names."""

    code = "E310"

    def __init__(self, reason: str, *, suspects: tuple[str, ...] = (), because: str | None = None) -> None:
        super().__init__(reason)
        self.suspects = suspects
        self.because = because
        self.upload_bytes_per_second = 0.0
        """Of this peer, where it is a suspect and was still sending, and then the bytes of its vector; else 0."""
        self.vector_bytes = 0


class ContributionNotShown(AveragingError):
    """A contributor was asked in time, and did not show the contribution that it committed itself to."""


class ProtocolOutgrown(SwarmError):
    """The run follows a newer protocol than the installed version. No other try helps."""

    code = "E316"


class StateTransferFailed(SwarmError):
    """The requested state could not be fetched from any donor."""

    code = "E311"


class NoNodeError(SwarmError):
    """No node runs in the directory that a verb names. A waiting verb tries again, as with what the network lost."""

    exit_code = 2
    code = "E225"


class TaskScoringFailed(AdlocoError):
    """The model could not be scored on the run's tasks on this machine; the message has the reason. Others may be able to."""


class StorageError(AdlocoError):
    """Disk full, unreadable, or not ours. Nothing was overwritten."""

    exit_code = 4
    code = "E401"


class DeviceError(AdlocoError):
    """The device cannot do the smallest piece of work."""

    exit_code = 5
    code = "E501"


class ShardLost(AdlocoError):
    """A process that held a part of the model ended, or did not answer. The same command goes on from the last checkpoint."""

    code = "E103"


def brief(error: BaseException) -> str:
    """The message of a library's error, on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
