"""File descriptors for streams of other peers: how many they may take; the others belong to checkpoints, the journal and the
daemon."""

import resource

WANTED_DESCRIPTORS = 4096
"""The limit that this process asks the system for, where its own is lower."""
RESERVED_DESCRIPTORS = 512
"""For files, the page, the daemon, and streams that this peer opens itself."""
LEAST_STREAMS = 256
"""However low the limit is: below this no average of a small swarm works."""


def places_for_streams(wanted: int) -> int:
    """Raise this process's limit where that is allowed; returns how many streams may be accepted in all, at most `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    aim = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < aim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        soft = aim
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(LEAST_STREAMS, min(wanted, soft - RESERVED_DESCRIPTORS))
