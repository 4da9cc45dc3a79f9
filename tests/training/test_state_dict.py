"""State dicts of training scripts: what is read, what is refused, and that nothing of them is run."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.errors import ConfigError
from adloco_p2p.training.model import build_model
from adloco_p2p.training.state_dict import common_dtype, load_state_dict_, read_state_dict

SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}


def model(seed: int, **changes: Any) -> transformers.PreTrainedModel:
    return build_model(ModelConfig(architecture=SIZES | changes), vocab_size=33, sequence_length=16, seed=seed)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_what_training_scripts_write_is_read(wrapper: str | None, prefix: str, tmp_path: Path) -> None:
    source, target = model(1), model(2)
    written: Any = {f"{prefix}{name}": value for name, value in source.state_dict().items()}
    torch.save(written if wrapper is None else {wrapper: written, "step": 7}, tmp_path / "weights.pt")
    load_state_dict_(target, read_state_dict(tmp_path / "weights.pt"), source="weights.pt")
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in target.state_dict().items())


def test_safetensors_without_the_tied_head_are_read(tmp_path: Path) -> None:
    source, target = model(1), model(2)
    written = {name: value.bfloat16() for name, value in source.state_dict().items() if name != "lm_head.weight"}
    safetensors.torch.save_file(written, tmp_path / "weights.safetensors")
    given = read_state_dict(tmp_path / "weights.safetensors")
    load_state_dict_(target, given, source="weights.safetensors")
    head = target.state_dict()["lm_head.weight"]
    assert torch.equal(head, source.state_dict()["lm_head.weight"].bfloat16().float())
    assert common_dtype(given) == torch.bfloat16


def test_names_shapes_ties_and_values_are_checked() -> None:
    good = model(1).state_dict()
    wider = model(1, intermediate_size=48, num_hidden_layers=2).state_dict()
    untied = good | {"lm_head.weight": good["lm_head.weight"] + 1}
    broken = good | {"model.norm.weight": torch.full((16,), torch.nan)}
    missing = {name: value for name, value in good.items() if "norm" not in name}
    for given, problem in (
        (wider, r"9 tensors that the model does not have: model\.layers\.1\..* and 6 more; check model\.architecture"),
        (wider, r"3 tensors of another shape: .*down_proj\.weight \[16, 48\] instead of \[16, 32\]"),
        (missing, r"3 tensors missing: .*model\.norm\.weight"),
        (untied, r"1 tensors tied to another one in the model and unequal to it here"),
        (broken, r"1 tensors whose values are not finite: model\.norm\.weight"),
    ):
        with pytest.raises(ConfigError, match=f"--weights f: {problem}") as refused:
            load_state_dict_(model(2), given, source="f")
        assert refused.value.code == "E209"


class _Runs:
    """Becomes a file when it is unpickled by a reader that runs what it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    torch.save({"weight": _Runs(tmp_path / "ran")}, tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="no state dict can be read: it holds other things than tensors") as refused:
        read_state_dict(tmp_path / "weights.pt")
    assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"not a state dict", b"a plain text", b"PK\x03\x04"])
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_other_files_are_refused(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match="no state dict can be read"):
        read_state_dict(tmp_path / name)


@pytest.mark.parametrize("content", [{"step": 7, "lr": 0.1}, {0: torch.ones(1)}, {}])
def test_other_things_than_tensors_are_refused(content: dict[Any, Any], tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match="other things than tensors by name"):
        read_state_dict(tmp_path / "weights.pt")
