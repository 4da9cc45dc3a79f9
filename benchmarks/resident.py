"""The kernel's counts of a process's memory (Linux)."""

import re
from pathlib import Path


def peak_bytes(pid: int) -> int:
    """Return the high-water mark of resident memory since the process began, or since `reset_peak`; 0 once it has ended."""
    return _status(pid).get("VmHWM", 0)


def resident_bytes(pid: int) -> tuple[int, int]:
    """Return the resident bytes of its own, and of pages of files (libraries, mapped weights), which the kernel may drop and
    read again."""
    status = _status(pid)
    return status.get("RssAnon", 0) + status.get("RssShmem", 0), status.get("RssFile", 0)


def reset_peak(pid: int) -> None:
    """Reset the high-water mark to the present resident memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int) -> dict[str, int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
