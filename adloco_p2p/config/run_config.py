"""The configuration of a run: everything that must be equal across the swarm. Its canonical digest is the run's id."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, Predicate

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.protocol import NEWEST, OLDEST
from adloco_p2p.core.model.rules import (
    AdmissionRules,
    BatchRules,
    GuardRules,
    InstanceRules,
    MergeRules,
    NaturalInt,
    PositiveFloat,
    PositiveInt,
    Rules,
    SwitchRules,
    WorkRules,
)
from adloco_p2p.core.model.scalars import Digest, Fraction, InstanceId, is_printable
from adloco_p2p.core.model.task_scores import MAX_TASKS, TaskName

MAX_FOUNDERS = 64
"""The most founders of a run; each of them can hold up its start."""

Scalar = str | int | float | bool | None
Name = Annotated[str, MinLen(1), MaxLen(200), Predicate(is_printable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters beside the frozen linear layers of a pretrained model (arXiv 2106.09685): only the adapters are
    trained, averaged and saved. The settings have the names of `peft`."""

    rank: Annotated[int, Ge(0), Le(1024)] = 0
    """Rank r of each adapter; 0: no adapters, the whole model is trained."""
    alpha: PositiveFloat = 32.0
    """The factor of adapters is alpha / r, or alpha / sqrt(r) with `rank_stabilised`."""
    targets: tuple[Name, ...] = ("all-linear",)
    """Names of the linear layers that get adapters, such as q_proj; `all-linear`: all but the head."""
    freeze_a: bool = False
    """Train only B; A keeps its random start. Half the bytes, and the average of B is exact (FFA-LoRA, arXiv 2403.12313)."""
    rank_stabilised: bool = False
    """Scale adapters by alpha / sqrt(r) (arXiv 2312.03732)."""
    base_precision: Literal["float32", "bfloat16"] = "bfloat16"
    """The type in which the frozen base is held, once for all instances of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model of a run, built from a `transformers` configuration, or loaded. Remote code is never executed."""

    pretrained: Name | None = None
    """Hub id or local directory of the weights from which the run starts; null: random weights from `architecture`."""
    revision: Name | None = None
    """Revision of a hub model; a public run pins it."""
    digest: Annotated[str, MaxLen(64)] = ""
    """Digest of the pretrained weights. `adloco-peer start` fills it in; a peer with other weights is refused. For a program's
    model: digest of its first parameters, which the first peer makes and all others fetch."""
    share: bool = False
    """Let peers that lack the directory of `pretrained` and its tokenizer get both from other peers, by digest."""
    files: Annotated[str, MaxLen(64)] = ""
    """Root hash of the shared files. `adloco-peer start` fills it in."""
    parent: Annotated[str, MaxLen(64)] = ""
    """The run that made the pretrained weights, if `adloco-peer export` wrote them. `adloco-peer start` fills it in."""
    architecture: dict[str, Scalar] = field(
        default_factory=lambda: {
            "model_type": "llama",
            "hidden_size": 160,
            "intermediate_size": 432,
            "num_hidden_layers": 4,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "tie_word_embeddings": True,
        }
    )
    """Arguments of the `transformers` configuration; `vocab_size` and `max_position_embeddings` follow from the other
    settings."""
    plugin: Annotated[str, MaxLen(100)] = ""
    """Entry point of an installed package that builds the model instead of `architecture` (docs/plugins.md)."""
    arguments: dict[str, Scalar] = field(default_factory=dict)
    """Arguments of the function that `plugin` names."""
    loss: Annotated[str, MaxLen(100)] = ""
    """Entry point of an installed package that gives the loss of each token; empty: cross-entropy."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Arithmetic of forward and backward; trained parameters and optimizers stay float32. `auto`: each machine uses bfloat16
    where its GPU, or its processor (AMX, AVX512-BF16), has the instructions."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    program: Annotated[str, MaxLen(200)] = ""
    """The name that a program gives to its own model (docs/library.md). Only such programs train the run, and have their own
    `model`, `tokenizer`, `data` and `inner`. The program fills it in."""
    layout: Annotated[str, MaxLen(64)] = ""
    """Digest of the shapes of that model's parameters, in order; a program with other shapes is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    source: Name = "bytes"
    """`bytes` (no download), a hub id or a local directory. With `model.pretrained`: the model's own, unless it is set."""
    revision: Name | None = None
    digest: Annotated[str, MaxLen(64)] = ""
    """Digest of a loaded tokenizer; filled in and checked like `model.digest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The source of the text, and the way it is cut into rows."""

    source: Literal["python", "text", "parquet", "arrow", "json", "hub", "plugin"] = "python"
    """`python`: sources and documentation of the standard library that this Python carries; `plugin`: an installed package; the
    others: read by `datasets`."""
    path: Name | None = None
    """Files (a glob), or the hub id; null for `python`."""
    digest: Annotated[str, MaxLen(64)] = ""
    """Digest of the content of local files, filled in and checked like `model.digest`, or of the embedded text: peers with
    another one are warned, and not refused."""
    share: bool = field(default=False, metadata=canonical.ADDED)
    """Peers that lack the local files (`text` or `json`, not compressed) get them from others by their digest."""
    files: Annotated[str, MaxLen(64)] = field(default="", metadata=canonical.ADDED)
    """Root of the shared files, filled in."""
    name: Name | None = None
    """Configuration of a hub dataset, such as `en`."""
    revision: Name | None = None
    split: Name = "train"
    text_column: Name = "text"
    messages_column: Name | None = None
    """Column of conversations, lists of messages with `role` and `content`, written by the model's chat template; only the
    assistant's texts are learned. Replaces `text_column`."""
    prompt_column: Name | None = None
    """Column of texts that are read but not learned; with `completion_column` it replaces `text_column`."""
    completion_column: Name | None = None
    """Column of texts that are learned and follow the prompts; with `prompt_column` it replaces `text_column`."""
    attention: Literal["row", "document"] = "row"
    """How far a token looks back: over all texts of its row, or only inside its own text. Conversations and completions always
    use the latter."""
    mixture: dict[str, PositiveFloat] = field(default_factory=dict)
    """Several data sets instead of `path`, each with its weight: samples are drawn from them in these proportions."""
    streaming: bool = False
    """Read shard by shard with a resumable cursor, instead of indexing everything at the start."""
    heldout_split: Name | None = None
    """Split of a hub dataset for evaluation; null: `heldout_fraction` of the documents, chosen by hash."""
    heldout_path: Name | None = None
    """Files for evaluation, read like those of `path`; null: `heldout_fraction` of the documents."""
    heldout_fraction: Annotated[float, Gt(0), Lt(1)] = 0.05
    sequence_length: Annotated[int, Ge(8), Le(131072)] = 256
    """Tokens of a row that the model reads."""
    plugin: Annotated[str, MaxLen(100)] = ""
    """Entry point of an installed package that gives the texts (docs/plugins.md)."""
    arguments: dict[str, Scalar] = field(default_factory=dict)
    """Arguments of the function that `plugin` names."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All that is read by path or glob, in the order in which `digest` and `files` count the files."""
        return tuple(path for path in (self.path, *self.data_sets, self.heldout_path) if path is not None)

    @property
    def data_sets(self) -> dict[str, float]:
        """The mixture in the order in which all peers read it: that of the manifest, whatever the order in the author's
        file."""
        return dict(sorted(self.mixture.items()))

    @property
    def keeps_texts_apart(self) -> bool:
        """Whether rows hold several texts that do not read each other."""
        return self.attention == "document" or self.messages_column is not None or self.prompt_column is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerConfig:
    """The inner optimizer, with warm-up and cosine; its state is kept across rounds."""

    kind: Literal["adamw", "adamw8bit", "muon"] = "adamw"
    """`adamw8bit`: moments of 8 bits, 2 instead of 8 bytes per parameter; made for GPUs, on CPUs it is slow.
    `muon`: Muon for the matrices of the blocks, AdamW for embeddings, head and vectors (arXiv 2505.23725)."""
    learning_rate: PositiveFloat = 3e-3
    betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Ge(0)] = 0.1
    """Weight decay decoupled from the gradient: each step multiplies the parameters of `decayed` by 1 - learning rate *
    weight_decay."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.95
    """Momentum of Muon."""
    clip_norm: PositiveFloat = 1.0
    """Largest norm of an inner gradient."""
    warmup_steps: NaturalInt | None = None
    """Inner steps of linear warm-up. null: 64, unless `warmup_samples` counts samples instead."""
    warmup_samples: NaturalInt | None = None
    """Samples of linear warm-up, over all hosts of an instance: the same part of the run at every batch. A copy of an instance
    continues the count of its source. null: `warmup_steps` counts."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up; the cosine runs over the whole run."""
    final_fraction: Fraction = 0.1
    """Learning rate at the end of the cosine, as a fraction of the peak."""
    batch_scaling: Literal["none", "sqrt"] = "none"
    """Learning rate when the batch grows: unchanged, or times sqrt(effective / initial batch)."""
    batch_scaling_cap: Annotated[float, Ge(1)] = 2.0
    adoption_warmup_steps: NaturalInt = 50
    """Inner steps of warm-up after a host adopted foreign parameters and zeroed its moments."""
    decayed: Literal["all", "matrices"] = field(default="all", metadata=canonical.ADDED)
    """Which parameters `weight_decay` decays. `all`: every trained parameter. `matrices`: those of two dimensions or more,
    embeddings included, but no gain of a norm and no bias, as in most training loops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterConfig:
    """The outer optimizer, applied to the averaged pseudo-gradient."""

    kind: Literal["nesterov", "sgd", "average"] = "nesterov"
    """`average` is LocalSGD: the mean of the models."""
    learning_rate: PositiveFloat = 0.7
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.7
    """Momentum of `nesterov`. The mode sets it by H: 0.5 up to 32, 0.7 above (docs/results/tuned.md). In runs of at least 64
    rounds and 2,048 inner steps that train one new model with a constant batch, without overlap and fragments, it is 0.9 with
    H 32, and with `averaging.preset: sign` and H up to 32."""
    overlap: Literal["none", "delayed", "eager", "forecast", "streaming"] = "none"
    """Whether averaging overlaps with training, for slow links. `delayed`: a peer with one instance begins the next round's
    inner steps while the last one is averaged, and the outer update comes one round late. `eager`: these inner steps begin from
    the peer's own share of that update (arXiv 2502.12996). `forecast`: they begin where the update would end if the average
    were the peer's own pseudo-gradient. `streaming`, with `averaging.fragments`: local parameters go on, and are mixed with the
    outer parameters of each fragment when these come (arXiv 2501.18512). The cost of each is in `docs/results/time.md`."""
    delay_steps: PositiveInt = 5
    """With `streaming`: a fragment's update is mixed in after so many inner steps of the next round, or later where its average
    takes longer."""
    mixing: Annotated[float, Ge(0), Lt(1)] = 0.5
    """With `streaming`: the part of a peer's own parameters that stays in that mixture; 0: the outer ones replace them."""
    state: Literal["float32", "mixed", "bfloat16"] = "float32"
    """The types in which outer parameters and momentum are kept, served, saved, and sent to a joiner: 8, 6 or 4 bytes per
    parameter. `mixed`: the momentum as bfloat16, the parameters exact. `bfloat16`: both. Values that are no longer exact are
    rounded stochastically, as the run's seed draws it: the same bytes on every peer. Their cost is in docs/results/bytes.md."""

    @property
    def state_bytes_per_parameter(self) -> int:
        """Bytes per parameter of outer parameters and momentum."""
        return {"float32": 8, "mixed": 6, "bfloat16": 4}[self.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    """Scores on tasks of lm-eval during the run, measured by a full member that is drawn among those that can. Nobody checks
    its claim."""

    names: Annotated[tuple[TaskName, ...], MaxLen(MAX_TASKS)] = ()
    """Tasks by their names in lm-eval, or in a machine's `tasks_path`: single tasks, no groups and no files. Empty: none."""
    every_rounds: PositiveInt = 10
    """Score after every so many rounds."""
    limit: PositiveInt | None = 200
    """Score only the first so many documents of each task; null: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    period_rounds: NaturalInt = 1
    """Evaluate every live instance after every so many rounds; 0: only at the end."""
    rows: PositiveInt = 64
    """The number of held-out rows; a fixed set, equal on every peer."""
    seed: NaturalInt | None = None
    """Draws these rows from all held-out rows, which follow from the data alone, so runs with the same evaluation seed are
    evaluated on the same rows. null: the run's `seed`. Not with `data.streaming`, which gives the first rows."""
    sample_tokens: Annotated[int, Ge(0), Le(256)] = 0
    """The number of tokens by which the evaluating peer continues each of `sample_prompts` after an evaluation; its page, log
    and report show the texts. 0: none. Each token of each prompt costs a forward pass of one row."""
    sample_prompts: Annotated[tuple[Annotated[str, MinLen(1), MaxLen(200)], ...], MinLen(1), MaxLen(4)] = ("The ",)
    """Beginnings of texts, as the run's own text could have them."""
    tasks: TasksConfig = field(default_factory=TasksConfig)


AVERAGING_PRESETS: dict[str, dict[str, Scalar]] = {
    "dense": {"averaging.codec": "float32"},
    "half": {"averaging.codec": "float16"},
    "int8": {"averaging.codec": "int8", "averaging.feedback": 1.0},
    "sign": {
        "averaging.codec": "sign",
        "averaging.feedback": 1.0,
        "batch.statistic": "micro_batch",
        "outer.momentum": 0.9,
    },
    "sparse": {
        "averaging.codec": "topk2",
        "averaging.division": "named",
        "averaging.feedback": 0.95,
        "batch.statistic": "micro_batch",
        "outer.kind": "sgd",
        "outer.learning_rate": 1.0,
    },
}
"""The settings of `averaging.preset`: `outer.*` where the codec needs another outer step than the run's mode sets, and the
statistic of the batch test where most of what is sent was lost in earlier rounds, whose noise pseudo-gradients would show. The
momentum counts in long runs only (`presets.LONG_ROUNDS`)."""
BYTES_PER_VALUE = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "int8": 1.02,
    "int4": 0.79,
    "topk2": 0.048,
    "sign": 0.126,
    "sign_int4": 0.344,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingConfig:
    preset: Literal["dense", "half", "int8", "sign", "sparse"] | None = None
    """A codec and the settings that belong to it, by name; `adloco-peer plan` shows the cost of each (`docs/results/bytes.md`).
    `averaging.codec` is then left out; other settings that are written override the preset."""
    codec: Literal["float32", "float16", "bfloat16", "int8", "int4", "topk2", "sign", "sign_int4"] = "float32"
    """The form in which pseudo-gradients travel: values of 4 or 2 bytes; blocks of 8- or 4-bit integers; `topk2`: 64 of 4096
    values, 2 bits each; `sign`: one bit each, and a scale for 4096. Means return in the same form, except those of `int4` as
    `int8`, those of `topk2` with every value that a host named, 4 bits each, and those of `sign_int4`, which sends signs too,
    as `int4`."""
    aggregation: Literal["mean", "robust", "clip", "geometric_median", "centered_clip"] = "robust"
    """How contributions become one average. `mean`: the weighted mean, which one host can turn into anything. `clip`: from
    three hosts on, no host's contribution is longer than the median one. `robust`: the same, and from four hosts on,
    contributions that most others contradict are left out and near copies count once. `geometric_median`, `centered_clip`: for
    comparison. All but `mean` wait for every upload before parts return."""
    division: Literal["all", "named"] = "all"
    """The weights by which each value of a mean is divided: those of all hosts or, with `topk2` only, of the hosts that named
    its place. The value then moves by all that one host has gathered there, up to twice what the middle host shows nearby."""
    feedback: Fraction = 1.0
    """The part of the loss of `int8`, `int4`, `topk2` and signs that a host adds to its next pseudo-gradient; 0: the loss is
    final."""

    recheck: Annotated[float, Ge(0), Le(256)] = 0.05
    """How much of each average its members make again together, at least one part, to find reducers that return a wrong sum.
    0.05: a twentieth of the parts; 1.0: as many as there are, some of them twice; one less than the hosts: every host makes
    everything again. Costs about half as many bytes again per round. 0: never."""

    assess_every: NaturalInt = 0
    """Look at one contribution per instance after every so many rounds: three hosts, drawn by lot, fetch it and measure whether
    its host trained on the rows that it was given. A host that does not train on them gets a quarter of the rows, and so of the
    weight. The host that is looked at uploads its contribution three times. 0: never. Not with `data.streaming`."""

    fragments: Annotated[int, Ge(1), Le(64)] = 1
    """The number of parts of the parameter vector that are averaged in turn, one a round; local parameters of the others go on
    (arXiv 2501.18512). Divides the bytes of a round. 1: the whole vector every round."""

    @property
    def bytes_per_value(self) -> float:
        """Approximate bytes per parameter in a round: the mean of both directions, with 4 hosts where that matters."""
        return BYTES_PER_VALUE[self.codec] / self.fragments


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The settings of one training run."""

    name: Name = "adloco-embedded"
    mode: Literal["adloco", "diloco", "localsgd"] = "adloco"
    """A preset of the sections below, by name; settings in the file override the preset."""
    protocol: Annotated[int, Ge(OLDEST), Le(NEWEST)] = NEWEST
    """The protocol with which the run begins; it goes over to newer ones once all electors can follow them."""
    author: Annotated[str, MaxLen(64)] = ""
    """The author of the run, as a PeerID. `adloco-peer start` fills it in, so that two runs of one file are two runs."""
    founders: Annotated[tuple[Annotated[str, MinLen(1), MaxLen(64)], ...], MaxLen(MAX_FOUNDERS)] = ()
    """Peers beside the author, as PeerIDs, that the first plan counts on: the run begins when all are there. `adloco-peer
    swarm` fills it in."""
    packages: dict[str, Name] = field(default_factory=dict)
    """The packages that provide the run's entry points, with the version that every peer must have. `adloco-peer start` fills
    it in."""
    seed: NaturalInt = 42
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    inner: InnerConfig = field(default_factory=InnerConfig)
    outer: OuterConfig = field(default_factory=OuterConfig)
    work: WorkRules = field(default_factory=WorkRules)
    instances: InstanceRules = field(default_factory=InstanceRules)
    batch: BatchRules = field(default_factory=BatchRules)
    switch: SwitchRules = field(default_factory=SwitchRules)
    merge: MergeRules = field(default_factory=MergeRules)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    guard: GuardRules = field(default_factory=GuardRules)

    @property
    def rules(self) -> Rules:
        """The rules that the core needs. All hosts take part in all averages where these overlap with the next round, or
        average fragments in turn, since the turns would collide with a link period."""
        has_periods = self.outer.overlap == "none" and self.averaging.fragments == 1
        return Rules(
            work=self.work if has_periods else replace(self.work, link_tolerance=None),
            instances=self.instances,
            batch=self.batch,
            switch=self.switch,
            merge=self.merge,
            admission=self.admission,
            guard=self.guard,
            assess_every=self.averaging.assess_every,
            final_fraction=self.inner.final_fraction,
        )

    @property
    def readers(self) -> dict[str, InstanceId]:
        """Each data set with the first instance that trains on it, where instances have data of their own; otherwise empty."""
        own = self.instances.data
        return {name: InstanceId(own.index(name)) for name in self.data.data_sets} if own else {}

    @property
    def tokens_per_sample(self) -> int:
        """The most tokens of a sample: the length of a row; a sample of a program's model counts as one token."""
        return 1 if self.model.program else self.data.sequence_length

    @property
    def digest(self) -> Digest:
        """The run's id: SHA-256 of the canonical form."""
        return canonical.digest(self)
