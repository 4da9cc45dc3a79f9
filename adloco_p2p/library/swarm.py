"""A peer inside a user's own program: the program trains, the node does everything else.

The node runs in a thread with its own event loop; the program's thread meets it in `Swarm.step` (training/own_loop.py).
"""

import asyncio
import contextlib
import json
import logging
import numbers
import operator
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

import torch

from adloco_p2p.config.load import Loaded, load_peer, load_run, load_run_settings
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.numerics.digest import tensor_digest
from adloco_p2p.numerics.layout import gathered
from adloco_p2p.runtime.adapters.embedding import Built, Embedding
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.runtime.network_node import join_run, start_run
from adloco_p2p.runtime.node.loop import Node
from adloco_p2p.storage.workdir import Workdir
from adloco_p2p.swarm.discovery.join import JoinTarget
from adloco_p2p.swarm.discovery.join_link import is_link, split_initial_peers
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.p2p.listening import check_config, wait_for_ports
from adloco_p2p.training.own_loop import Evaluate, OwnLoop, check_loss, layout_digest

logger = logging.getLogger("adloco_p2p")
"""Gets the text that the command would print for its user, at level INFO, the join link included."""

LEAVE_SECONDS = 30.0
"""How long a node may take that was asked to leave at once; then its tasks are cancelled."""
MOST_PER_STEP = 1 << 40
"""Most samples or tokens of a step: those of a whole round still fit a report."""
Named = tuple[str, torch.nn.Parameter]
Settings = Mapping[str, Any]


def peer_id(workdir: str | Path) -> str:
    """Return the id of the peer that works in this directory, and make its key where there is none. A run's `founders` are such
    ids. Raises StorageError."""
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    return Identity.load_or_create(workdir / "identity.key").peer_id


class Swarm:
    """A peer of a run around the program's own loop: a context manager, used in one thread.

    `with Swarm(...) as swarm` returns once the first round begins here, with the run's parameters in the program's. Call `step`
    after each step of the program's optimizer. After H of them (`work.inner_steps`, or as many as the plan gives this peer) it
    averages with the others, applies the outer step, and returns at the start of the next round, for which it sets
    `parameters`. Nothing else in `step` waits for the network. Errors of the node are raised here, as AdlocoError with a code.
    """

    def __init__(
        self,
        target: str | Path | Settings,
        *,
        workdir: str | Path,
        parameters: Iterable[torch.nn.Parameter] | Iterable[Named],
        name: str = "own model",
        evaluate: Evaluate | None = None,
        on_reset: Callable[[], None] | None = None,
        peer: Settings | None = None,
    ) -> None:
        """`target`: a join link, or the run to start: a configuration file, or its settings (dotted keys; mode diloco if not
        set). `workdir`: this peer's directory; the same call with it again resumes. `parameters`: all that are trained, fp32,
        in the same order and shapes on all peers. `name`: the model's name, the same on all peers. `evaluate`: returns the
        held-out loss of the model as it is, 0 or more; called in this thread between rounds. `on_reset`: resets the inner
        optimizer; called in this thread where a round begins from parameters that do not follow from the program's last ones:
        after its training has diverged, and with a state from other peers. `peer`: settings of the machine. Nothing begins
        before `with`.

        Raises ConfigError for settings and parameters that cannot be used.
        """
        if target == "" or not isinstance(target, str | Path | Mapping):
            raise ConfigError(
                f"Swarm({target!r}, ...): accepted: a join link, the path of a configuration, or settings by their names",
                code="E233",
            )
        self._target = target
        self._directory = Path(workdir)
        self._parameters = _checked(parameters)
        self._name = name
        self._evaluate = evaluate
        self._on_reset = on_reset
        machine = load_peer(None, [f"{key}={_as_json(key, value)}" for key, value in (peer or {}).items()]).value
        if machine.keeper:
            raise ConfigError("keeper: true, but a program trains; accepted: false, or `adloco-peer keep`", code="E201")
        if machine.shards > 1:
            raise ConfigError(f"shards: {machine.shards}, but a program divides its model itself; accepted: 1", code="E201")
        self._machine: PeerConfig = machine
        self._layout = layout_digest(self._parameters)
        self._engine: OwnLoop | None = None
        self._built, self._ended = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._node: Node | None = None
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._thread: threading.Thread | None = None
        self._link: str = ""
        self.is_finished = False
        """Whether the run is complete; its model is then in `parameters`."""

    # --- the program's loop ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise ConfigError(
                "the swarm was entered before; accepted: a new Swarm(...), which resumes in its workdir", code="E233"
            )
        check_config(self._machine)
        if not self._machine.client_mode:
            wait_for_ports(self._machine.host_maddrs)
        workdir = Workdir.open(self._directory)
        try:
            workdir.keep_to(is_offline=False)
            work = self._join(workdir, str(self._target)) if self._is_link else self._start(workdir)
        except BaseException:
            workdir.close()
            raise
        self._thread = threading.Thread(target=self._run, args=(work, workdir), name="adloco-node", daemon=True)
        self._thread.start()
        try:
            self._built.wait()
            if self._engine is None:
                assert self._failure is not None
                raise self._failure
            self._engine.wait()
        except BaseException:
            self._cancel()
            raise
        return self

    def step(self, *, samples: SupportsIndex, loss: torch.Tensor | float, tokens: SupportsIndex | None = None) -> bool:
        """Count a step that the program's optimizer has done. Blocks only at the end of a round. Returns False once the run is
        complete, or this peer was asked to stop: then leave the loop.

        `samples`: samples in this step's batch, which are its weight in the average. `loss`: the batch's mean loss, 0 or
        more. `tokens`: tokens, for the views only. Raises ConfigError for invalid arguments, and the error that ended the node.
        """
        num_samples = _whole("samples", samples, least=1, what="the rows of the batch")
        num_tokens = num_samples if tokens is None else _whole("tokens", tokens, least=0, what="the tokens of the batch")
        if isinstance(loss, torch.Tensor) and loss.numel() != 1:
            raise ConfigError(f"step(loss=...): {tuple(loss.shape)} values; accepted: one, the mean of the batch", code="E233")
        if not isinstance(loss, torch.Tensor | numbers.Real):
            raise ConfigError(f"step(loss={loss!r}): accepted: a number, or a tensor of one value", code="E233")
        if not isinstance(loss, torch.Tensor):  # the end of the round looks at tensors, which may lie on a device
            check_loss("step(loss=...)", float(loss))
        return self._running.step(samples=num_samples, tokens=num_tokens, loss=loss)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the run and save the last boundary. The steps of an unfinished round count if the others average them within
        `grace_seconds` of the machine's settings; after an exception nothing is averaged. Raises the error that ended the
        node."""
        try:
            if kind is None and not self._ended.is_set() and self._running.finish_early():
                self._command("drain", "the program is done")
                if self._running.wait(timeout_seconds=self._machine.grace_seconds):
                    self._leave("the program is done")  # a round may begin that the program will not do
        except TimeoutError:
            self._leave("the program is done, and the others are not")
        finally:
            self._leave("the program is done")
        if kind is None and self._failure is not None:
            raise self._failure

    # --- the run's plan and links ------------------------------------------------------------------------------------

    @property
    def link(self) -> str:
        """The link by which others join; with an invitation where this peer is the author. Empty where others cannot dial
        it."""
        return self._link

    @property
    def round(self) -> int | None:
        """The round of the next step, from 0; None once the run has none left."""
        return self._running.round

    @property
    def inner_steps(self) -> int:
        """The steps that the plan gives this peer in this round; 0 once there is no round."""
        share = self._running.share
        return share.inner_steps if share is not None else 0

    @property
    def batch_samples(self) -> int:
        """The samples per step that the plan gives this peer in this round; 0 once there is no round. A program that keeps to
        this number takes part in batch tests and in sharing by speed; samples beyond the plan's are not credited."""
        share = self._running.share
        return share.effective_batch if share is not None else 0

    # --- inside: the start -------------------------------------------------------------------------------------------

    @property
    def _running(self) -> OwnLoop:
        if self._engine is None:
            raise ConfigError("the swarm is not entered; accepted: `with adloco_p2p.Swarm(...) as swarm:`", code="E233")
        return self._engine

    @property
    def _is_link(self) -> bool:
        return isinstance(self._target, str) and is_link(self._target)

    def _start(self, workdir: Workdir) -> Coroutine[Any, Any, Stop]:
        run = self._identified(workdir)
        try:
            workdir.adopt(run)
        except ConfigError as error:
            if workdir.run is None or workdir.run.author == run.author:
                raise
            raise ConfigError(
                f"{workdir.path}: holds run {workdir.run.name} ({workdir.run.digest[:16]}), which this peer joined, and Swarm"
                " got the settings of a run to start; accepted: a link to that run (adloco://...), which resumes it, or another"
                " workdir",
                code="E203",
            ) from error
        return start_run(self._embedding(workdir), run, initial_peers=())

    def _join(self, workdir: Workdir, link: str) -> Coroutine[Any, Any, Stop]:
        split_initial_peers([link])
        return join_run(self._embedding(workdir), JoinTarget(initial_peers=(link,), run=None))

    def _identified(self, workdir: Workdir) -> RunConfig:
        """Return the run to start. A directory that holds it keeps its first parameters, because a restarted program draws
        others."""
        if isinstance(self._target, Mapping):
            names = {"mode": "diloco", "model.program": self._name, "model.layout": self._layout}
            plain = {key: json.loads(_as_json(key, value)) for key, value in self._target.items()}
            loaded = load_run_settings({**names, **plain})
        else:
            overrides = [f"model.program={json.dumps(self._name)}", f"model.layout={self._layout}"]
            loaded = load_run(Path(self._target), overrides)
        _warn_about_inner(loaded)
        asked = loaded.value
        known = workdir.run.model if workdir.run is not None else None
        is_known = known is not None and (known.program, known.layout) == (self._name, self._layout)
        first = known.digest if known is not None and is_known else tensor_digest(gathered(self._parameters))
        author = Identity.load_or_create(workdir.identity_path).peer_id
        return workdir.as_begun(replace(asked, author=author, model=replace(asked.model, digest=first)))

    def _embedding(self, workdir: Workdir) -> Embedding:
        return Embedding(
            workdir=workdir,
            config=self._machine,
            view=_NoView(),
            say=logger.info,
            prepare=lambda: None,
            build=self._build,
            steer=self._steer,
            began=time.monotonic(),
            on_link=self._take_link,
        )

    # --- inside: in the node's thread --------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, Stop], workdir: Workdir) -> None:
        try:
            stop = asyncio.run(self._noting_task(work))
            if stop.is_finished and self._engine is not None and not self._engine.hosted:
                raise SwarmError(
                    f"the run was over when this peer came to it, and {workdir.path} holds no model of it; the peers that"
                    " trained to its end, or kept it, have the model",
                    code="E314",
                )
            self.is_finished = stop.is_finished
        except BaseException as error:  # raised again in the program's thread
            self._failure = error
        finally:
            workdir.close()
            self._ended.set()
            self._built.set()
            if self._engine is not None:
                self._engine.close(self._failure)

    async def _noting_task(self, work: Coroutine[Any, Any, Stop]) -> Stop:
        task = asyncio.current_task()
        assert task is not None
        self._task = asyncio.get_running_loop(), task
        return await work

    def _build(self, run: RunConfig, peer_config: PeerConfig, me: PeerId, workdir: Workdir) -> Built:
        """Build the engine. Raises ConfigError where the run's model is not the program's."""
        del peer_config
        self._check_model(run, me, is_fresh=not any(workdir.checkpoints_path.glob("round-*")))
        engine = OwnLoop(run, me, self._parameters, evaluate=self._evaluate, on_reset=self._on_reset)
        self._engine = engine
        self._built.set()
        return Built(engine=engine, unigram_entropy=None)

    def _check_model(self, run: RunConfig, me: PeerId, *, is_fresh: bool) -> None:
        model = run.model
        if not model.program:
            raise ConfigError(
                f"run {run.name}: trains a model that every peer builds itself, not a program's; accepted: `adloco-peer join`"
                " with this link",
                code="E230",
            )
        if model.program != self._name:
            raise ConfigError(
                f"name={self._name!r}: run {run.name} trains {model.program!r}; accepted: the author's program and name",
                code="E230",
            )
        if model.layout != self._layout:
            count, values = len(self._parameters), sum(parameter.numel() for parameter in self._parameters)
            raise ConfigError(
                f"parameters: {count} tensors of {values} values together, but run {run.name} has other shapes or another order"
                " of them; accepted: those of the author's program, in its order",
                code="E230",
            )
        if is_fresh and me in roster_of(genesis_of(run)) and tensor_digest(gathered(self._parameters)) != model.digest:
            raise ConfigError(
                "parameters: their values differ from those of the run's author, and founders begin with their own; accepted:"
                " equal ones (draw them after torch.manual_seed), or a peer that is no founder, which fetches them",
                code="E230",
            )

    def _steer(self, node: Node, peer_config: PeerConfig) -> None:
        """Install no signal handlers: the program has its own."""
        del peer_config
        self._node = node

    def _take_link(self, link: str) -> None:
        self._link = link

    # --- inside: the end ---------------------------------------------------------------------------------------------

    def _command(self, command: Command, reason: str) -> None:
        assert self._node is not None, "a round has begun"
        self._node.command(command, reason=reason)

    def _leave(self, reason: str) -> None:
        """Ask the node to leave, and return once it has ended."""
        assert self._thread is not None
        if not self._ended.is_set():
            self._command("leave", reason)
            try:
                self._running.wait_for_end(timeout_seconds=LEAVE_SECONDS)
            except TimeoutError:
                self._cancel()
        self._thread.join()

    def _cancel(self) -> None:
        """End the node in any state, and return once it has ended."""
        assert self._thread is not None
        if self._task is not None:
            loop, task = self._task
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node has ended
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join()


def _warn_about_inner(loaded: Loaded[RunConfig]) -> None:
    """Warn about settings of the inner loop, which nothing reads. They are not refused, since they are part of the digest of a
    run that was begun with them."""
    unwritten = ("default", "preset ", "averaging.preset ")
    written = [key for key, origin in loaded.origins.items() if key.startswith("inner.") and not origin.startswith(unwritten)]
    if written:
        logger.warning(
            "%s: without effect, because the program's own optimizer does the inner steps; set its learning rate and warm-up"
            " in the program, and leave inner.* out of a new run's settings",
            ", ".join(written),
        )


def _whole(name: str, value: SupportsIndex, *, least: int, what: str) -> int:
    """Return the number of an argument of `step`, which may be a tensor of one integer. Raises ConfigError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not least <= number <= MOST_PER_STEP:
        raise ConfigError(
            f"step({name}={value!r}): accepted: a whole number from {least} to {MOST_PER_STEP}, {what}", code="E233"
        )
    return number


def _as_json(key: str, value: object) -> str:
    """Return the value of a setting as JSON; a path is its text. Raises ConfigError."""
    try:
        return json.dumps(value, default=os.fspath)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{key}: a {type(value).__name__}; accepted: numbers, texts, true or false, null, and lists of these", code="E201"
        ) from None


def _checked(given: Iterable[torch.nn.Parameter] | Iterable[Named]) -> list[torch.nn.Parameter]:
    """Return the parameters in their order. Raises ConfigError where they cannot be averaged."""
    if isinstance(given, torch.nn.Module | torch.Tensor | Mapping):
        raise ConfigError(f"parameters: a {type(given).__name__}; accepted: such as net.parameters()", code="E233")
    found = [item[1] if isinstance(item, tuple) else item for item in given]
    if not found:
        raise ConfigError("parameters: none; accepted: such as net.parameters()", code="E233")
    for place, parameter in enumerate(found):
        if not isinstance(parameter, torch.Tensor):
            kind = type(parameter).__name__
            raise ConfigError(f"parameters: number {place} is a {kind}; accepted: such as net.parameters()", code="E233")
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"parameters: number {place} is {parameter.dtype}; accepted: torch.float32 (autocast computes in less)",
                code="E233",
            )
        if parameter.is_inference():
            raise ConfigError(
                f"parameters: number {place} was made under torch.inference_mode, so nothing can train it; accepted: parameters"
                " that are made outside of it",
                code="E233",
            )
    if len({id(parameter) for parameter in found}) < len(found):
        raise ConfigError(
            "parameters: one of them is there twice; accepted: each once, as net.parameters() gives them", code="E233"
        )
    if frozen := sum(not parameter.requires_grad for parameter in found):
        logger.warning(
            "parameters: %d of %d do not require a gradient, and are averaged and sent all the same; to leave them out, give"
            " [one for one in net.parameters() if one.requires_grad]",
            frozen,
            len(found),
        )
    return found


class _NoView:
    """Shows nothing, because the program decides what to show; `Run` reads the events."""

    def start(self) -> None:
        """Do nothing."""

    def recall(self, events: Any) -> None:
        """Do nothing."""

    def update(self, stamped: Stamped) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""
