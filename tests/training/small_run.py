"""A run small enough to train in a test: a Llama of 29k parameters on made-up rows."""

from dataclasses import replace

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import EvaluationConfig, InnerConfig, ModelConfig, OuterConfig, RunConfig, Scalar
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.training.hosting import Hosting

VOCAB_SIZE, LENGTH = 256, 32
ME = PeerId("peer-a")
ONE, TWO, THREE = InstanceId(0), InstanceId(1), InstanceId(2)
ARCHITECTURE: dict[str, Scalar] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
RUN = RunConfig(
    seed=7,
    model=ModelConfig(architecture=dict(ARCHITECTURE)),
    inner=InnerConfig(learning_rate=1e-2, warmup_steps=4, adoption_warmup_steps=6),
    outer=OuterConfig(kind="nesterov", learning_rate=0.7, momentum=0.7),
    evaluation=EvaluationConfig(rows=8),
)
PEER = PeerConfig(device="cpu", num_threads=1, deterministic=True, max_micro_batch=64)


def rows_of(stream: str, first: int, count: int, *, is_padded: bool = False) -> Batch:
    """Rows that count upwards from a random token: learnable, and different for every stream and index."""
    ids = torch.empty(count, LENGTH, dtype=torch.int64)
    for row in range(count):
        generator = torch.Generator().manual_seed(hash_of(stream, first + row))
        start = torch.randint(VOCAB_SIZE, (), generator=generator)
        ids[row] = (start + 3 * torch.arange(LENGTH)) % VOCAB_SIZE
        ids[row, ::7] = torch.randint(VOCAB_SIZE, (len(ids[row, ::7]),), generator=generator)
    labels = ids.clone()
    if is_padded:
        for row in range(count):
            labels[row, LENGTH - 3 * (row % 4) :] = IGNORED_LABEL
    return Batch(input_ids=ids, labels=labels)


def hash_of(stream: str, index: int) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(stream)) % 1_000_003 * 100_003 + index


class Rows:
    """One stream, by index; notes how far it was read."""

    def __init__(self, feed: "SyntheticFeed", instance: InstanceId, first: int) -> None:
        self.feed, self.instance, self.next = feed, instance, first

    def take(self, num_samples: int) -> Batch:
        rows = rows_of(f"train {self.instance}", self.next, num_samples, is_padded=self.feed.is_padded)
        self.next += num_samples
        self.feed.cursor[self.instance] = self.next
        return rows

    def read_ahead(self, num_samples: int) -> None:
        """Rows that are made need no reading."""


class SyntheticFeed:
    """Every instance has its own endless order; the cursor only shows that it is saved."""

    vocab_size = VOCAB_SIZE
    sequence_length = LENGTH

    def __init__(self, *, is_padded: bool = False) -> None:
        self.is_padded = is_padded
        self.cursor: dict[InstanceId, object] = {}

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> Rows:
        return Rows(self, instance, first_sample)

    def heldout(self, num_rows: int) -> Batch:
        return rows_of("heldout", 0, num_rows)

    def drawn(self, lot: str, num_rows: int) -> Batch:
        return rows_of(lot, 0, num_rows)

    def of(self, reads: tuple[InstanceId, ...]) -> "SyntheticFeed":
        return self

    def state(self, instance: InstanceId) -> dict[str, object]:
        return {"next": self.cursor.get(instance, 0)}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        self.cursor[instance] = state["next"]


def hosting(run: RunConfig = RUN, *, peer: PeerConfig = PEER, me: PeerId = ME, feed: SyntheticFeed | None = None) -> Hosting:
    return Hosting(run, peer, me, feed or SyntheticFeed())


def effect(
    instance: InstanceId = ONE,
    round: int = 0,
    *,
    batch: int = 4,
    micro: int = 4,
    steps: int = 5,
    first_sample: int | None = None,
) -> RunInner:
    """A round of one host that does the whole batch."""
    first = round * batch * steps if first_sample is None else first_sample
    share = HostShare(
        peer=ME,
        batch_samples=batch,
        inner_steps=steps,
        micro_batch_size=micro,
        accumulation_steps=-(-batch // micro),
        first_sample=first,
    )
    plan = InstancePlan(
        instance=instance,
        requested_batch=batch,
        effective_batch=batch,
        mode="single",
        reason="test",
        hosts=(share,),
        first_sample=first,
        inner_steps_before=round * steps,
    )
    return RunInner(round=round, plan=plan, share=share, progress_start=round / 10, progress_end=(round + 1) / 10)


def never() -> bool:
    return False


def silent(step: int, loss: object, tokens: int) -> None:
    """Progress that nobody watches."""


def train_round(peer: Hosting, work: RunInner, *, lost: float | None = None) -> torch.Tensor:
    """One whole round of a lonely host: inner steps, and the outer step with its own pseudo-gradient, which is returned. Every
    value has lost `lost` on its way."""
    assert peer.run_inner(work, should_stop=never, on_progress=silent) is not None
    delta = peer.pseudo_gradient(work.plan.instance).clone()
    residual = None if lost is None else torch.full_like(delta, lost)
    peer.apply_outer(work.plan.instance, delta, round=work.round, residual=residual)
    return delta


def with_run(**changes: object) -> RunConfig:
    return replace(RUN, **changes)  # type: ignore[arg-type]
