"""Does the pseudo-gradient statistic stand hosts that do different numbers of inner steps? On the benchmark's small model.

python -m benchmarks.uneven_steps                        8 hosts of one row a step; some minutes of an idle core
python -m benchmarks.uneven_steps --hosts 16 --repeats 2

A run of DiLoCo (AdamW inside, clip 1, Nesterov outside, as benchmarks/method/base.yaml) is branched before some of its rounds.
Each branch does that round with other numbers of steps on other rows, several times. Compared with the branch of equal steps:
noise over signal by the node's own formula (`core/planning/pseudo_gradient_noise.py`), and by the plain one, which takes the
average itself from every host, whatever its steps. Both are ratios of sums over the repeats.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum

import numpy as np
import torch

from adloco_p2p.core.planning.pseudo_gradient_noise import Contribution, noise_of
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.method.run import indexed, load_base

STEPS = 32
ROUNDS = 24
BRANCHED = (3, 9, 15, 21)
"""Rounds of the run that are branched."""
SPREADS = {"equal": (32, 32), "24 to 40": (24, 40), "16 to 48": (16, 48), "8 to 64": (8, 64)}
"""Fewest and most steps, evenly over the hosts; in the last spread evenly in their logarithm, mean 32 or near."""


@dataclass(slots=True)
class Host:
    """AdamW's state of one host, which it keeps over the rounds."""

    first: torch.Tensor  # [P]
    second: torch.Tensor  # [P]
    count: int = 0

    def copy(self) -> "Host":
        return Host(self.first.clone(), self.second.clone(), self.count)


@dataclass(slots=True)
class Task:
    """The model, its rows, and the training of a host."""

    shell: ModelShell
    rows: IndexedRows
    chance: random.Random
    rate: float = 6e-3
    decay: float = 1.0
    betas: tuple[float, float] = field(default=(0.9, 0.95))

    def pseudo_gradient(self, outer: torch.Tensor, host: Host, *, steps: int, batch: int) -> torch.Tensor:
        """Return the pseudo-gradient of a host that does `steps` inner steps of `batch` rows from `outer` [P]; advances the
        host's state."""
        local = outer.clone()
        self.shell.bind(local)
        for _ in range(steps):
            self.shell.gradient.zero_()
            training = self.rows.training
            rows = training.gather(np.array([self.chance.randrange(training.num_rows) for _ in range(batch)]))
            (self.shell.weighted_loss(rows)[0] / rows.num_predicted_tokens).backward()
            gradient = self.shell.gradient * min(1.0, 1.0 / (float(self.shell.gradient.norm()) + 1e-6))
            host.count += 1
            host.first.lerp_(gradient, 1 - self.betas[0])
            host.second.lerp_(gradient * gradient, 1 - self.betas[1])
            rate = self.rate * self.decay * min(1.0, host.count / 64)
            first = host.first / (1 - self.betas[0] ** host.count)
            second = host.second / (1 - self.betas[1] ** host.count)
            local.mul_(1 - 0.1 * rate).addcdiv_(first, second.sqrt().add_(1e-8), value=-rate)
        return outer - local


def steps_of(spread: tuple[int, int], num_hosts: int) -> list[int]:
    """Return the number of steps of each host."""
    fewest, most = spread
    parts = [index / (num_hosts - 1) for index in range(num_hosts)]
    if most >= 8 * fewest:
        return [round(fewest * (most / fewest) ** part) for part in parts]
    return [round(fewest + (most - fewest) * part) for part in parts]


def scalars(vectors: Sequence[torch.Tensor], steps: Sequence[int], batch: int) -> tuple[list[Contribution], float]:
    """Return the hosts' statistics of their pseudo-gradients, and the squared norm of the average."""
    total = sum(steps)
    average = torch.stack([vector * (count / total) for vector, count in zip(vectors, steps, strict=True)]).sum(0)
    found = [
        Contribution(
            steps=count,
            batch=batch,
            samples=float(count * batch),
            sqnorm=float(vector.double().square().sum()),
            product=float(vector.double() @ average.double()),
        )
        for vector, count in zip(vectors, steps, strict=True)
    ]
    return found, float(average.double().square().sum())


def ratios(rounds: Sequence[tuple[list[Contribution], float]]) -> tuple[float, float]:
    """Return noise over signal by the node's formula and by the plain one, from sums over rounds."""
    samples = [noise_of(found, averaged, num_hosts=len(found)) for found, averaged in rounds]
    ours = fsum(s.noise for s in samples) / fsum(s.signal for s in samples)
    plain_noise = []
    for found, averaged in rounds:
        total = fsum(item.samples for item in found)
        plain_noise.append((fsum(item.samples * item.sqnorm for item in found) / total - averaged) / (len(found) - 1))
    plain = fsum(plain_noise) / (fsum(averaged for _, averaged in rounds) - fsum(plain_noise))
    return ours, plain


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uneven_steps", description=__doc__)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1, help="rows of a host's inner step")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = load_base()
    rows, vocab_size = indexed()
    module = build_model(run.model, vocab_size=vocab_size, sequence_length=run.data.sequence_length, seed=arguments.seed)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    outer = torch.cat([parameter.detach().reshape(-1) for parameter in shell.parameters])
    task = Task(shell=shell, rows=rows, chance=random.Random(arguments.seed))
    hosts = [Host(torch.zeros_like(outer), torch.zeros_like(outer)) for _ in range(arguments.hosts)]
    momentum = torch.zeros_like(outer)
    print("| round | " + " | ".join(f"{name}: node, plain" for name in SPREADS) + " |\n" + "|---" * (1 + len(SPREADS)) + "|")
    for round_number in range(ROUNDS):
        if round_number in BRANCHED:
            cells = []
            equal = (1.0, 1.0)
            for name, spread in SPREADS.items():
                steps = steps_of(spread, arguments.hosts)
                rounds = []
                for _ in range(arguments.repeats):
                    task.chance.shuffle(steps)
                    vectors = [
                        task.pseudo_gradient(outer, host.copy(), steps=count, batch=arguments.batch)
                        for host, count in zip(hosts, steps, strict=True)
                    ]
                    rounds.append(scalars(vectors, steps, arguments.batch))
                found = ratios(rounds)
                equal = found if name == "equal" else equal
                cells.append(
                    f"T {found[0]:.3f}" if name == "equal" else f"{found[0] / equal[0]:.2f}, {found[1] / equal[1]:.2f}"
                )
            print(f"| {round_number} | " + " | ".join(cells) + " |", flush=True)
        vectors = [task.pseudo_gradient(outer, host, steps=STEPS, batch=arguments.batch) for host in hosts]
        average = torch.stack(vectors).mean(0)
        momentum = 0.5 * momentum + average
        outer = outer - 0.7 * (average + 0.5 * momentum)


if __name__ == "__main__":
    main()
