"""All errors in one table: exit codes, and error codes with cause and remedy.

`docs/errors.md` is generated from here (`python -m adloco_p2p.error_codes > docs/errors.md`), `adloco-peer explain-error CODE`
prints one entry, and every message to the user names its code. The first digit of a code, which is the exit code, names the
origin of the error. Codes are never reused; within a digit they have no order.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One kind of error. In the texts `...` stands around commands; DIR is the working directory, DIR-2 a new one."""

    title: str
    cause: str
    remedy: str

    def remedy_in(self, workdir: Path | None) -> str:
        """Return the remedy with commands that can be copied: with this working directory, if it is known."""
        return self.remedy if workdir is None else _DIR.sub(lambda _: shlex.quote(str(workdir)), self.remedy)


_DIR = re.compile(r"\bDIR\b(?!-)")

EXIT_CODES = {
    0: "done, or stopped on request with everything saved",
    1: "a fault of the program, of a GPU or of a process of the node: starting again may cure it",
    2: "what was asked for cannot be done: the command line, the configuration or the data",
    3: "the network",
    4: "the disk",
    5: "this machine: device, memory, installed software",
    130: "Ctrl-C before training began; while training: the second one",
    141: "the reader of the output has closed it",
}

ERROR_CODES = {
    # --- 1: ours -----------------------------------------------------------------------------------------------------
    "E101": ErrorCode(
        "a fault of the program",
        "Something happened that the program does not expect. The state on the disk is that of the last checkpoint.",
        "Start again with the same command. Report the fault together with the support bundle that the message names;"
        " `adloco-peer bundle --workdir DIR` writes a new one.",
    ),
    "E102": ErrorCode(
        "a GPU failed",
        "The GPU's driver reports an error. A process cannot use what it had on the GPU after such an error. The state on the"
        " disk is that of the last checkpoint.",
        "Start again with the same command. If the error comes back, `sudo dmesg | grep Xid` names the fault: heat, power,"
        " memory or the driver. Other programs on the card may take its memory (`nvidia-smi`).",
    ),
    "E103": ErrorCode(
        "a process that holds a part of the model ended",
        "With `shards` each device has a process. One of them was killed (most often because main memory ran out), failed, or"
        " did not answer. The node ends with it, because no other process has its part. The last checkpoint is intact.",
        "The same command continues from the last checkpoint. The message names the process and its last words; `journalctl"
        " -k` shows whether the system killed it.",
    ),
    # --- 2: the user's -----------------------------------------------------------------------------------------------
    "E200": ErrorCode(
        "the command line is not understood",
        "A verb or an option is unknown or missing, or an option does not take the given value.",
        "`adloco-peer --help` lists the verbs, `adloco-peer VERB --help` the options of one.",
    ),
    "E201": ErrorCode(
        "a setting is not accepted",
        "A setting has an unknown name or a value out of range, or two settings contradict each other. The message lists all"
        " of them.",
        "`adloco-peer config show CONFIG` prints every setting of a run with its value, origin and meaning, and `adloco-peer"
        " config show --peer` those of the machine; correct the file, `--set KEY=VALUE` or `--peer-set KEY=VALUE`.",
    ),
    "E202": ErrorCode(
        "a configuration file cannot be read",
        "The file is missing, unreadable, not YAML or TOML, or too long. Shipped configurations are named without a path.",
        "Check the path, or correct the line that the message names; `adloco-peer config show default` shows what a"
        " configuration holds.",
    ),
    "E203": ErrorCode(
        "the working directory belongs to another run",
        "A working directory is bound to one run, because its state means nothing in another one.",
        "`adloco-peer start --workdir DIR` without CONFIG, --set and --rounds continues the run of the directory, or"
        " `adloco-peer join --workdir DIR` where this peer joined it; until it is complete, `adloco-peer command set` changes"
        " its length and learning rate. For another run take a new `--workdir`.",
    ),
    "E204": ErrorCode(
        "no run, or no checkpoint yet, in the working directory",
        "The path is wrong, or the run has not finished its first round.",
        "`adloco-peer start CONFIG --workdir DIR` makes a run. If there is one, wait for its first round.",
    ),
    "E205": ErrorCode(
        "more than one run matches",
        "The peers that were reached list several runs, or the join links lead to several, or elsewhere than `--run`.",
        "`adloco-peer join --initial-peers ADDR --workdir DIR --run ID`, with an id from the message.",
    ),
    "E206": ErrorCode(
        "not an address or a join link",
        "A part was lost while copying, most often the end `/p2p/...`, or it is the address of something else.",
        "Copy the whole line that the other peer printed and put it in quotes:"
        " `adloco-peer join --initial-peers 'adloco://...' --workdir DIR`.",
    ),
    "E207": ErrorCode(
        "the data cannot be used",
        "The files or the data set are missing, unreachable, of another form, without the text column, or too small.",
        "Correct `data.*` in the configuration, or the file of `--data`; `adloco-peer config show CONFIG` explains each"
        " setting. `--set data.source=python data.path=null data.name=null data.revision=null data.heldout_split=null"
        " data.messages_column=null` needs no download.",
    ),
    "E208": ErrorCode(
        "the tokenizer cannot be used",
        "It cannot be loaded from the hub or the directory, has no end-of-text token, or belongs to another model.",
        "Correct `tokenizer.source`: with `model.pretrained` leave it out, and the model's own tokenizer is used. For a model"
        " that is trained from the beginning `--set tokenizer.source=bytes tokenizer.revision=null` needs no download.",
    ),
    "E209": ErrorCode(
        "the model cannot be built",
        "`transformers` does not know the architecture or its sizes, or they do not fit each other, the tokenizer, the data or"
        " the given weights.",
        "Correct `model.*`, or name other weights; `adloco-peer plan CONFIG --samples 1000` builds the model without training"
        " it.",
    ),
    "E210": ErrorCode(
        "no such device here",
        "The setting `device` names a device that this machine, or the installed torch, does not have.",
        "`--peer-set device=auto` takes what is there;"
        " `python -c 'import torch; print(torch.cuda.is_available())'` shows whether torch sees a GPU.",
    ),
    "E211": ErrorCode(
        "the output exists already",
        "The directory to write is not empty, and nothing is overwritten.",
        "Name a new directory, such as `--output DIR-2`.",
    ),
    "E212": ErrorCode(
        "the events of the run cannot be read",
        "`events.jsonl` is missing, empty or not an event file, or no round has finished.",
        "Check `--workdir`; otherwise wait until the first round has finished.",
    ),
    "E213": ErrorCode(
        "a run is trained either offline or on the network",
        "Training with `--offline` is in no ledger, so others could not verify it, and a ledger must not miss rounds.",
        "Continue the run as it began, or take a new directory: `adloco-peer start CONFIG --workdir DIR-2`. A run on the"
        " network continues without others, too.",
    ),
    "E214": ErrorCode(
        "a run of others asks for files of this machine",
        "The configuration of the run names files, or a directory that exists here, as text, model or tokenizer. The content"
        " of these files would reach the other peers through the model.",
        "Look at the paths in the message. If these files are meant to be in the run:"
        " `--peer-set allow_local_files=true` with the same command.",
    ),
    "E215": ErrorCode(
        "a run of others does not pin what it downloads",
        "A data set, model or tokenizer of the hub is named without a commit. Its owner could change at any time what every"
        " peer reads, and two peers could train on different texts.",
        "The author must start the run anew with `data.revision`, `model.revision` and `tokenizer.revision` set to commit"
        " hashes of 40 digits; the hub shows them under `History`.",
    ),
    "E216": ErrorCode(
        "a data set names files that are not its own",
        "The card of a hub data set names an absolute path, an address or another repository. Files of this machine or of"
        " its network would end up in the training data.",
        "Do not use this data set. An author who needs several repositories copies their files into one.",
    ),
    "E217": ErrorCode(
        "the model is too large for this machine",
        "Training takes at least 20 bytes per parameter, and loading a pretrained model takes 2 or 4. This is more than this"
        " machine and its GPUs have. Or the model has so many layers that building it would exhaust the memory.",
        "Join with a larger machine, which `adloco-peer doctor` describes. As the author, lower the sizes in"
        " `model.architecture`, or name a smaller model in `model.pretrained`.",
    ),
    "E220": ErrorCode(
        "the control API is not for the network",
        "Any process that reaches the address of the control API could stop the node, so it listens on this machine only.",
        "`--peer-set control_address=auto` listens on a socket in the working directory. From another machine use ssh: `ssh"
        " HOST adloco-peer status --workdir DIR`.",
    ),
    "E221": ErrorCode(
        "the run does not let this peer in",
        "A seat of this run costs an invitation. The link holds none, its seats are taken, its last round is over, it was"
        " revoked, or this peer is banned. The message names the reason.",
        "Ask a signer of the run for another link, which `adloco-peer invite` prints on the signer's machine,"
        " and join with it: `adloco-peer join --initial-peers LINK --workdir DIR`. A ban ends with the signer's `adloco-peer"
        " unban`.",
    ),
    "E222": ErrorCode(
        "only a signer of the run can do this",
        "Invitations, bans and orders carry the signature of a signer: the author who started the run, or a peer that a signer"
        " has added.",
        "Use the working directory of a signer, such as the one in which the run was started. `adloco-peer signers --workdir"
        " DIR` lists the signers, and `adloco-peer signers --add PEER` in such a directory adds this peer.",
    ),
    "E223": ErrorCode(
        "a task cannot be evaluated",
        "lm-eval has no task of that name, the file is not one of its tasks, or its data cannot be loaded. Without a network,"
        " data of the hub must have been downloaded before.",
        "`lm-eval ls tasks` lists the names. A YAML file of your own with local data needs no network: `adloco-peer evaluate"
        " --workdir DIR --tasks FILE.yaml`.",
    ),
    "E224": ErrorCode(
        "the hub does not let you write there",
        "There is no token on this machine, the token may only read, or the repository belongs to somebody else.",
        "`hf auth login` with a token that may write, or set HF_TOKEN. `hf upload OWNER/NAME EXPORT` uploads an export that was"
        " written already.",
    ),
    "E218": ErrorCode(
        "the model, the tokenizer or the data are not those of the run",
        "Files of this machine, or of the hub, have another content than the files with which the run was started. The message"
        " has both digests.",
        "Get the same files as the author of the run. If you are the author and have changed them on purpose, start a new run"
        " in a new directory: `adloco-peer start CONFIG --workdir DIR-2`.",
    ),
    "E225": ErrorCode(
        "no node runs in this directory",
        "A verb such as `adloco-peer status` asks the node that runs in the working directory, and there is none. It was never"
        " started there, has ended, or is still starting.",
        "Check `--workdir`; start the node with `adloco-peer start` or `adloco-peer join`. If it is starting, `adloco-peer"
        " watch` waits for it.",
    ),
    "E230": ErrorCode(
        "the model belongs to a program",
        "A program of the run's author trains the run around `adloco_p2p.Swarm`, which holds the model. A program with a model"
        " of other shapes, or with another name for it, cannot take part either.",
        "Run the same program as the author, with the join link; docs/library.md describes it. Read its runs like all others:"
        " `adloco-peer status --workdir DIR`, `adloco-peer report --workdir DIR --output DIR-2`.",
    ),
    "E231": ErrorCode(
        "a tracker's package is missing",
        "The machine's settings name TensorBoard or W&B in `trackers`. Their packages are extras of adloco-peer.",
        "In the checkout: `pip install -c constraints.txt '.[tensorboard]'`, or `'.[wandb]'`; or leave `trackers` out.",
    ),
    "E232": ErrorCode(
        "a plugin of the run is missing, of another version, or does not work",
        "The run names entry points of a package (model, data or loss), which every peer must have in the version of"
        " `packages`. Code never comes from the network.",
        "Check the origin of the package, then `pip install` it in the version of the message, into the environment of"
        " adloco-peer. docs/plugins.md describes what a plugin must give.",
    ),
    "E233": ErrorCode(
        "a call of the library is not accepted",
        "A program gave `adloco_p2p.Swarm` or its `step` unexpected arguments, called them in another order, reported a"
        " negative loss, or changed the shapes or types of its parameters inside the block.",
        "The message names what is accepted; docs/library.md has an example that runs.",
    ),
    "E234": ErrorCode(
        "the run is complete",
        "Statements of a signer take effect with a later plan, and the last plan of this run is decided.",
        "`adloco-peer export` writes its model; a new run goes on from there: `adloco-peer start CONFIG --workdir NEW --set"
        " model.pretrained=EXPORT`.",
    ),
    # --- 3: the network's --------------------------------------------------------------------------------------------
    "E301": ErrorCode(
        "the network did not deliver",
        "No peer answered in time.",
        "Check the connection and start again with the same command; nothing is lost.",
    ),
    "E302": ErrorCode(
        "none of the known peers can be used",
        "All given or remembered addresses are dead, blocked by a firewall, or have changed, or the run is over and its peers"
        " have left. The message lists each with its reason.",
        "If the other peer is starting just now, give the same command again. Otherwise ask for a current join link, or add to"
        " yours the address that `adloco-peer status` prints at any member: `--initial-peers LINK ADDRESS`. On the other"
        " machine, open the port that it listens on.",
    ),
    "E303": ErrorCode(
        "the run is not known there",
        "Peers were reached, but none announces the run: its first peer is not up, or all its peers are gone.",
        "Wait until the first peer runs, and check the id that was given with `--run`.",
    ),
    "E304": ErrorCode(
        "no peer could give the run's configuration",
        "No peer that has the run could be reached: its first peer is not up yet, or the run is over and all have left. Or the"
        " author did not sign the configuration that they gave.",
        "Try again in a minute; if it persists, ask the author whether the run is over and whether the join link is right.",
    ),
    "E305": ErrorCode(
        "the p2p daemon does not start",
        "The network part (p2pd) could not start or listen, after several attempts.",
        "The message ends with the daemon's output. `--host-maddrs /ip4/0.0.0.0/tcp/0` lets it choose a free port.",
    ),
    "E306": ErrorCode(
        "the p2p daemon ended",
        "The network part (p2pd) crashed or was killed, often by the kernel because memory ran out.",
        "Start again with the same command: the checkpoint is intact. `sudo dmesg | tail` shows whether memory ran out.",
    ),
    "E307": ErrorCode(
        "cannot listen there",
        "Another program uses the port, or the address is not one of this machine.",
        "A free port is taken by `--host-maddrs /ip4/0.0.0.0/tcp/0` of a node and by `--port 0` of a page; `ss -ltnp` shows"
        " which program has the given one.",
    ),
    "E308": ErrorCode(
        "the clock is off",
        "The clock of this machine differs too much from the clocks of the other peers, so address records look expired.",
        "`sudo timedatectl set-ntp true`, then start again.",
    ),
    "E309": ErrorCode(
        "the identity is in use",
        "Another process takes part with the same `identity.key`: the working directory was copied, or an old process"
        " still runs on another machine.",
        "Stop the other one, or give each process its own `--workdir`. Never copy `identity.key`.",
    ),
    "E310": ErrorCode(
        "averaging failed",
        "A peer of the round left, or was too slow. The attempt is repeated with the others.",
        "There is nothing to do; the message names the peers that the attempt waited for.",
    ),
    "E311": ErrorCode(
        "the state could not be fetched",
        "No peer could serve the requested state: donors left, or the state is older than the states that they keep.",
        "Start again with the same command.",
    ),
    "E312": ErrorCode(
        "a peer of the local swarm did not start",
        "One of the processes that `swarm` starts ended or did not listen in time.",
        "Read the log file that the message names.",
    ),
    "E313": ErrorCode(
        "a message that does not belong here",
        "A peer sent a message that no honest peer of this run and version sends.",
        "Check that all peers run the same version: `pip show adloco-peer`.",
    ),
    "E314": ErrorCode(
        "this peer does not have the run's model",
        "The run is over. No peer brought its final state, or nothing here shows that the state here is that of the run. Most"
        " peers had left before this one came to the end, or this peer came back when no other was there, and trained the rest"
        " alone.",
        "Ask a peer that ended the run for its export. `adloco-peer export` writes the model of this peer's last checkpoint.",
    ),
    "E315": ErrorCode(
        "nobody is there to let this peer in",
        "This peer has no seat yet, and for five minutes nothing came from any peer of the run, not even from a paused one."
        " All have left or fell silent, or this machine was cut off.",
        "Check the connection first: `adloco-peer doctor --initial-peers LINK`. Then ask the author whether the run is over,"
        " or paused with all of its peers off. If it is not over, start again with the same command when a peer of the run is"
        " up.",
    ),
    "E316": ErrorCode(
        "the run follows a newer protocol",
        "All members that decide in the run have upgraded, and the run switched to a protocol that the installed version does"
        " not know.",
        "In the checkout: `git pull`, then `pip install -c constraints.txt .`; or take the newer image. Then start again with"
        " the same command and directory.",
    ),
    "E351": ErrorCode(
        "the node does not answer",
        "The node runs but is suspended, or the machine is so busy that the node has not answered for ten seconds.",
        "`ps -o pid,stat,cmd -p $(cat DIR/lock)` shows a T if the node is stopped; `kill -CONT $(cat DIR/lock)` resumes it.",
    ),
    "E352": ErrorCode(
        "this user may not control the node",
        "Only the user who started the node can read the folder `control/` in its working directory, and the token in it.",
        "Run the command as the user who started the node.",
    ),
    "E353": ErrorCode(
        "the control API cannot listen",
        "Another program has taken the address that `control_address` names.",
        "Choose another port with `--peer-set control_address=127.0.0.1:PORT`, 0 for any free one, or `auto` for a socket in"
        " the working directory.",
    ),
    "E354": ErrorCode(
        "the node uses another version of the control API",
        "Another version of adloco-peer than this one started the node.",
        "Use the adloco-peer that started the node, or restart the node with this one.",
    ),
    "E355": ErrorCode(
        "the node refuses",
        "The node understood the request and refused it for the reason in the message.",
        "The message names what the node would accept.",
    ),
    # results of `doctor`
    "E320": ErrorCode(
        "an initial peer does not answer",
        "Nothing listens at its address any more, a firewall is in between, or the peer is off. Others can take its place.",
        "Ask for a current address or join link; on that machine, `ss -ltn` shows whether the port is open.",
    ),
    "E321": ErrorCode(
        "this machine's clock is off",
        "This machine's clock differs by more than a minute from the clocks of other peers. The run is not affected; times in"
        " logs are wrong.",
        "`sudo timedatectl set-ntp true`.",
    ),
    "E322": ErrorCode(
        "others cannot connect to this machine",
        "A NAT or a firewall lets in answers only. The node still takes part, through connections that it opens itself. It"
        " reaches others behind a NAT by hole punching or relays, which takes up to some minutes.",
        "Forward a TCP port of the router to this machine and pass it on:"
        " `adloco-peer join ... --host-maddrs /ip4/0.0.0.0/tcp/31337 --announce-maddrs /ip4/PUBLIC-IP/tcp/31337`.",
    ),
    "E323": ErrorCode(
        "the connection is slow",
        "Less than one Mbit/s goes to or comes from the fastest peer that was asked: averaging a large model takes long.",
        "Stop other traffic, use a cable instead of radio, then run `adloco-peer doctor --initial-peers ADDR` again.",
    ),
    "E324": ErrorCode(
        "another version of the protocol",
        "A peer that was reached takes part in a run of a protocol that the installed version does not know.",
        "If that run is newer, in the checkout: `git pull`, then `pip install -c constraints.txt .`; or take the newer image."
        " A run of an older protocol needs an older adloco-peer.",
    ),
    "E330": ErrorCode(
        "the hub does not take the model",
        "The hub cannot be reached, HF_HUB_OFFLINE is set, or the upload broke off.",
        "Check the connection. `hf upload OWNER/NAME EXPORT` uploads an export that was written already.",
    ),
    # --- 4: the disk's -----------------------------------------------------------------------------------------------
    "E401": ErrorCode(
        "reading or writing failed",
        "The operating system refused the access for the reason in the message.",
        "Correct what the message names, then start again with the same command; nothing was overwritten.",
    ),
    "E402": ErrorCode(
        "the disk is full",
        "No space or quota is left.",
        "`df -h DIR` shows the free space. Free some, then start again with the same command; nothing was overwritten.",
    ),
    "E403": ErrorCode(
        "not permitted",
        "This user may not write there, or the file system is read-only.",
        "On a read-only file system, choose another `--workdir` or `--output`; otherwise `sudo chown -R $USER DIR`.",
    ),
    "E404": ErrorCode(
        "the working directory is in use",
        "Another adloco-peer works in it; the message names its process id.",
        "`adloco-peer leave --workdir DIR` ends it, or `kill -TERM PID`; or choose another `--workdir`.",
    ),
    "E405": ErrorCode(
        "a saved file cannot be used",
        "A file of the working directory is damaged, belongs to another run, or was written by another version.",
        "Restore it from a copy. Where no checkpoint can be used, a peer that joined a run deletes the folder `checkpoints` in"
        " its directory and gives the same command: it fetches the state from the others and stays the same peer. A new"
        " `--workdir` makes a new peer.",
    ),
    "E406": ErrorCode(
        "the identity cannot be used",
        "`identity.key` is damaged, or others on this machine may read it; or a signer's verb found none.",
        "`chmod 600 DIR/identity.key`; restore the key from a copy, or remove a damaged one to become a new peer.",
    ),
    "E407": ErrorCode(
        "there is no ledger",
        "The ledger begins with the first agreed plan; a run trained with `--offline` keeps none.",
        "Wait for the first round, or name the `--workdir` of a peer that was on the network.",
    ),
    "E420": ErrorCode(
        "little space on the disk",
        "Checkpoints, the data and the model need a few times the size of the model. Writing fails when the disk is full.",
        "`df -h DIR` shows the free space. Free some, or choose another `--workdir`.",
    ),
    # --- 5: this machine's -------------------------------------------------------------------------------------------
    "E501": ErrorCode(
        "the device cannot do the work",
        "Not even the smallest piece of work fits this device.",
        "`--peer-set device=cpu`, or take part with a larger machine.",
    ),
    "E502": ErrorCode(
        "not enough memory",
        "The model with its optimizer, or one sample, does not fit the memory that may be used.",
        "`--max-instances 1`; on a GPU `--peer-set activation_checkpointing=true` or `--peer-set memory_fraction=0.9`, on a"
        " processor `--peer-set memory_budget_bytes=N` with the bytes that one sample needs. Close other programs that use the"
        " GPU (`nvidia-smi`) or the main memory.",
    ),
    "E503": ErrorCode(
        "training has diverged",
        "Four rounds in a row led to a loss or parameters that are not finite. The last checkpoint is intact.",
        "The author must lower the learning rate and start a new run: `inner.learning_rate`, or in a program around"
        " `adloco_p2p.Swarm` the rate of its own optimizer. A program whose optimizer keeps moments that are not finite must"
        " reset it in `on_reset` (`docs/library.md`). If it happens on one machine only, suspect faulty memory or an"
        " overclocked GPU.",
    ),
    "E520": ErrorCode(
        "this Python is too old",
        "The first supported version is Python 3.11.",
        "`sudo apt install python3.11 python3.11-venv`, then a new environment: `python3.11 -m venv .venv`.",
    ),
    "E521": ErrorCode(
        "a package is missing or of another version",
        "Something was installed or upgraded beside the node, the installation was interrupted, or the run needs an extra.",
        "In the checkout: `pip install -c constraints.txt .`; with an extra that the message names, replace `.`, for example"
        " by `'.[finetune]'` for adapters.",
    ),
    "E522": ErrorCode(
        "there is a GPU, but torch cannot use it",
        "The driver is too old for the installed torch, the CPU build of torch is installed, the container got no GPU, or the"
        " card is older than the cards that this torch was built for.",
        "`nvidia-smi` must work. It shows the newest CUDA that the driver serves: if `torch.version.cuda` has a larger first"
        " number, update the driver, or install a torch for an older CUDA. With the CPU build: `pip install --force-reinstall"
        " torch`. In a container: start it with `--gpus all`.",
    ),
    "E523": ErrorCode(
        "little memory",
        "The default model needs about 1 GB in addition to the system. Larger models need about 48 bytes per parameter and"
        " instance on a processor, or 32 of main memory beside a GPU.",
        "Close other programs; `--max-instances 1` keeps the need small.",
    ),
    "E524": ErrorCode(
        "this machine emulates the arithmetic of the run",
        "The run prescribes bfloat16, and a device has no instructions for it: a processor with neither AMX nor AVX512-BF16, or"
        " a GPU before NVIDIA's Ampere generation. An inner step takes several times as long as in float32, so the plan gives"
        " this peer few rows.",
        "The author of the run decides before it starts. `model.precision=auto` lets each machine take what it has."
        " `model.lora.base_precision=float32` costs every peer twice the memory of the base, and suits a run in which most"
        " peers emulate bfloat16. A peer that joins cannot change these settings: it takes part, slowly.",
    ),
}


def explained(code: str) -> str:
    """Return one entry, as `explain-error` prints it. Raises KeyError for an unknown code."""
    entry = ERROR_CODES[code]
    return f"{code}: {entry.title} (exit code {code[1]})\ncause:  {entry.cause}\nremedy: {entry.remedy}"


def as_markdown() -> str:
    """Return the whole text of docs/errors.md."""
    lines = [
        "# Errors",
        "",
        "Generated from `adloco_p2p/error_codes.py`. `adloco-peer explain-error CODE` prints one entry.",
        "",
        "## Exit codes",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
        "## Error codes",
        "",
        "The first digit is the exit code.",
        "",
        "| code | what | cause | remedy |",
        "|---|---|---|---|",
    ]
    for code, entry in sorted(ERROR_CODES.items()):
        cells = (code, entry.title, entry.cause, entry.remedy)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")  # noqa: T201
