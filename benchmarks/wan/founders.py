"""A run of real nodes in a laboratory, all of them founders: they begin together, and no state is sent at the start."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adloco_p2p.swarm.p2p.identity import Identity
from benchmarks.nodes import Member, end, llama, problems_of, write_document
from benchmarks.wan.course import Course
from benchmarks.wan.lab import Laboratory, Link, begin_in

LOOK_SECONDS = 0.25
LENGTH = 64
"""Tokens of a sample of the small run."""
SMALL_RUN: dict[str, Any] = {
    "model": {"architecture": llama(width=96, layers=2, heads=3, intermediate=256)},
    "data": {"sequence_length": LENGTH},
    "merge": {"policy": "none"},
    "averaging": {"codec": "int8", "aggregation": "mean"},
    "admission": {"kind": "open", "probation_rounds": 0},
}
"""The sections that runs of a small model on the embedded text have in common: few cores train it on several nodes."""


def conduct(
    links: Sequence[Link],
    out: Path,
    document: dict[str, Any],
    *,
    program: Callable[[str], Sequence[object]],
    settings: Sequence[str],
    minutes: float,
) -> tuple[list[Member], Course]:
    """Run a peer on each link to the end of the run. `out`: the directory of the run, which exists; `document`: the run's
    configuration without the founders; `program`: of a host, as in `node_command`. Raises SystemExit where a peer fails, or is
    late."""
    course, deadline = Course(), time.monotonic() + 60 * minutes
    hosts = [link.name for link in links]
    founders = []
    for host in hosts[1:]:
        (out / host).mkdir()
        founders.append(Identity.load_or_create(out / host / "identity.key").peer_id)
    config = write_document(out, {**document, "founders": founders})
    with Laboratory(links) as lab:

        def begin(host: str, *arguments: object) -> Member:
            return begin_in(lab, out, host, *arguments, program=program(host), settings=settings)

        members = [begin(hosts[0], "start", config)]
        try:
            join = ("join", "--initial-peers", *members[0].addresses(deadline=deadline))
            members += [begin(host, *join) for host in hosts[1:]]
            while any(member.is_alive for member in members) and time.monotonic() < deadline:
                course.look(lab)
                time.sleep(LOOK_SECONDS)
            problems = problems_of(members, minutes=minutes)
        finally:
            end(members, seconds=5.0)
    if problems:
        sys.exit(f"{document['name']}: {'; '.join(problems)}; see {out}")
    return members, course
