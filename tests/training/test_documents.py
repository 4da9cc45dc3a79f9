"""Rows of several documents: each is read as if it were alone."""

import itertools
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

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


@pytest.mark.parametrize("rank", [0, 2])
def test_a_compiled_model_computes_the_same_without_a_break(rank: int, tmp_path: Path) -> None:
    """Whole rows, rows of documents, another number of rows, and another instance's parameters; traced, and run as traced."""
    module = build(save_base(tmp_path, "llama"), rank=rank)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    ids = torch.randint(VOCAB_SIZE, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)]).expand(3, -1)
    batches = [Batch(input_ids=ids[:n], labels=ids[:n], positions=p) for n, p in ((2, None), (2, positions[:2]), (3, None))]
    instances = [torch.cat([p.detach().flatten() for p in shell.parameters]) * scale for scale in (1.0, 0.9)]

    def computed() -> list[torch.Tensor]:
        found = []
        for flat in instances:
            shell.bind(flat)
            for batch in batches:
                shell.gradient.zero_()
                losses = shell.token_losses(batch)
                losses.sum().backward()
                found += [losses.detach(), shell.gradient.clone()]
        return found

    plain = computed()
    counters.clear()
    torch._dynamo.reset()
    shell.compile(backend="aot_eager")
    for ours, theirs in zip(computed(), plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not counters["graph_break"] and 0 < counters["stats"]["unique_graphs"] <= len(batches) + 1
