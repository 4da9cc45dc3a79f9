"""Adapters as the averaged vector: what is in it, what stays frozen, and that plain transformers and peft read the result."""

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.commands.plan import memory_need_of
from adloco_p2p.config.run_config import AveragingConfig, LoraConfig, ModelConfig, OuterConfig, RunConfig
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.errors import ConfigError, DeviceError
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.layout import flatten, layout_of, unflatten_
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.adapters import draw_adapter_, merged, save_adapter
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.memory_search import step_bytes
from adloco_p2p.training.model import build_model
from adloco_p2p.training.pretrained import stored_dtype, weights_digest
from adloco_p2p.training.shell import ModelShell
from tests.training.small_run import LENGTH, ONE, RUN, TWO, VOCAB_SIZE, effect, hosting, never, silent, train_round

ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {"tie_word_embeddings": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "qwen2": {},
    "gemma": {"head_dim": 16},
    "mixtral": {"num_local_experts": 2},
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": LENGTH,
}
ROWS = torch.arange(2 * LENGTH).view(2, LENGTH) % VOCAB_SIZE


def save_base(
    folder: Path, model_type: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 1, **other_sizes: object
) -> Path:
    """A tiny model with random weights, in a directory as the hub has them. Its vocabulary is larger than the tokenizer's."""
    sizes = {**({} if model_type == "gpt2" else SIZES), **other_sizes}
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(
        model_type, vocab_size=VOCAB_SIZE + 5, **{**special, **ARCHITECTURES.get(model_type, {}), **sizes}
    )
    torch.manual_seed(seed)
    module = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in module.parameters():  # the usual start is so small that errors would hide
            parameter.add_(0.05 * torch.randn_like(parameter))
    module.to(dtype).save_pretrained(folder)
    return folder


def build(folder: Path, seed: int = 1, **lora: Any) -> Any:
    """A model of transformers, which is not typed."""
    wanted: dict[str, Any] = {"rank": 4, "base_precision": "float32", **lora}
    model = ModelConfig(pretrained=str(folder), lora=LoraConfig(**wanted))
    return build_model(model, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=seed).eval()


def logits(module: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module(input_ids=ROWS, use_cache=False).logits
        return found


def train_a_little(module: torch.nn.Module) -> torch.Tensor:
    """Put other values into the vector; returns them."""
    flat = flatten(module)
    flat += 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(3))
    unflatten_(module, flat)
    return flat


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_adapter_and_merged_model_are_read_by_plain_libraries(model_type: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", model_type)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    module = build(base)
    assert torch.equal(logits(module), logits(plain)), "a fresh adapter changes nothing"
    assert all(".lora_" in entry.name for entry in layout_of(module).entries)
    train_a_little(module)
    wanted = logits(module)
    assert (wanted - logits(plain)).abs().max() > 0.1
    save_adapter(module, ModelConfig(pretrained=str(base)), tmp_path / "adapter")
    with_adapter = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    assert torch.equal(logits(with_adapter), wanted)
    merged(module).save_pretrained(tmp_path / "merged")
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (logits(reloaded) - wanted).abs().max() < 1e-4
    for path in [*(tmp_path / "adapter").iterdir(), *(tmp_path / "merged").iterdir()]:
        assert str(tmp_path).encode() not in path.read_bytes(), f"{path.name} names a path of this machine"


def test_a_router_that_inherits_from_a_linear_layer_gets_no_adapter(tmp_path: Path) -> None:
    """Llama 4's returns two tensors, which an adapter would replace by one."""
    sizes: dict[str, Any] = {"intermediate_size_mlp": 48, "num_local_experts": 2, "head_dim": 16}
    base = save_base(tmp_path / "base", "llama4_text", interleave_moe_layer_step=1, **sizes)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    module = build(base)
    assert torch.equal(logits(module), logits(plain))
    adapted_layers = {entry.name.partition(".lora_")[0].rpartition(".")[2] for entry in layout_of(module).entries}
    assert adapted_layers == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    train_a_little(module)
    save_adapter(module, ModelConfig(pretrained=str(base)), tmp_path / "adapter")
    assert torch.equal(logits(peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")), logits(module))


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_pretrained_weights_of_every_architecture_are_trained_whole(model_type: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", model_type)
    module = build(base, rank=0)
    train_a_little(module)
    module.save_pretrained(tmp_path / "trained")
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained")), logits(module))


@settings(max_examples=8, deadline=None)
@given(
    inner=st.integers(3, 67),
    layers=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2)]),
    rank=st.integers(1, 9),
    is_tied=st.booleans(),
    freeze_a=st.booleans(),
)
def test_odd_sizes_tied_or_not(
    inner: int,
    layers: int,
    heads: tuple[int, int],
    rank: int,
    is_tied: bool,
    freeze_a: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The vector has one A and one B for each linear layer but the head; the frozen weights stay, tied ones stay tied; merging
    gives the same model."""
    width, (num_heads, num_groups) = 6 * heads[0], heads
    base = save_base(
        tmp_path_factory.mktemp("odd"),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_groups,
        tie_word_embeddings=is_tied,
    )
    module = build(base, rank=rank, freeze_a=freeze_a)
    groups = 6 * num_groups
    shapes = [(width, width)] * 2 + [(width, groups)] * 2 + [(width, inner)] * 2 + [(inner, width)]  # in, out
    wanted = layers * sum(rank * ((0 if freeze_a else into) + out) for into, out in shapes)
    assert layout_of(module).num_parameters == wanted
    frozen = {name: p.clone() for name, p in module.named_parameters() if not p.requires_grad}
    train_a_little(module)
    assert all(torch.equal(p, frozen[name]) for name, p in module.named_parameters() if name in frozen)
    found = logits(module)
    plain = merged(module)
    assert (logits(plain) - found).abs().max() < 1e-3 * max(1.0, float(found.abs().max()))
    assert (plain.get_output_embeddings().weight is plain.get_input_embeddings().weight) == is_tied


def test_rank_alpha_targets_and_what_is_frozen(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    both, only_b = build(base, targets=("q_proj",)), build(base, targets=("q_proj",), freeze_a=True)
    size_a, size_b = 2 * 4 * 32, 2 * 4 * 32  # layers, rank, width in or out
    assert (layout_of(both).num_parameters, layout_of(only_b).num_parameters) == (size_a + size_b, size_b)
    stabilised = build(base, targets=("q_proj",), rank_stabilised=True)
    scales = [next(m.scaling["default"] for m in module.modules() if hasattr(m, "lora_A")) for module in (both, stabilised)]
    assert scales == [32 / 4, 32 / 4**0.5]
    for module in (both, only_b):
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        assert trained == {entry.name for entry in layout_of(module).entries}


def test_an_adapter_of_a_tied_head_is_not_merged_into_the_embeddings(tmp_path: Path) -> None:
    module = build(save_base(tmp_path / "base"), targets=("q_proj", "lm_head"))
    train_a_little(module)
    wanted, embeddings = logits(module), module.get_input_embeddings().weight.clone()
    merged(module).save_pretrained(tmp_path / "merged")
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (logits(reloaded) - wanted).abs().max() < 1e-4
    assert torch.equal(reloaded.get_input_embeddings().weight, embeddings)


def test_the_frozen_a_follows_the_seed_alone(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")

    def frozen(seed: int) -> torch.Tensor:
        module = build(base, seed=seed, freeze_a=True)
        return torch.cat([p.flatten() for name, p in module.named_parameters() if ".lora_A." in name])

    torch.manual_seed(1)
    first = frozen(5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(first, frozen(5)) and not torch.equal(first, frozen(6))
    assert torch.equal(state, torch.get_rng_state())
    assert first.abs().max() <= 32**-0.5 and first.std() > 0.05


@pytest.mark.parametrize(
    ("lora", "named"),
    [
        ({"targets": ("nothing_like_it",)}, r"model\.lora\.targets: nothing_like_it"),
        ({"targets": ("embed_tokens",)}, r"model\.lora\.targets: embed_tokens names an embedding"),
    ],
)
def test_layers_that_cannot_have_adapters_are_refused(lora: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        build(save_base(tmp_path / "base"), **lora)


@pytest.mark.parametrize("targets", [("q_proj", "v_prj"), ("q_proj", "all-linear")])
def test_a_new_run_whose_targets_name_nothing_beside_others_is_refused_and_one_that_exists_goes_on(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    run = lora_run(save_base(tmp_path / "base"), targets=targets)
    run = replace(run, data=replace(run.data, sequence_length=LENGTH))
    peer = hosting(run)
    for begin in (lambda: peer.start([ONE]), lambda: memory_need_of(run)):
        with pytest.raises(
            ConfigError, match=rf"^model\.lora\.targets: no layer .* is called {targets[1]}; .* k_proj, lm_head"
        ) as refused:
            begin()
        assert refused.value.code == "E209"
    memory_need_of(replace(run, model=replace(run.model, digest=weights_digest(run.model))))
    peer.start([])  # a joiner
    vector = torch.zeros(peer.num_parameters)
    peer.adopt(ONE, vector, vector.clone())


@pytest.mark.parametrize("targets", [("q_proj", "mlp.down_proj", "lm_head"), ("model.layers.1.self_attn.v_proj",)])
def test_targets_may_be_parts_of_names(targets: tuple[str, ...], tmp_path: Path) -> None:
    hosting(lora_run(save_base(tmp_path / "base"), targets=targets)).start([ONE])


def test_the_digest_is_of_the_weights_however_they_are_dealt_over_files(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", dtype=torch.bfloat16)
    model = ModelConfig(pretrained=str(base))
    assert stored_dtype(model) == torch.bfloat16
    digest = weights_digest(model)
    module = transformers.AutoModelForCausalLM.from_pretrained(base)
    module.save_pretrained(tmp_path / "shards", max_shard_size="20kB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert weights_digest(ModelConfig(pretrained=str(tmp_path / "shards"))) == digest
    with torch.no_grad():
        next(module.parameters())[0, 0] += 1
    module.save_pretrained(tmp_path / "other")
    other = weights_digest(ModelConfig(pretrained=str(tmp_path / "other")))
    assert other != digest
    stated = ModelConfig(pretrained=str(tmp_path / "other"), digest=digest)
    with pytest.raises(ConfigError, match=rf"has digest {other} here, .* started with {digest}") as refused:
        build_model(stated, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=1)
    assert refused.value.code == "E218"


def test_damaged_weights_are_a_named_error(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    path = base / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"model\.pretrained: .*not fully covered") as refused:
        weights_digest(ModelConfig(pretrained=str(base)))
    assert refused.value.code == "E209"


# --- in an instance's rounds -----------------------------------------------------------------------------------------


def lora_run(base: Path, **lora: object) -> RunConfig:
    wanted = {"rank": 4, "targets": ("q_proj", "v_proj"), **lora}
    return replace(RUN, model=ModelConfig(pretrained=str(base), lora=LoraConfig(**wanted)))  # type: ignore[arg-type]


def test_instances_share_one_frozen_base_and_learn(tmp_path: Path) -> None:
    peer = hosting(lora_run(save_base(tmp_path / "base")))
    frozen = {name: p.clone() for name, p in peer._shell.module.named_parameters() if not p.requires_grad}
    assert {p.dtype for p in frozen.values()} == {torch.bfloat16}
    gc.collect()
    before = num_bfloat16_values()
    peer.start([ONE, TWO])
    gc.collect()
    assert num_bfloat16_values() == before, "an instance has a base of its own"
    assert all(torch.equal(a, b) for a, b in zip(peer.state(ONE), peer.state(TWO), strict=True))
    first = peer.evaluate(ONE)
    for round in range(3):
        train_round(peer, effect(ONE, round))
    assert peer.evaluate(ONE) < first - 0.01
    assert peer.evaluate(TWO) == first
    now = dict(peer._shell.module.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())


@pytest.mark.parametrize("has_adapters", [True, False])
def test_activations_are_given_back_before_what_is_averaged_is_made(
    has_adapters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only beside a frozen base: new memory every round costs a small model some percent of its round."""
    peer = hosting(lora_run(save_base(tmp_path / "base")) if has_adapters else RUN)
    peer.start([ONE])
    assert peer.micro_batch_limit > 0
    freed: list[bool] = []
    monkeypatch.setattr(ModelShell, "free_cache", lambda _: freed.append(ONE in peer._pseudo_gradients))
    train_round(peer, effect())
    assert freed == ([False] if has_adapters else [])


def num_bfloat16_values() -> int:
    return sum(o.numel() for o in gc.get_objects() if type(o) is torch.nn.Parameter and o.dtype == torch.bfloat16)


def test_a_fresh_adapter_is_the_one_that_the_model_was_built_with(tmp_path: Path) -> None:
    for freeze_a in (False, True):
        run = lora_run(save_base(tmp_path / f"base-{freeze_a}"), freeze_a=freeze_a)
        peer = hosting(run)
        built = flatten(peer._shell.module).clone()
        peer.start([ONE])
        assert torch.equal(peer.state(ONE)[0], built)


@pytest.mark.parametrize("freeze_a", [False, True])
def test_a_snapshot_holds_the_adapter_only_and_goes_on_exactly(freeze_a: bool, tmp_path: Path) -> None:
    run = lora_run(save_base(tmp_path / "base"), freeze_a=freeze_a)
    peer = hosting(run)
    peer.start([ONE])
    train_round(peer, effect(ONE, 0))
    tensors, meta = peer.snapshot(ONE)
    assert {tensor.numel() for tensor in tensors.values()} == {peer.num_parameters}
    train_round(peer, effect(ONE, 1))
    again = hosting(run)
    again.restore(ONE, tensors, meta)
    train_round(again, effect(ONE, 1))
    assert again.digests(ONE) == peer.digests(ONE)
    assert again.evaluate(ONE) == peer.evaluate(ONE)


@pytest.mark.parametrize(
    "averaging",
    [
        AveragingConfig(codec="int8", fragments=2),
        AveragingConfig(codec="topk2", aggregation="robust"),
        AveragingConfig(codec="sign", aggregation="clip"),
    ],
)
def test_hosts_of_adapters_share_their_bytes_through_codecs_fragments_rules_a_fork_and_a_merge(
    averaging: AveragingConfig, tmp_path: Path
) -> None:
    run = replace(lora_run(save_base(tmp_path / "base")), averaging=averaging)
    peers = [hosting(run, me=PeerId(f"host {place}")) for place in range(4)]
    rule, codec = rule_named(averaging.aggregation, division=averaging.division), codec_named(averaging.codec)

    def averaged(instance: InstanceId, number: int) -> None:
        for place, peer in enumerate(peers):
            work = effect(instance, number, first_sample=100 * number + 20 * place)
            assert peer.run_inner(work, should_stop=never, on_progress=silent) is not None
        vectors = [peer.pseudo_gradient(instance) for peer in peers]
        made = aggregate(vectors, [20] * 4, [5] * 4, rule=rule, codec=codec)
        for peer, residual in zip(peers, made.residuals, strict=True):
            peer.apply_outer(instance, made.vector, round=number, residual=residual)
        assert len({peer.digests(instance) for peer in peers}) == 1

    for peer in peers:
        peer.start([ONE])
    before = peers[0].evaluate(ONE)
    for number in range(4):
        averaged(ONE, number)
    assert peers[0].evaluate(ONE) < before
    for peer in peers:
        peer.transition([Fork(source=ONE, targets=(TWO,))], [])
    averaged(TWO, 4)
    assert peers[0].digests(TWO) != peers[0].digests(ONE)
    for peer in peers:
        peer.transition([], [Merge(sources=(ONE, TWO), target=ONE, weights=(0.5, 0.5), reason="a test")])
    assert len({peer.digests(ONE) for peer in peers}) == 1


FORECAST = replace(RUN.outer, overlap="forecast")
STREAMING = replace(RUN.outer, overlap="streaming", delay_steps=2, mixing=0.25)


@pytest.mark.parametrize(("outer", "fragments"), [(FORECAST, 1), (STREAMING, 2)], ids=["forecast", "streaming"])
def test_hosts_of_adapters_share_their_bytes_while_their_devices_go_on(
    outer: OuterConfig, fragments: int, tmp_path: Path
) -> None:
    """The average of a round lands after two inner steps of the next one. Restored at a boundary the hosts go on exactly."""
    averaging = AveragingConfig(fragments=fragments)
    run = replace(lora_run(save_base(tmp_path / "base")), outer=outer, averaging=averaging)

    def hosts() -> list[Hosting]:
        return [hosting(run, me=PeerId(f"host {place}")) for place in range(2)]

    def averaged(peers: list[Hosting], number: int, *, beside: torch.Tensor | None = None) -> torch.Tensor:
        """The mean of a round's pseudo-gradients; `beside`: that of the round before, which is still on its way."""
        for place, peer in enumerate(peers):
            steps = 0

            def land(peer: Hosting = peer) -> bool:
                nonlocal steps
                if steps == 2 and beside is not None:
                    peer.apply_outer(ONE, beside, round=number - 1)
                steps += 1
                return False

            work = replace(effect(ONE, number, first_sample=100 * number + 20 * place), is_ahead=beside is not None)
            assert peer.run_inner(work, should_stop=land, on_progress=silent) is not None
        return weighted_average([peer.pseudo_gradient(ONE) for peer in peers], [1.0] * len(peers))

    def applied(peers: list[Hosting], number: int, mean: torch.Tensor) -> str:
        for peer in peers:
            peer.apply_outer(ONE, mean, round=number)
        (digest,) = {peer.digests(ONE)[1] for peer in peers}
        return digest

    peers, again = hosts(), hosts()
    for peer in peers:
        peer.start([ONE])
    before = peers[0].evaluate(ONE)
    first = averaged(peers, 0)
    assert len(first) == peers[0].num_averaged(0) < peers[0].num_parameters / fragments + 1
    applied(peers, 1, averaged(peers, 1, beside=first))
    assert peers[0].evaluate(ONE) < before
    for peer, other in zip(peers, again, strict=True):
        other.restore(ONE, *peer.snapshot(ONE))
    ends = [applied(side, 2, averaged(side, 2)) for side in (peers, again)]
    assert ends[0] == ends[1]


def test_a_drawn_adapter_overwrites_the_vector_it_is_drawn_into(tmp_path: Path) -> None:
    module = build(save_base(tmp_path / "base"))
    fresh = flatten(module)
    train_a_little(module)
    draw_adapter_(module, seed=1)
    assert torch.equal(flatten(module), fresh)


@pytest.mark.parametrize("base_precision", ["float32", "bfloat16"])
def test_adapters_take_their_input_as_it_is_where_autocast_casts_it(base_precision: str, tmp_path: Path) -> None:
    """The same bits without a copy in float32 of each input, which backward would keep."""
    module = build(save_base(tmp_path / "base"), base_precision=base_precision)
    train_a_little(module)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=True)
    rows = Batch(input_ids=ROWS, labels=ROWS)
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    found = []
    for is_cast in (False, True):
        if is_cast:
            for layer in module.modules():
                if hasattr(layer, "cast_input_dtype_enabled"):
                    layer.cast_input_dtype_enabled = True
        shell.gradient.zero_()
        total, losses = shell.weighted_loss(rows)
        total.backward()
        found.append((losses, shell.gradient.clone(), step_bytes(shell, rows, own)))
    (losses, gradient, kept), (cast_losses, cast_gradient, cast_kept) = found
    assert torch.equal(losses, cast_losses) and torch.equal(gradient, cast_gradient)
    assert kept < cast_kept


def test_without_peft_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(DeviceError, match=r"pip install -c constraints.txt '.\[finetune\]'") as refused:
        build(save_base(tmp_path / "base"))
    assert refused.value.code == "E521"
