"""The training room on a real GPU, where the machine has one: what it makes is what the processor makes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adloco_p2p.config.run_config import LoraConfig, ModelConfig
from adloco_p2p.core.model.scalars import InstanceId
from tests.training.small_run import RUN, hosting
from tests.training.test_adapters import save_base
from tests.training.test_on_a_gpu import GPU, RUNS, Documents, life, start

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
CARD = replace(GPU, tf32=False)
_TOLERANCE, _BASE_TOLERANCE = 0.01, 0.03
"""Of the norm of a difference: Adam makes much of a gradient that is nothing but rounding. The second is for adapters, whose
base is in bfloat16: 0.0105 on an H200."""


def check_equal(
    found: dict[InstanceId, dict[str, torch.Tensor]],
    expected: dict[InstanceId, dict[str, torch.Tensor]],
    *,
    tolerance: float = _TOLERANCE,
) -> None:
    assert found.keys() == expected.keys()
    for instance, tensors in expected.items():
        assert found[instance].keys() == tensors.keys()
        for name, tensor in tensors.items():
            own = found[instance][name]
            assert own.device.type == "cpu", f"{name} is still on the GPU"
            error, norm = float((own.float() - tensor.float()).norm()), float(tensor.float().norm())
            assert error <= tolerance * norm + 1e-6, (instance, name, error, norm)


@pytest.mark.parametrize("name", RUNS)
def test_a_gpu_trains_as_the_processor_does(name: str) -> None:
    is_ahead = name == "ahead"
    check_equal(life(hosting(RUNS[name], peer=CARD), is_ahead=is_ahead), life(hosting(RUNS[name]), is_ahead=is_ahead))


def test_so_does_a_model_with_adapters_whose_activations_are_recomputed(tmp_path: Path) -> None:
    run = replace(RUN, model=ModelConfig(pretrained=str(save_base(tmp_path)), lora=LoraConfig(rank=2)))
    found = life(hosting(run, peer=replace(CARD, activation_checkpointing=True)))
    check_equal(found, life(hosting(run)), tolerance=_BASE_TOLERANCE)


def test_so_does_a_model_on_packed_documents() -> None:
    check_equal(life(hosting(peer=CARD, feed=Documents())), life(hosting(feed=Documents())))


def test_a_node_trains_alone_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(tmp_path, devices="auto") == 0
    printed = capsys.readouterr().out
    assert "device cuda:0" in printed and "fork" in printed and "trained   rounds 2/2" in printed
