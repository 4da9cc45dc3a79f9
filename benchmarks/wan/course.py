"""The course of a laboratory's run: what its links carried, and how busy the machine was."""

import bisect
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import psutil

from benchmarks.method.store import Record
from benchmarks.wan.lab import Counters, Laboratory


@dataclass(slots=True)
class Course:
    """The state of links and machine in the course of a run, sampled."""

    times: list[float] = field(default_factory=list)
    """Unix seconds."""
    counters: list[Mapping[str, Counters]] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """Load of the whole machine, over a minute."""
    busy: list[float] = field(default_factory=list)
    """Share of the processors' time since the last sample."""

    def look(self, lab: Laboratory) -> None:
        self.times.append(time.time())
        self.counters.append(lab.counters())
        self.loads.append(os.getloadavg()[0])
        self.busy.append(psutil.cpu_percent() / 100)

    def sent_until(self, host: str, instant: float) -> float:
        """Return the bytes in IP packets, interpolated between two samples."""
        after = min(max(1, bisect.bisect(self.times, instant)), len(self.times) - 1)
        (begun, ended), (before, now) = (
            [values[after - 1], values[after]] for values in (self.times, [c[host].sent_bytes for c in self.counters])
        )
        return before + (now - before) * (instant - begun) / (ended - begun)

    def machine(self, inside: Sequence[int]) -> Record:
        """Return load and share of busy processors in these samples, and the share of late packets in the whole run."""
        last = self.counters[-1].values()
        return {
            "load": round(fmean(self.loads[number] for number in inside), 1),
            "busy": round(fmean(self.busy[number] for number in inside), 2),
            "late": round(sum(item.late for item in last) / max(1, sum(item.received_packets for item in last)), 4),
        }
