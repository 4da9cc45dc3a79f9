"""The configuration of one machine. It is never hashed, and only its setting `nickname` is sent."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from adloco_p2p.core.model.rules import NaturalInt, PositiveInt
from adloco_p2p.core.model.scalars import Label

MOST_SHARDS = 64
LEAST_CAP_BYTES_PER_SECOND = 10_000
"""The lowest cap that is accepted. A lower one must be a mistake of units: gossip ignores caps and takes some thousand bytes
per second, which would leave nothing for the rest."""


def cap_problem(bytes_per_second: float) -> str:
    """Return why traffic cannot be capped at this rate, and what is accepted; empty where it can, and for 0, which means no
    cap."""
    if bytes_per_second == 0 or bytes_per_second >= LEAST_CAP_BYTES_PER_SECOND:
        return ""
    accepted = f"bytes per second from {LEAST_CAP_BYTES_PER_SECOND} on, or 0 for no cap"
    return f"{bytes_per_second} leaves no room beside gossip; accepted: {accepted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """The settings of one volunteer's machine."""

    device: str | tuple[str, ...] = "auto"
    """`auto` (all GPUs of NVIDIA, or of AMD with torch for ROCm; else Apple's; else the processor), `cpu`, `cuda`, `cuda:N`,
    `mps`, or several such as `[cuda:0, cuda:1]`; AMD's are named `cuda`, too. Instances are spread over the devices and train
    at the same time."""
    shards: Annotated[int, Ge(1), Le(MOST_SHARDS)] = 1
    """How many devices divide one model (FSDP2) that is too large for one device: the GPUs that `device` names, the first ones
    of `auto`, or on a CPU as many processes. Each device has a process that holds its part of parameters, gradient and moments.
    1: every device holds the whole model."""
    tf32: bool = True
    """On a GPU: products of float32 matrices may round their factors to TF32, eight times as fast on newer NVIDIA cards."""
    num_threads: PositiveInt | None = None
    """CPU threads of torch; null: all cores."""
    deterministic: bool = False
    """Repeat computations bit for bit on the same machine with the same threads, at some cost in speed on GPUs."""
    memory_fraction: Annotated[float, Gt(0), Le(1)] = 0.85
    """The part of each GPU's memory that training may use, of what other programs leave when the node starts."""
    memory_budget_bytes: Annotated[int, Ge(1 << 20)] = 2 << 30
    """On a CPU or an Apple GPU: the bytes that one micro-batch may need for its activations and gradients."""
    activation_checkpointing: bool = False
    """Keep only the input of each block and compute its other activations again: about half of the memory, a quarter more time,
    the same gradients bit for bit."""
    compile: bool = False
    """On a GPU: compute with the model compiled by torch.compile, for faster inner steps (twice as fast on an H200). Compiling
    takes up to minutes, at the start and at the first rows of another kind. Needs Triton, a C compiler and Python's headers."""
    document_kernel: bool = True
    """On an NVIDIA GPU that computes in bfloat16: compute rows of several documents by torch's attention for sequences of
    different lengths, without a mask, where its results agree with masked attention. Has no effect with `deterministic`."""
    max_micro_batch: PositiveInt = 1024
    """The largest micro-batch, in samples, that the probe tries."""
    max_instances: PositiveInt = 8
    """The most instances that this machine may host."""
    keeper: bool = False
    """Hold the newest states and the ledger for others, and train nothing (`adloco-peer keep`)."""
    task_seconds: NaturalInt = 1800
    """The seconds for which a child process of lowest priority may score the model on the run's tasks, on the CPU, when this
    peer is drawn; 0: this machine scores none. The process takes a gigabyte and 8 bytes per parameter, and is the first to be
    ended when memory is short."""
    tasks_path: str | None = None
    """Directory of your own tasks, YAML files of lm-eval, that a run may name; their code is run."""
    checkpoint_period_rounds: PositiveInt = 1
    """Save the state after every so many rounds; it is also saved at the end and when the node stops."""
    checkpoint_period_seconds: Annotated[float, Ge(0)] | None = None
    """The least time between two saves; null: enough to keep the mean rate of writing at 32 MB a second."""
    checkpoints_kept: Annotated[int, Ge(2)] = 2
    """How many of the newest checkpoints are kept: at least two, so that an earlier one is left if the newest is incomplete."""
    nickname: Label = ""
    """The name that others in a run see beside this peer's id; empty until you choose one. Nobody checks that it is yours
    alone."""
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses on which the node listens."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses to announce to others, where they differ from the listening ones (port forwarding)."""
    client_mode: bool = False
    """Accept no connections; for machines that others cannot reach."""
    use_relay: bool = True
    """Use other peers as relays where needed, and relay for others where possible."""
    use_auto_relay: bool = True
    """Behind a NAT, become reachable through a relay among the known peers."""
    allow_local_files: bool = False
    """Whether a run that somebody else wrote may name files of this machine as its text, model or tokenizer."""
    daemon_start_seconds: Annotated[float, Ge(1)] = 60.0
    """How long the network's daemon may take to start, over all attempts; raise it for a slow or busy machine."""
    control_address: str = "auto"
    """The endpoint for this machine's commands: `auto` (a socket in the working directory, or loopback with a token where its
    path is too long), a loopback `IP:PORT` (0: any port), `off`."""
    grace_seconds: Annotated[float, Ge(0)] = 5.0
    """The seconds for which the round may continue after SIGTERM; then the node leaves at once. Container runtimes kill after
    10."""
    metrics_port: Annotated[int, Ge(0), Le(65535)] = 0
    """The port that serves metrics for Prometheus, at http://METRICS_HOST:PORT/metrics; 0: none."""
    metrics_host: str = "127.0.0.1"
    """The IP address on which the metrics are served, to everyone who can reach it."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Experiment trackers that get the metrics after every round and the inner loss, under the names of Prometheus. They write
    to the folders `tensorboard` and `wandb` of the working directory; each needs the extra of its name."""
    upload_bytes_per_second: NaturalInt = 0
    """Cap of all outgoing traffic, at least 10000; 0: none."""
    download_bytes_per_second: NaturalInt = 0
    """Cap of all incoming traffic, at least 10000; 0: none."""
    daily_budget_bytes: NaturalInt = 0
    """Traffic of one day, in and out together, after which the node pauses until midnight, local time; 0: no limit."""
    quiet_hours: tuple[str, ...] = ()
    """Ranges of local time, such as `22:00-07:00`, in which the node pauses, or keeps to the caps of the two settings below."""
    quiet_upload_bytes_per_second: NaturalInt = 0
    """Cap of all outgoing traffic in quiet hours, beside the usual cap; the lower one holds. 0 for this and the next setting:
    the node pauses."""
    quiet_download_bytes_per_second: NaturalInt = 0
    """Cap of all incoming traffic in quiet hours, beside the usual cap; the lower one holds."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The names in `device`."""
        return (self.device,) if isinstance(self.device, str) else self.device
