"""Rows of several documents: each is read as if it were alone."""

import itertools
from pathlib import Path

import pytest
import torch

from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.shell import ModelShell
from tests.training.small_run import LENGTH, VOCAB_SIZE
from tests.training.test_adapters import ARCHITECTURES, build, save_base

CUTS = [(0, 9, LENGTH), (0, 20, LENGTH)]
"""Where the two documents of each row begin and end."""


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_losses_of_packed_documents_are_those_of_the_documents_alone(model_type: str, rank: int, tmp_path: Path) -> None:
    module = build(save_base(tmp_path, model_type), rank=rank)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    ids = torch.randint(VOCAB_SIZE, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.stack([torch.cat([torch.arange(b - a), torch.arange(c - b)]) for a, b, c in CUTS])
    for training in (False, True):
        shell.module.train(training)
        packed = shell.token_losses(Batch(input_ids=ids, labels=ids, positions=positions))
        across = shell.token_losses(Batch(input_ids=ids, labels=ids))
        for row, cuts in enumerate(CUTS):
            for start, stop in itertools.pairwise(cuts):
                part = ids[row : row + 1, start:stop]
                alone = shell.token_losses(Batch(input_ids=part, labels=part))
                assert (packed[row, start : stop - 1] - alone[0, :-1]).abs().max() < 1e-4
            assert (across - packed)[row, cuts[1] :].abs().max() > 1e-2
