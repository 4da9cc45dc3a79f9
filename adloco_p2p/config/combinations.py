"""Settings that are each fine and together cannot work, or would silently do nothing. One sentence each, with what would do."""

import re
from math import ceil

from adloco_p2p.config.peer_config import PeerConfig, cap_problem
from adloco_p2p.config.plugins import packages_problems
from adloco_p2p.config.quiet_hours import parse_range
from adloco_p2p.config.run_config import AVERAGING_PRESETS, DataConfig, ModelConfig, OuterConfig, RunConfig
from adloco_p2p.core.model.instance_plan import MAX_HISTORY
from adloco_p2p.core.model.rules import DEFAULT_PRICE_MINUTES
from adloco_p2p.core.model.scalars import MAX_INSTANCES

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""Arguments that most architectures have; `transformers` would fail on impossible ones with whatever error comes first."""
MAX_SIZE = 1 << 24
"""Of whole numbers in `model.architecture`; ..."""
MAX_LAYERS = 4096
"""... of those that count layers or experts, which `transformers` lists one by one."""
MAX_HELDOUT_TOKENS = 1 << 28
"""Of all held-out rows together, which every host keeps in memory."""


def combinations(run: RunConfig) -> list[str]:
    """Every impossible combination in a run's configuration; empty where there is none."""
    return [
        *_model(run),
        *_program(run),
        *_plugins(run),
        *_data(run),
        *_evaluation(run),
        *_optimizers(run),
        *_fragments(run),
        *_streaming(run),
        *_assessments(run),
        *_batch(run),
        *_work(run),
        *_instances(run),
        *_own_data(run),
        *_admission(run),
    ]


def _model(run: RunConfig) -> list[str]:
    problems = []
    model, tokenizer = run.model, run.tokenizer
    if model.pretrained is None and not isinstance(model.architecture.get("model_type"), str):
        problems.append("model.architecture: needs a `model_type`, such as llama, or set model.pretrained")
    for name, source in (("vocab_size", "the tokenizer"), ("max_position_embeddings", "data.sequence_length")):
        if name in model.architecture:
            problems.append(f"model.architecture.{name}: follows from {source}; leave it out")
    for name in _SIZES:
        value = model.architecture.get(name)
        if value is not None and (type(value) is not int or value < 1):
            problems.append(f"model.architecture.{name}: {value!r}, but every model needs a whole number from 1 on")
    for name, value in model.architecture.items():
        most = MAX_LAYERS if "layer" in name or "expert" in name else MAX_SIZE
        if type(value) is int and value > most:
            problems.append(f"model.architecture.{name}: {value}, but at most {most} can be built")
    if model.pretrained is not None and tokenizer.source == "bytes":
        problems.append(
            f"tokenizer.source: bytes, but the weights of model.pretrained {model.pretrained} were trained on other tokens, so"
            " they would read nonsense; accepted: the model's own tokenizer (leave tokenizer.source out), or a hub id or"
            " directory with the same vocabulary"
        )
    if model.share and model.pretrained is None:
        problems.append("model.share: true, but there are no pretrained weights to share; set model.pretrained")
    if model.revision is not None and model.pretrained is None:
        problems.append("model.revision: names a version of model.pretrained, which is not set")
    if model.lora.rank and model.pretrained is None:
        problems.append(
            f"model.lora.rank: {model.lora.rank}, but there are no pretrained weights to adapt; set model.pretrained"
        )
    if model.lora.rank == 0 and model.lora.freeze_a:
        problems.append("model.lora.freeze_a: nothing without adapters; set model.lora.rank, such as 16")
    if not model.lora.targets:
        problems.append("model.lora.targets: empty, so nothing would be trained; name layers such as q_proj, or leave it out")
    if tokenizer.revision is not None and tokenizer.source == "bytes":
        problems.append("tokenizer.revision: the `bytes` tokenizer has no versions; leave it out or set tokenizer.source")
    return problems


def _program(run: RunConfig) -> list[str]:
    """Impossible where a program of the user's does the inner steps."""
    if not run.model.program:
        return []
    impossible = {
        "instances.count": (run.instances.count != 1, run.instances.count, "1"),
        "outer.overlap": (run.outer.overlap != "none", run.outer.overlap, "none"),
        "averaging.fragments": (run.averaging.fragments != 1, run.averaging.fragments, "1"),
        "guard.enabled": (run.guard.enabled, True, "false"),
        "averaging.assess_every": (run.averaging.assess_every > 0, run.averaging.assess_every, "0"),
        "model.pretrained": (
            run.model.pretrained is not None,
            run.model.pretrained,
            "none, the program loads weights",
        ),
        "work.samples": (run.work.samples is not None, run.work.samples, "none, with work.rounds instead"),
    }
    return [
        f"{key}: {value}, but a program does the inner steps (model.program {run.model.program}); accepted: {accepted}"
        for key, (is_wrong, value, accepted) in impossible.items()
        if is_wrong
    ]


def _plugins(run: RunConfig) -> list[str]:
    model, data = run.model, run.data
    problems = packages_problems(run.packages)
    if model.plugin and model.architecture != ModelConfig().architecture:
        problems.append("model.architecture: model.plugin builds the model; leave it out, and give model.arguments")
    if model.plugin and (model.pretrained is not None or model.lora.rank):
        problems.append("model.plugin: builds a fresh model, without model.pretrained and model.lora; choose one of them")
    if model.program and (model.plugin or model.loss):
        problems.append("model.plugin, model.loss: the model and its loss are the program's (model.program); leave them out")
    if bool(data.plugin) != (data.source == "plugin"):
        problems.append("data.plugin: belongs to data.source plugin, and it to data.plugin; set both, or none")
    if data.plugin and (data.path is not None or data.mixture or data.heldout_path or data.streaming):
        problems.append("data.plugin: gives all texts itself; leave data.path, mixture, heldout_path and streaming out")
    for name, plugin, arguments in (("model", model.plugin, model.arguments), ("data", data.plugin, data.arguments)):
        if arguments and not plugin:
            problems.append(f"{name}.arguments: nothing without {name}.plugin; leave it out")
    return problems


def _data(run: RunConfig) -> list[str]:
    data = run.data
    problems = []
    if data.source == "python" and data.path is not None:
        problems.append(f"data.path: {data.path} is not read with data.source python; set data.source to what it holds")
    if data.source not in ("python", "plugin") and data.path is None and not data.mixture:
        what = "the id of a hub dataset" if data.source == "hub" else "the files, such as texts/*.txt"
        problems.append(f"data.path: not set, but data.source is {data.source}; set it to {what}")
    for name, value in (("name", data.name), ("revision", data.revision), ("heldout_split", data.heldout_split)):
        if value is not None and data.source != "hub":
            problems.append(f"data.{name}: only hub datasets have it, and data.source is {data.source}; leave it out")
    problems += _columns(data)
    if data.mixture and data.path is not None:
        problems.append(f"data.path: {data.path} would be ignored beside data.mixture; name it there, with a weight")
    if data.heldout_path is not None and data.source in ("python", "hub"):
        problems.append(f"data.heldout_path: only local files have it, and data.source is {data.source}; leave it out")
    if data.source == "hub" and data.heldout_split == data.split:
        problems.append(f"data.heldout_split: {data.split} is also trained on (data.split); choose another, or leave it out")
    return problems


def _columns(data: DataConfig) -> list[str]:
    """Problems of the settings that name the columns of a row."""
    problems = []
    if (data.prompt_column is None) != (data.completion_column is None):
        problems.append("data.prompt_column, data.completion_column: one needs the other; set both, or none")
    if data.messages_column is not None and data.prompt_column is not None:
        problems.append("data.messages_column: and data.prompt_column are two forms of one thing; set one of them")
    is_plain = data.messages_column is None and data.prompt_column is None
    if data.source in ("python", "text", "plugin") and not is_plain:
        problems.append(
            f"data.messages_column, data.prompt_column: data.source {data.source} has no columns; use json, parquet, arrow or"
            " hub"
        )
    if data.streaming and (not is_plain or data.mixture or data.heldout_path):
        problems.append(
            "data.streaming: only plain text of one data set is streamed; leave data.streaming off with messages, completions,"
            " a mixture or a data.heldout_path"
        )
    if data.mixture and data.source in ("python", "hub"):
        problems.append(
            f"data.mixture: only local files are mixed, and data.source is {data.source}; use json, parquet or text"
        )
    return problems


def _evaluation(run: RunConfig) -> list[str]:
    rows, length = run.evaluation.rows, run.data.sequence_length
    problems = []
    if rows * length > MAX_HELDOUT_TOKENS:
        problems.append(
            f"evaluation.rows: {rows} rows of {length} tokens; every host holds them all, {MAX_HELDOUT_TOKENS} tokens at most"
        )
    if run.evaluation.seed is not None and run.data.streaming:
        problems.append(f"evaluation.seed: {run.evaluation.seed}; data.streaming gives the first held-out rows; leave it out")
    return problems


def _optimizers(run: RunConfig) -> list[str]:
    outer, averaging = run.outer, run.averaging
    problems = []
    if averaging.preset is not None and averaging.codec != (codec := AVERAGING_PRESETS[averaging.preset]["averaging.codec"]):
        problems.append(
            f"averaging.codec: {averaging.codec}, but averaging.preset {averaging.preset} means {codec};"
            " leave one of the two out"
        )
    if averaging.division == "named" and averaging.codec != "topk2":
        problems.append(
            f"averaging.division: named, but averaging.codec {averaging.codec} names no places;"
            " choose averaging.division all, or averaging.preset sparse"
        )
    if outer.kind == "average" and outer.learning_rate != 1:
        problems.append(
            f"outer.learning_rate: {outer.learning_rate} would be ignored: outer.kind average takes the mean of the models;"
            " leave it out, set it to 1, or choose sgd"
        )
    if run.inner.warmup_steps is not None and run.inner.warmup_samples is not None:
        problems.append(
            f"inner.warmup_steps: {run.inner.warmup_steps}, and inner.warmup_samples {run.inner.warmup_samples}: choose one,"
            " and set the other to null"
        )
    if outer.kind != "nesterov" and outer.momentum != 0:
        problems.append(
            f"outer.momentum: {outer.momentum} would be ignored: outer.kind is {outer.kind};"
            " leave it out, set it to 0, or choose nesterov"
        )
    return problems


def _fragments(run: RunConfig) -> list[str]:
    count = run.averaging.fragments
    problems: list[str] = []
    if count == 1:
        return problems
    if run.work.rounds is None and run.outer.overlap != "streaming":
        problems.append(
            f"averaging.fragments: {count}, but the run ends by work.samples, and after its last round everything is averaged;"
            " give work.rounds instead, or set averaging.fragments to 1"
        )
    elif run.work.rounds is not None and count > run.work.rounds:
        problems.append(
            f"averaging.fragments: {count} do not all have their turn in {run.work.rounds} rounds (work.rounds); use fewer"
        )
    if run.instances.count > 1:
        problems.append(
            f"averaging.fragments: {count}, but with instances.count {run.instances.count} forks and merges would lose what"
            " fragments learned since their last turn; set one of the two to 1"
        )
    if run.outer.overlap not in ("none", "streaming"):
        problems.append(
            f"averaging.fragments: {count}, and outer.overlap {run.outer.overlap}, which is for whole vectors;"
            " set outer.overlap to streaming or none, or averaging.fragments to 1"
        )
    if run.batch.is_tested and run.batch.statistic == "pseudo_gradient":
        problems.append(
            f"batch.statistic: with averaging.fragments {count} a pseudo-gradient is that of {count} rounds, not of one;"
            " set it to micro_batch, or batch.test to constant"
        )
    return problems


def _streaming(run: RunConfig) -> list[str]:
    outer, usual = run.outer, OuterConfig()
    problems = []
    if outer.overlap != "streaming":
        return [
            f"outer.{name}: {value} would be ignored: outer.overlap is {outer.overlap}; leave it out, or set outer.overlap to"
            " streaming"
            for name, value, default in (
                ("delay_steps", outer.delay_steps, usual.delay_steps),
                ("mixing", outer.mixing, usual.mixing),
            )
            if value != default
        ]
    if run.averaging.fragments == 1:
        problems.append(
            "outer.overlap: streaming, but averaging.fragments is 1, and only fragments are streamed;"
            " set averaging.fragments to 2 or more, or outer.overlap to forecast"
        )
    if outer.delay_steps >= run.work.inner_steps:
        problems.append(
            f"outer.delay_steps: {outer.delay_steps}, but a round has {run.work.inner_steps} inner steps (work.inner_steps);"
            " fewer than that are accepted"
        )
    return problems


def _assessments(run: RunConfig) -> list[str]:
    """Impossible where contributions are looked at."""
    averaging = run.averaging
    if not averaging.assess_every:
        return []
    every, problems = f"averaging.assess_every: {averaging.assess_every}", []
    if run.data.streaming:
        problems.append(
            f"{every}, but with data.streaming no host knows which rows another one was given; set data.streaming to false,"
            " or averaging.assess_every to 0"
        )
    if averaging.fragments > 1:
        problems.append(
            f"{every}, but with averaging.fragments {averaging.fragments} a contribution is of several rounds, whose rows are"
            " not looked at; set one of the two to its default"
        )
    if averaging.division == "named":
        problems.append(
            f"{every}, but with averaging.division named no host knows the mean of the others from one contribution; set"
            " averaging.division to all, or averaging.assess_every to 0"
        )
    return problems


def _batch(run: RunConfig) -> list[str]:
    batch = run.batch
    problems = []
    if batch.initial_batch > batch.max_batch:
        problems.append(
            f"batch.initial_batch: {batch.initial_batch} is more than batch.max_batch, {batch.max_batch};"
            " lower it or raise the other"
        )
    if batch.window_rounds > MAX_HISTORY:
        problems.append(f"batch.window_rounds: {batch.window_rounds}, but a plan carries at most {MAX_HISTORY} rounds")
    if batch.statistic == "micro_batch" and batch.level == "outer":
        problems.append(
            "batch.level: outer, but batch.statistic micro_batch measures the noise of one inner step;"
            " set batch.level to inner, or batch.statistic to pseudo_gradient"
        )
    # The mean's squared norm holds the noise too, so the request never exceeds batch / eta^2 (method section 4.4).
    if batch.test == "norm" and batch.denominator == "naive" and batch.eta >= 1 and _is_noise_of_the_mean(run):
        problems.append(
            f"batch.eta: with batch.denominator naive the batch can never grow unless eta is below 1, and it is {batch.eta};"
            " lower it, or set batch.denominator to unbiased"
        )
    return [*problems, *_ramp(run)]


def _ramp(run: RunConfig) -> list[str]:
    batch, length = run.batch, run.batch.ramp_samples
    if batch.test != "schedule":
        ignored = f"batch.ramp_samples: {length} would be ignored: batch.test is {batch.test}; leave it out, or choose schedule"
        return [] if length is None else [ignored]
    problems = []
    if batch.initial_batch == batch.max_batch:
        problems.append(
            f"batch.max_batch: {batch.max_batch} is batch.initial_batch, so batch.ramp {batch.ramp} would lead nowhere;"
            " raise it, or set batch.test to constant"
        )
    if length is not None and run.work.samples is not None and length > run.work.samples:
        problems.append(
            f"batch.ramp_samples: {length} is more than work.samples, {run.work.samples}, so the ramp would never end;"
            " lower it, or leave it out"
        )
    if batch.ramp == "seesaw":
        problems += _seesaw(run)
    return problems


def _seesaw(run: RunConfig) -> list[str]:
    """The batch grows where the learning rate falls, so the two belong together."""
    problems, seesaw = [], "but batch.ramp seesaw follows the decay of the learning rate over the run"
    if run.batch.ramp_samples is not None:
        problems.append(
            f"batch.ramp_samples: {run.batch.ramp_samples}, {seesaw}; leave it out, or choose the ramp linear or doubling"
        )
    if run.inner.schedule == "constant":
        problems.append(f"inner.schedule: constant, {seesaw}; set it to cosine, or choose the ramp linear or doubling")
    if run.inner.batch_scaling == "none":
        problems.append(
            f"inner.batch_scaling: none, {seesaw}, by its root; set it to sqrt, or choose the ramp linear or doubling"
        )
    return problems


def _is_noise_of_the_mean(run: RunConfig) -> bool:
    """Whether numerator and denominator of the test speak of the same vector; at the inner level they do not."""
    return run.batch.statistic == "micro_batch" or run.batch.level == "outer"


def _work(run: RunConfig) -> list[str]:
    work, first = run.work, _first_round_samples(run)
    if work.rounds is None and work.samples is None:
        return ["work.samples, work.rounds: both null, so the run would never end; set one of them"]
    if work.rounds is not None and work.samples is not None:
        return [
            f"work.samples: {work.samples}, but work.rounds is set too, to {work.rounds}, and a run has one end;"
            " leave one of them out"
        ]
    if work.samples is not None and work.samples < first:
        return [
            f"work.samples: {work.samples} is less than the first round takes, {first}; raise it, or lower work.inner_steps"
        ]
    return []


def _first_round_samples(run: RunConfig) -> int:
    """Of all instances that begin the run."""
    count = 1 if run.instances.start == "fork" else min(run.instances.count, MAX_INSTANCES)
    return count * run.batch.initial_batch * run.work.inner_steps


def _most_rounds(run: RunConfig) -> int:
    """A batch that grows makes fewer; 0 where the run has no end, which `_work` reports."""
    if run.work.samples is None:
        return run.work.rounds or 0
    return ceil(run.work.samples / _first_round_samples(run))


def _instances(run: RunConfig) -> list[str]:
    instances, merge, rounds = run.instances, run.merge, _most_rounds(run)
    length = f"has {rounds} rounds (work.rounds)" if run.work.samples is None else f"has at most {rounds} rounds (work.samples)"
    problems = []
    if instances.count > MAX_INSTANCES:
        problems.append(f"instances.count: {instances.count}, but a plan holds at most {MAX_INSTANCES}")
    if instances.count == 1 or rounds == 0:
        return problems
    if instances.start == "fork" and instances.fork_round >= rounds:
        problems.append(
            f"instances.fork_round: {instances.fork_round} never comes, because the run {length};"
            " fork earlier, or set instances.count to 1"
        )
    if instances.start == "different" and run.model.pretrained is not None:
        problems.append("instances.start: different means random weights, but model.pretrained gives them; use fork or same")
    if merge.policy == "worst_group" and merge.group_size > instances.count:
        problems.append(
            f"merge.group_size: {merge.group_size} instances cannot be folded into one where there are only {instances.count}"
            " (instances.count); lower it"
        )
    if merge.policy != "none" and merge.first_round > rounds:
        problems.append(
            f"merge.first_round: {merge.first_round} never comes, because the run {length};"
            " lower it, or set merge.policy to none"
        )
    return problems


def _own_data(run: RunConfig) -> list[str]:
    """Data of instances: one known data set for each instance, and none that no instance has."""
    own, count, mixture = run.instances.data, run.instances.count, run.data.mixture
    if not own:
        return []
    if not mixture:
        return [
            "instances.data: names data sets of data.mixture, which is empty; list the files of each there, with a weight,"
            " or leave instances.data out"
        ]
    known = ", ".join(mixture)
    problems = [
        f"instances.data: {name} is no data set of data.mixture; accepted: {known}" for name in own if name not in mixture
    ]
    if len(own) != count:
        problems.append(f"instances.data: {len(own)} data sets for {count} instances (instances.count); name one for each")
    problems += [
        f"instances.data: {name} of data.mixture is no instance's; name it, or take it out of the mixture"
        for name in mixture
        if name not in own
    ]
    if run.data.heldout_path is not None:
        problems.append(
            f"data.heldout_path: {run.data.heldout_path}, but with instances.data each data set is evaluated by itself;"
            " leave it out, so that data.heldout_fraction of each is held out"
        )
    if run.evaluation.rows < len(mixture):
        problems.append(
            f"evaluation.rows: {run.evaluation.rows} rows for {len(mixture)} data sets (instances.data); raise it to that"
        )
    return problems


def _admission(run: RunConfig) -> list[str]:
    if run.admission.kind == "work" or run.admission.price_minutes == DEFAULT_PRICE_MINUTES:
        return []
    return [
        f"admission.price_minutes: {run.admission.price_minutes:g}, but with admission.kind={run.admission.kind} no seat costs"
        " computing; set admission.kind=work, or leave it out"
    ]


def peer_combinations(peer: PeerConfig) -> list[str]:
    """The same for one machine's configuration."""
    problems = _devices(peer)
    for name, addresses in (("host_maddrs", peer.host_maddrs), ("announce_maddrs", peer.announce_maddrs)):
        problems += [
            f"{name}: {address!r} is no multiaddress; accepted: such as /ip4/0.0.0.0/tcp/31337"
            for address in addresses
            if not re.fullmatch(r"(/[^/\s]+){2,}", address)
        ]
    if peer.client_mode and peer.announce_maddrs:
        problems.append("announce_maddrs: with client_mode others cannot connect there; remove one of the two")
    if not peer.client_mode and not peer.host_maddrs:
        problems.append("host_maddrs: empty, so there is nowhere to listen; give an address, or set client_mode to true")
    if peer.use_auto_relay and not peer.use_relay:
        problems.append("use_auto_relay: needs use_relay, which is off")
    problems += _quiet_hours(peer)
    problems += _caps(peer)
    return problems


def _devices(peer: PeerConfig) -> list[str]:
    names = peer.devices
    problems = [
        f"device: {name} is unknown; accepted: auto, cpu, mps, cuda, cuda:0, cuda:1 and so on, or a list of them"
        for name in names
        if not re.fullmatch(r"auto|mps|(cpu|cuda)(:[0-9]+)?", name)
    ]
    if not names:
        problems.append("device: an empty list; name a device, or set auto")
    if len(names) > 1 and "auto" in names:
        problems.append("device: auto is all devices already; set it alone, or name the devices")
    if peer.shards > 1:
        problems += _shards(peer)
    problems += [f"device: {name} is named twice; name it once" for name in dict.fromkeys(names) if names.count(name) > 1]
    return problems


def _shards(peer: PeerConfig) -> list[str]:
    """Of a model that is divided over devices."""
    shards, names = f"shards: {peer.shards}", peer.devices
    problems = []
    if peer.max_instances > 1:
        problems.append(f"{shards}, but max_instances is {peer.max_instances}; a divided model is one instance: set it to 1")
    if peer.compile:
        problems.append(f"{shards}, but compile is on; a divided model is not compiled: set it to false, or shards to 1")
    if "mps" in names:
        problems.append(f"{shards}, but device names mps, of which a machine has one; set shards to 1")
    is_one_kind = all(name.startswith("cuda") for name in names) and len(names) == peer.shards
    if names not in (("auto",), ("cpu",)) and "mps" not in names and not is_one_kind:
        problems.append(
            f"{shards}, but device is {', '.join(names)}; accepted: auto, cpu, or {peer.shards} GPUs such as"
            f" [{', '.join(f'cuda:{index}' for index in range(peer.shards))}]"
        )
    return problems


def _quiet_hours(peer: PeerConfig) -> list[str]:
    problems = []
    for text in peer.quiet_hours:
        try:
            parse_range(text)
        except ValueError as error:
            problems.append(f"quiet_hours: {error}")
    for name in ("upload", "download"):
        quiet = peer.quiet_upload_bytes_per_second if name == "upload" else peer.quiet_download_bytes_per_second
        if quiet and not peer.quiet_hours:
            problems.append(f"quiet_{name}_bytes_per_second: nothing without quiet_hours; set them, such as 22:00-07:00")
    return problems


def _caps(peer: PeerConfig) -> list[str]:
    caps = {
        "upload_bytes_per_second": peer.upload_bytes_per_second,
        "download_bytes_per_second": peer.download_bytes_per_second,
        "quiet_upload_bytes_per_second": peer.quiet_upload_bytes_per_second,
        "quiet_download_bytes_per_second": peer.quiet_download_bytes_per_second,
    }
    return [f"{name}: {problem}" for name, cap in caps.items() if (problem := cap_problem(cap))]
