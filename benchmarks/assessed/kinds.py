"""The kinds of contributions that a score should tell apart: those of an honest host, and of hosts that avoid the training."""

from collections.abc import Sequence

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.numerics.batch import Batch
from benchmarks.robustness.training import Trainees, schedule_of

KINDS = ("honest", "slow", "shared", "quarter", "elsewhere", "copied", "replayed", "random", "tiny", "zero", "flipped")
"""The kinds, as docs/results/robustness.md explains them. `slow` is honest, too: the plan gave it a quarter of the rows."""
QUARTER = 4
"""The divisor of the rows: `slow` was given, and `quarter` trains on, the rows over this."""
_TINY = 0.01


class Senders:
    """n hosts, each as every kind that trains. Hosts 2k and 2k + 1 are twins: as `shared`, two names of one person."""

    def __init__(self, run: RunConfig, *, vocab_size: int, num_hosts: int, batch: int) -> None:
        assert num_hosts % 2 == 0, "every host has a twin"
        self._run, self._batch = run, batch
        names = ("honest", "shared", "quarter", "elsewhere")
        self._trainees = {name: Trainees(run, vocab_size=vocab_size, num_hosts=num_hosts) for name in names}
        self.start = self._trainees["honest"].start  # [P]

    def trained(
        self, outer: torch.Tensor, given: Sequence[Batch], others: Sequence[Batch], number: int
    ) -> dict[str, torch.Tensor]:
        """Return the pseudo-gradients [n, P] of round `number` from `outer` [P] by kind: trained on the rows that the plan gave
        each host, on every other row of both twins, on the first quarter of the given rows, and on as many other rows."""
        rows = {
            "honest": list(given),
            "shared": [woven(given[host], given[host ^ 1]) for host in range(len(given))],
            "quarter": [one.rows(0, one.num_samples // QUARTER) for one in given],
            "elsewhere": list(others),
        }
        schedule = schedule_of(self._run, number)
        return {
            name: outer - trainees.inner_round(outer, rows[name], schedule, batch=self._batch)
            for name, trainees in self._trainees.items()
        }


def of_all_kinds(
    host: int, trained: dict[str, torch.Tensor], before: torch.Tensor, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return what `host` would send as each kind: [P] each. `before`: [P], the average of the round before."""
    honest = trained["honest"]
    norm = honest[host].norm()
    noise = torch.randn(honest.shape[1], generator=generator)
    noise *= norm / noise.norm()
    return {
        "honest": honest[host],
        "slow": trained["quarter"][host],
        "shared": trained["shared"][host],
        "quarter": trained["quarter"][host] * (norm / trained["quarter"][host].norm()),
        "elsewhere": trained["elsewhere"][host],
        "copied": honest[(host + 1) % len(honest)],
        "replayed": before * (norm / before.norm()),
        "random": noise,
        "tiny": _TINY * noise,
        "zero": torch.zeros_like(noise),
        "flipped": -honest[host],
    }


def joined(ours: Batch, theirs: Batch) -> Batch:
    return Batch(input_ids=torch.cat([ours.input_ids, theirs.input_ids]), labels=torch.cat([ours.labels, theirs.labels]))


def picked(rows: Batch, places: torch.Tensor) -> Batch:
    return Batch(input_ids=rows.input_ids[places], labels=rows.labels[places])


def woven(ours: Batch, theirs: Batch) -> Batch:
    """Return the rows at even places of both, in turn: as many as each of them has."""
    count = ours.num_samples
    return picked(joined(ours, theirs), torch.arange(0, 2 * count, 2).view(2, -1).T.flatten())
