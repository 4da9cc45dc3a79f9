"""The cost of the gradient statistics: measured inner steps against plain ones, taken in turns in one run.

python -m benchmarks.statistics_cost            the embedded default's model on one CPU thread; under a minute
"""

import sys
import time

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.accumulation import accumulate_gradient
from adloco_p2p.training.inner_loop import STATISTICS_PERIOD
from adloco_p2p.training.inner_optimizer import inner_optimizer
from adloco_p2p.training.instance import Instance
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell

VOCAB_SIZE = 259
PAIRS = 8
"""Steps of each kind per setting. The fastest processor times are compared, since other processes only ever slow one down."""
SETTINGS = ((2, 2), (4, 4), (8, 8), (8, 4), (8, 2))
"""(batch, micro-batch) in samples."""


def main() -> None:
    torch.set_num_threads(1)
    run = RunConfig()
    length = run.data.sequence_length
    module = build_model(run.model, vocab_size=VOCAB_SIZE, sequence_length=length, seed=1)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    instance = Instance(
        torch.randn(shell.layout.num_parameters) * 0.02,
        momentum=None,
        device=shell.device,
        new_optimizer=lambda local: inner_optimizer(run.inner, local, shell.layout, matrices=shell.matrices),
    )
    shell.bind(instance.local)
    sys.stdout.write(
        f"{shell.layout.num_parameters} parameters, {length} tokens, one step in {STATISTICS_PERIOD} is measured\n"
    )
    sys.stdout.write("batch  micro  plain ms  measured ms  measured/plain  cost over the run\n")
    for batch, micro in SETTINGS:
        plain, measured = _fastest(shell, instance, batch=batch, micro=micro, length=length)
        cost = (measured / plain - 1) / STATISTICS_PERIOD
        sys.stdout.write(
            f"{batch:5d}  {micro:5d}  {plain * 1e3:8.1f}  {measured * 1e3:11.1f}  {measured / plain:14.3f}  {cost:17.2%}\n"
        )


def _fastest(shell: ModelShell, instance: Instance, *, batch: int, micro: int, length: int) -> tuple[float, float]:
    """Return the processor seconds of a plain and of a measured inner step."""
    ids = torch.randint(VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(batch))
    rows = Batch(input_ids=ids, labels=ids)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * PAIRS + 2):
        is_measured = turn % 2 == 1
        started = time.process_time()
        accumulate_gradient(shell, rows, micro_batch=micro, is_measured=is_measured)
        torch.nn.utils.clip_grad_norm_(shell.parameters, 1.0)
        instance.inner_step(shell.gradient, 1e-4)
        if turn >= 2:  # the first of each kind warms up
            seconds[is_measured].append(time.process_time() - started)
    return min(seconds[False]), min(seconds[True])


if __name__ == "__main__":
    main()
