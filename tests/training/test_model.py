"""Building models: seeds, and refusals that name the setting."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig, Scalar
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.layout import flatten
from adloco_p2p.training.device import configure_devices, is_bfloat16, select_device
from adloco_p2p.training.model import build_model, check_texts_apart
from adloco_p2p.training.model_size import BYTES_PER_PARAMETER, check_size
from adloco_p2p.training.pretrained import load_pretrained, weights_digest
from adloco_p2p.training.seeds import derived_seed, initial_seed
from tests.training.small_run import ARCHITECTURE, with_run

HEADS: dict[str, dict[str, Scalar]] = {
    "llama": {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2},
    "gpt2": {"num_attention_heads": 2},
    "gemma2": {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    "qwen3": {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    "opt": {"ffn_dim": 32, "num_attention_heads": 2, "word_embed_proj_dim": 32},
    "falcon": {"num_attention_heads": 2},
}


def build(seed: int = 1, **architecture: Scalar) -> Any:
    """A model of transformers, which is not typed."""
    model = ModelConfig(architecture={**ARCHITECTURE, **architecture})
    return build_model(model, vocab_size=256, sequence_length=32, seed=seed)


def test_weights_follow_the_seed_and_leave_the_global_random_state_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = flatten(build(seed=1))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(4)
    assert torch.equal(first, flatten(build(seed=1)))
    assert not torch.equal(first, flatten(build(seed=2)))


def test_a_model_that_this_machine_cannot_hold_is_refused_before_it_is_built() -> None:
    """These sizes would take petabytes; each of them alone is in order."""
    with pytest.raises(ConfigError, match="GB to be trained") as refused:
        build(hidden_size=1 << 20, intermediate_size=1 << 22, num_attention_heads=64, num_key_value_heads=64)
    assert refused.value.code == "E217"


TRAINED: Any = {"setting": "model.architecture", "purpose": "trained", "bytes_each": BYTES_PER_PARAMETER}


def test_so_many_layers_that_building_them_would_not_end_are_refused() -> None:
    config = transformers.AutoConfig.for_model("mixtral", num_hidden_layers=2000, num_local_experts=2000)
    with pytest.raises(ConfigError, match="layers or experts") as refused:
        check_size(config, None, **TRAINED)
    assert refused.value.code == "E217"


def test_twenty_bytes_per_parameter_have_to_fit() -> None:
    config = build().config
    num_bytes = 20 * sum(parameter.numel() for parameter in build().parameters())
    check_size(config, num_bytes, **TRAINED)
    with pytest.raises(ConfigError, match="20 bytes per parameter"):
        check_size(config, num_bytes - 1, **TRAINED)


def test_instances_share_a_start_unless_they_start_different() -> None:
    for start, is_shared in (("fork", True), ("same", True), ("different", False)):
        run = with_run(instances=InstanceRules(start=start))  # type: ignore[arg-type]
        assert (initial_seed(run, InstanceId(0)) == initial_seed(run, InstanceId(1))) == is_shared


def test_derived_seeds_do_not_run_into_each_other() -> None:
    assert len({derived_seed(*parts) for parts in ((1, 23), (12, 3), (1, "23"), ("1", 23), (23, 1), (123,))}) == 6


@pytest.mark.parametrize(
    ("architecture", "named"),
    [
        ({"hidden_sise": 32}, "model.architecture.hidden_sise: llama has no such argument"),
        ({"model_type": "lama"}, "model.architecture.model_type: 'lama'"),
        ({"model_type": "vit"}, "model.architecture"),
        ({"hidden_size": "wide"}, "model.architecture: llama refuses it: .*hidden_size"),
        ({"num_attention_heads": 5}, "model.architecture: .*attention heads"),
        ({"hidden_size": -32}, "these sizes do not make a llama: hidden_size=-32 .*negative dimension"),
        ({"num_key_value_heads": 0}, "these sizes do not make a llama: .*num_key_value_heads=0"),
        ({"vocab_size": 99}, "model.architecture.vocab_size: follows from the tokenizer"),
        ({"max_position_embeddings": 16}, "model.architecture.max_position_embeddings: the model reads 16 tokens"),
    ],
)
def test_impossible_architectures_are_refused_by_name(architecture: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build(**architecture)


def test_every_unknown_argument_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        build(foo=1, bar=2)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["model.architecture.bar", "model.architecture.foo"]


def test_an_argument_that_transformers_translates_is_known() -> None:
    module = build(rope_theta=5e5)
    assert "500000" in str(module.config.to_dict())


def test_other_architectures_build_too() -> None:
    model = ModelConfig(architecture={"model_type": "gpt2", "n_embd": 32, "num_hidden_layers": 1, "n_head": 2})
    module = build_model(model, vocab_size=256, sequence_length=32, seed=1)
    assert module.config.max_position_embeddings == 32


@pytest.mark.parametrize(
    ("model_type", "is_apart"),
    [("llama", True), ("gpt2", True), ("gemma2", True), ("qwen3", True), ("opt", False), ("falcon", False), ("mamba", False)],
)
def test_a_model_in_which_texts_of_a_row_read_each_other_is_refused_where_they_must_not(
    model_type: str, is_apart: bool
) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2}
    model = ModelConfig(architecture={"model_type": model_type, **sizes, **HEADS.get(model_type, {})})
    module = build_model(model, vocab_size=256, sequence_length=32, seed=1).train()
    if is_apart:
        check_texts_apart(module, model)
    else:
        with pytest.raises(
            ConfigError, match=rf"model\.architecture: {model_type} lets a text read .*attention=row"
        ) as refused:
            check_texts_apart(module, model)
        assert refused.value.code == "E209"
    assert module.training and all(parameter.grad is None for parameter in module.parameters())


def test_a_pretrained_model_that_cannot_use_torchs_attention_gets_the_plain_one(tmp_path: Path) -> None:
    model = ModelConfig(architecture={"model_type": "gemma2", "hidden_size": 32, "num_hidden_layers": 1, **HEADS["gemma2"]})
    saved: Any = build_model(model, vocab_size=256, sequence_length=32, seed=1)
    saved.save_pretrained(tmp_path)
    loaded: Any = build_model(ModelConfig(pretrained=str(tmp_path)), vocab_size=256, sequence_length=32, seed=2)
    assert torch.equal(flatten(loaded), flatten(saved)) and loaded.config._attn_implementation == "eager"


def test_a_model_from_an_architecture_has_torchs_attention() -> None:
    assert build().config._attn_implementation == "sdpa"


@pytest.mark.parametrize("entry", ["attn_implementation", "_attn_implementation"])
def test_the_attention_that_a_pretrained_model_names_is_not_looked_for(entry: str, tmp_path: Path) -> None:
    """It could be a kernel to be fetched."""
    build().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: "some-one/kernel"}))
    loaded: Any = build_model(ModelConfig(pretrained=str(tmp_path)), vocab_size=256, sequence_length=32, seed=2)
    assert loaded.config._attn_implementation == "sdpa"


def test_pretrained_weights_are_the_start(tmp_path: Path) -> None:
    saved = build(seed=5)
    saved.to(torch.bfloat16).save_pretrained(tmp_path)
    model = ModelConfig(pretrained=str(tmp_path))
    loaded = build_model(model, vocab_size=256, sequence_length=32, seed=1)
    assert torch.equal(flatten(loaded), flatten(saved.float()))
    with pytest.raises(ConfigError, match=r"model\.pretrained: .*has 256 tokens, the tokenizer has 300"):
        build_model(model, vocab_size=300, sequence_length=32, seed=1)
    with pytest.raises(ConfigError, match=r"model\.pretrained: the model reads 32 tokens"):
        build_model(model, vocab_size=256, sequence_length=64, seed=1)


@pytest.mark.parametrize(
    ("sizes", "code", "reason"),
    [
        ({"num_hidden_layers": 20_000}, "E217", "20000 layers or experts"),
        ({"vocab_size": 1 << 40}, "E217", "GB to be loaded, 4 bytes per parameter"),
        ({"num_attention_heads": 0}, "E209", "cannot be loaded"),
        ({"num_hidden_layers": "many"}, "E209", "cannot be loaded"),
    ],
)
def test_a_pretrained_model_of_impossible_sizes_is_refused(
    tmp_path: Path, sizes: dict[str, object], code: str, reason: str
) -> None:
    """In a run of others its configuration comes with the weights, and anything may stand there."""
    build().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | sizes), "utf-8")
    with pytest.raises(ConfigError, match=rf"model\.pretrained: .*{reason}") as refused:
        build_model(ModelConfig(pretrained=str(tmp_path)), vocab_size=256, sequence_length=32, seed=1)
    assert refused.value.code == code


def test_a_model_of_text_and_images_reads_text(tmp_path: Path) -> None:
    """Gemma 3 from 4B on: the sizes of its text are in a part of its configuration."""
    text = {**HEADS["gemma2"], "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 32}
    image = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    config = transformers.Gemma3Config(text_config=text, vision_config=image, mm_tokens_per_image=4, image_token_index=255)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    model = ModelConfig(pretrained=str(tmp_path))
    module: Any = build_model(model, vocab_size=256, sequence_length=32, seed=1)
    assert module(input_ids=torch.zeros(1, 2, dtype=torch.int64)).logits.shape == (1, 2, 256)
    with pytest.raises(ConfigError, match="has 256 tokens, the tokenizer has 300"):
        build_model(model, vocab_size=300, sequence_length=32, seed=1)
    with pytest.raises(ConfigError, match="the model reads 32 tokens"):
        build_model(model, vocab_size=256, sequence_length=64, seed=1)


def with_header(path: Path, header: bytes) -> None:
    """A safetensors file with another header before the same bytes."""
    content = path.read_bytes()
    tensors = content[8 + int.from_bytes(content[:8], "little") :]
    path.write_bytes(len(header).to_bytes(8, "little") + header + tensors)


@pytest.mark.parametrize(
    "header",
    [
        json.dumps({f"t{i}": {"dtype": "U8", "shape": [1000], "data_offsets": [0, 1000]} for i in range(20_000)}).encode(),
        b'{"x":{"dtype":"U8","shape":[10],"data_offsets":[-50,-40]}}',
        b'{"x":{"dtype":"U8"}}',
        b'{"x":[]}',
        b"[]",
        b"[" * 100_000,
    ],
)
def test_weights_of_others_that_are_none_are_refused_before_their_bytes_are_read(tmp_path: Path, header: bytes) -> None:
    """With the first of them the same bytes were read for each of the tensors."""
    build().save_pretrained(tmp_path)
    with_header(tmp_path / "model.safetensors", header)
    with pytest.raises(ConfigError, match=r"model\.pretrained: .* cannot be loaded: Error while deserializing header"):
        weights_digest(ModelConfig(pretrained=str(tmp_path)))


@pytest.mark.parametrize("load", [weights_digest, load_pretrained])
def test_the_files_of_a_model_lead_to_no_others(tmp_path: Path, load: Callable[[ModelConfig], object]) -> None:
    """Neither to weights elsewhere on the machine, nor to adapters, which no digest covers, and their base."""
    own, model = tmp_path / "own", tmp_path / "model"
    build().save_pretrained(own)
    build().save_pretrained(model)
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(own)}))
    with pytest.raises(ConfigError, match=r"model\.pretrained: .*it holds adapters"):
        load(ModelConfig(pretrained=str(model)))
    (model / "adapter_config.json").unlink()
    (model / "model.safetensors").unlink()
    for elsewhere in ("../own/model.safetensors", str(own / "model.safetensors")):
        index = {"metadata": {}, "weight_map": {"lm_head.weight": elsewhere}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ConfigError, match=r"model\.pretrained: .*names files outside of the model"):
            load(ModelConfig(pretrained=str(model)))


@pytest.mark.parametrize("load", [weights_digest, load_pretrained])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", ["[]", "[" * 100_000])
def test_json_of_others_that_describes_no_model_is_a_named_error(
    tmp_path: Path, load: Callable[[ModelConfig], object], name: str, content: str
) -> None:
    build().save_pretrained(tmp_path)
    if "index" in name:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=r"model\.pretrained: .*cannot be loaded"):
        load(ModelConfig(pretrained=str(tmp_path)))


def test_a_missing_pretrained_model_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    with pytest.raises(ConfigError, match=r"model\.pretrained: .*nothing"):
        build_model(ModelConfig(pretrained=str(missing)), vocab_size=256, sequence_length=32, seed=1)


def test_devices() -> None:
    assert select_device(PeerConfig(device="cpu")) == torch.device("cpu")
    for name in ("cuda:97", "tpu", "mps"):
        with pytest.raises(ConfigError, match="device: "):
            select_device(PeerConfig(device=name))


def test_determinism_is_what_the_machine_configuration_says() -> None:
    for is_deterministic in (True, False):
        configure_devices(PeerConfig(device="cpu", deterministic=is_deterministic))
        assert torch.are_deterministic_algorithms_enabled() == is_deterministic


@pytest.mark.parametrize("has_instructions", [True, False])
def test_automatic_precision_is_what_the_processor_has(has_instructions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert is_bfloat16("auto", cpu) == has_instructions
    assert is_bfloat16("bfloat16", cpu) and not is_bfloat16("float32", cpu)
