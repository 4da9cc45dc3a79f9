"""The contributions that are to be told apart: of an honest host, and of hosts that spare themselves the training."""

from collections.abc import Sequence

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.numerics.batch import Batch
from benchmarks.robustness.training import Trainees, schedule_of

KINDS = ("honest", "slow", "shared", "quarter", "elsewhere", "copied", "replayed", "random", "tiny", "zero", "flipped")
"""As docs/results/robustness.md explains them. `slow` is honest, too: the plan gave it a quarter of the rows."""
QUARTER = 4
"""Rows over this are the quarter of them that `slow` was given and `quarter` trains on."""
_TINY = 0.01


class Senders:
    """n hosts, and each as every kind that trains. Hosts 2k and 2k + 1 are twins: as `shared`, two names of one person."""

    def __init__(self, run: RunConfig, *, vocab_size: int, num_hosts: int, batch: int) -> None:
        assert num_hosts % 2 == 0, "every host has a twin"
        self._run, self._batch = run, batch
        names = ("honest", "shared", "quarter", "elsewhere")
        self._trainees = {name: Trainees(run, vocab_size=vocab_size, num_hosts=num_hosts) for name in names}
        self.start = self._trainees["honest"].start  # [P]

    def trained(
        self, outer: torch.Tensor, given: Sequence[Batch], others: Sequence[Batch], number: int
    ) -> dict[str, torch.Tensor]:
        """Pseudo-gradients [n, P] of round `number` from `outer` [P]: trained on the rows that the plan gave each host, on
        every other row of both twins, on the first quarter of the rows given, and on as many others."""
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
    """What `host` has to send as each kind: [P] each. `before`: [P], the average of the round before."""
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
    """The rows of even places of both, in turn: as many as one has."""
    count = ours.num_samples
    return picked(joined(ours, theirs), torch.arange(0, 2 * count, 2).view(2, -1).T.flatten())
