"""The configuration of one machine. Never hashed; of its settings `nickname` alone is sent."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from adloco_p2p.core.model.rules import NaturalInt, PositiveInt
from adloco_p2p.core.model.scalars import Label

MOST_SHARDS = 64
LEAST_CAP_BYTES_PER_SECOND = 10_000
"""A lower cap is a mistake of units: gossip passes every cap and takes some thousand bytes per second, which leaves nothing for
the rest."""


def cap_problem(bytes_per_second: float) -> str:
    """Why traffic cannot be capped so, and what is accepted; empty where it can, or where it is 0: no cap."""
    if bytes_per_second == 0 or bytes_per_second >= LEAST_CAP_BYTES_PER_SECOND:
        return ""
    accepted = f"bytes per second from {LEAST_CAP_BYTES_PER_SECOND} on, or 0 for no cap"
    return f"{bytes_per_second} leaves no room beside gossip; accepted: {accepted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """One volunteer's machine."""

    device: str | tuple[str, ...] = "auto"
    """`auto` (all GPUs of NVIDIA, or of AMD with torch for ROCm; else Apple's; else the processor), `cpu`, `cuda`, `cuda:N`,
    `mps`, or several such as `[cuda:0, cuda:1]`; AMD's are named `cuda`, too. Instances are spread over the devices and train
    at once."""
    shards: Annotated[int, Ge(1), Le(MOST_SHARDS)] = 1
    """Over how many devices one model is divided (FSDP2), for models that one device does not hold: as many GPUs as `device`
    names, `auto`: the first ones; on a CPU as many processes. Each device has a process that holds its part of parameters,
    gradient and moments. 1: every device holds all."""
    tf32: bool = True
    """On a GPU: products of float32 matrices may round their factors to TF32, eight times as fast on newer NVIDIA cards."""
    num_threads: PositiveInt | None = None
    """CPU threads of torch; none: all cores."""
    deterministic: bool = False
    """Bit-identical repetition on the same machine and thread count, at some cost in speed on GPUs."""
    memory_fraction: Annotated[float, Gt(0), Le(1)] = 0.85
    """Part of each GPU's memory that training may use, of what other programs leave when the node starts."""
    memory_budget_bytes: Annotated[int, Ge(1 << 20)] = 2 << 30
    """On a CPU, or an Apple GPU: bytes that one micro-batch may need for its activations and gradients."""
    activation_checkpointing: bool = False
    """Keep of a block's activations its input only and compute the others again: about half of the memory, a quarter more time,
    the same gradients bit for bit."""
    compile: bool = False
    """On a GPU: compute with the model compiled by torch.compile, for faster inner steps (twice as fast on an H200); compiling
    takes up to minutes, at the start and at the first rows of another kind. Needs Triton, a C compiler and Python's headers."""
    document_kernel: bool = True
    """On an NVIDIA GPU that computes in bfloat16: rows of several documents go through torch's attention for sequences of
    different lengths, without a mask, where it gives what masked attention gives. Has no effect with `deterministic`."""
    max_micro_batch: PositiveInt = 1024
    """The probe never tries a larger micro-batch, in samples."""
    max_instances: PositiveInt = 8
    """How many instances this machine may host."""
    keeper: bool = False
    """Hold the newest states and the ledger for others, and train nothing (`adloco-peer keep`)."""
    task_seconds: NaturalInt = 1800
    """How long a child process of lowest priority may score the model on the run's tasks, on the CPU, where this peer is drawn;
    0: this machine scores none. It takes a gigabyte and 8 bytes per parameter, and is the first to go when memory is short."""
    tasks_path: str | None = None
    """Directory of tasks of your own, YAML files of lm-eval, that a run may name; their code is run."""
    checkpoint_period_rounds: PositiveInt = 1
    """Interval in rounds at which the state is saved (it is also saved at the end and when stopping)."""
    checkpoint_period_seconds: Annotated[float, Ge(0)] | None = None
    """The least time between two saves; none: as much as keeps the mean rate of writing at 32 MB a second."""
    checkpoints_kept: Annotated[int, Ge(2)] = 2
    """The newest ones; at least two, so that a torn one has one before it."""
    nickname: Label = ""
    """Shown to the others of a run beside this peer's id; none, until you choose one. Nobody checks that it is yours alone."""
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses to listen on."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses to announce to others, where they differ from the listening ones (port forwarding)."""
    client_mode: bool = False
    """Do not accept connections; for machines that others cannot reach."""
    use_relay: bool = True
    """Use relays of others where needed, and be one where possible."""
    use_auto_relay: bool = True
    """Behind a NAT, become reachable through a relay among the known peers."""
    allow_local_files: bool = False
    """Whether a run that somebody else wrote may name files of this machine as its text, model or tokenizer."""
    daemon_start_seconds: Annotated[float, Ge(1)] = 60.0
    """How long the network's daemon may take to start, over all attempts; more for a slow or busy machine."""
    control_address: str = "auto"
    """Endpoint for this machine's commands: `auto` (a socket in the working directory; loopback with a token where its path is
    too long), a loopback `IP:PORT` (0: any port), `off`."""
    grace_seconds: Annotated[float, Ge(0)] = 5.0
    """After SIGTERM the round may continue for this time; then the node leaves at once. Container runtimes kill after 10."""
    metrics_port: Annotated[int, Ge(0), Le(65535)] = 0
    """Serve metrics for Prometheus at http://METRICS_HOST:PORT/metrics; 0: no."""
    metrics_host: str = "127.0.0.1"
    """IP address on which the metrics are served, to everyone who can reach it."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Experiment trackers that get the metrics behind every round and the inner loss, by the names of Prometheus: files in the
    working directory, `tensorboard` and `wandb`; each needs the extra of its name."""
    upload_bytes_per_second: NaturalInt = 0
    """Cap of all traffic out, at least 10000; 0: none."""
    download_bytes_per_second: NaturalInt = 0
    """Cap of all traffic in, at least 10000; 0: none."""
    daily_budget_bytes: NaturalInt = 0
    """Traffic of one day, in and out together, after which the node pauses until midnight, local time; 0: no limit."""
    quiet_hours: tuple[str, ...] = ()
    """Ranges of local time such as `22:00-07:00` in which the node pauses, or keeps to the caps of the two settings below."""
    quiet_upload_bytes_per_second: NaturalInt = 0
    """Cap of all traffic out in quiet hours, beside the usual one: the lower holds; 0 for both: the node pauses."""
    quiet_download_bytes_per_second: NaturalInt = 0
    """The same for all traffic in."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The names in `device`."""
        return (self.device,) if isinstance(self.device, str) else self.device
