"""What lies in `peers/` is understood by those who will read it: adloco-peer, bash, compose, systemd."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from adloco_p2p.config.load import load_peer
from adloco_p2p.errors import AdlocoError, ConfigError, DeviceError, ShardLost, SwarmError
from tests.docs.pages import REPOSITORY, Block, check_command, sandbox

PEERS = REPOSITORY / "peers"
PROFILES = sorted(path for path in PEERS.glob("*.yaml") if not path.name.endswith("compose.yaml"))
SCRIPTS = [*sorted(PEERS.glob("*.sh")), REPOSITORY / "tests" / "run.sh"]
TOOLS = Path(sys.executable).parent
"""shellcheck and podman-compose come with the development requirements."""
UNIT = PEERS / "adloco-peer.service"


def run(command: list[str | Path], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=600)


def put_in_path(folder: Path, name: str, script: str) -> str:
    """A program of that name; returns the PATH that finds it first."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/usr/bin/env bash\n{script}\n")
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_profiles_are_settings_of_a_machine(path: Path) -> None:
    assert load_peer(path, []).value


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(path: Path) -> None:
    checked = run([TOOLS / "shellcheck", path])
    assert checked.returncode == 0, checked.stdout


def test_a_rented_gpu_turns_its_environment_into_a_command(tmp_path: Path) -> None:
    path = put_in_path(tmp_path, "adloco-peer", 'printf "%q " adloco-peer "$@"')
    ended = run(
        ["bash", PEERS / "rented-gpu.sh"],
        PATH=path,
        ADLOCO_PEERS="adloco://abc /ip4/203.0.113.7/tcp/4001/p2p/12D3KooWabc",
        ADLOCO_WORKDIR=str(tmp_path / "work dir"),
        ADLOCO_PORT="4002",
        ADLOCO_ANNOUNCE="/ip4/203.0.113.9/tcp/40123",
        ADLOCO_SET="device=cuda:0 max_instances=2",
    )
    assert ended.returncode == 0, ended.stderr
    check_command(ended.stdout)
    words = shlex.split(ended.stdout)
    assert words[2:6] == ["--initial-peers", "adloco://abc", "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWabc", "--workdir"]
    assert words[6] == str(tmp_path / "work dir")
    settings = words[words.index("--peer-set") + 1 :]
    assert settings == ["grace_seconds=25", "device=cuda:0", "max_instances=2"]
    assert load_peer(None, settings).value.grace_seconds == 25

    ended = run(["bash", PEERS / "rented-gpu.sh"], PATH=path, ADLOCO_PEERS="")
    assert ended.returncode != 0 and "ADLOCO_PEERS" in ended.stderr


@pytest.mark.parametrize(
    ("provider", "announced"),
    [
        ({"RUNPOD_PUBLIC_IP": "203.0.113.9", "RUNPOD_TCP_PORT_31337": "40123"}, "/ip4/203.0.113.9/tcp/40123"),
        ({"PUBLIC_IPADDR": "203.0.113.8", "VAST_TCP_PORT_31337": "40124"}, "/ip4/203.0.113.8/tcp/40124"),
        ({"PUBLIC_IPADDR": "203.0.113.8", "VAST_TCP_PORT_22": "40125"}, ""),
        ({"ADLOCO_PORT": "4002"}, ""),
    ],
    ids=["runpod", "vast", "not mapped", "own port"],
)
def test_a_rented_gpu_finds_the_address_that_its_provider_maps(
    provider: dict[str, str], announced: str, tmp_path: Path
) -> None:
    path = put_in_path(tmp_path, "adloco-peer", 'printf "%q " adloco-peer "$@"')
    put_in_path(tmp_path, "nvidia-smi", "echo GPU 0; echo GPU 1")  # one peer uses both
    common = {"PATH": path, "ADLOCO_PEERS": "adloco://abc", "ADLOCO_WORKDIR": str(tmp_path / "work")}
    ended = run(["bash", PEERS / "rented-gpu.sh"], **common, **provider)
    assert ended.returncode == 0, ended.stderr
    check_command(ended.stdout)
    words = shlex.split(ended.stdout)
    port = provider.get("ADLOCO_PORT", "31337" if announced else "0")
    assert words[words.index("--host-maddrs") + 1] == f"/ip4/0.0.0.0/tcp/{port}"
    assert not any("device" in word for word in words)
    announcing = words[words.index("--announce-maddrs") + 1] if "--announce-maddrs" in words else ""
    assert announcing == announced


def test_a_rented_machine_runs_one_peer_per_gpu_where_it_is_told_to_each_at_its_own_address(tmp_path: Path) -> None:
    path = put_in_path(tmp_path / "bin", "adloco-peer", 'printf "%q " adloco-peer "$@"')
    put_in_path(tmp_path / "bin", "nvidia-smi", "echo GPU 0; echo GPU 1")
    ended = run(
        ["bash", PEERS / "rented-gpu.sh"],
        PATH=path,
        ADLOCO_PEERS="adloco://abc",
        ADLOCO_WORKDIR=str(tmp_path / "work"),
        ADLOCO_SET="max_instances=2",
        ADLOCO_PER_GPU="1",
        RUNPOD_PUBLIC_IP="203.0.113.9",
        RUNPOD_TCP_PORT_31337="40123",
        RUNPOD_TCP_PORT_31338="40200",
    )
    assert ended.returncode == 0, ended.stderr
    for gpu, outside in ((0, 40123), (1, 40200)):
        command = (tmp_path / "work" / f"gpu-{gpu}.log").read_text()
        check_command(command)
        words = shlex.split(command)
        assert words[words.index("--host-maddrs") + 1] == f"/ip4/0.0.0.0/tcp/{31337 + gpu}"
        assert words[words.index("--announce-maddrs") + 1] == f"/ip4/203.0.113.9/tcp/{outside}"
        assert {"grace_seconds=25", "max_instances=2", f"device=cuda:{gpu}"} <= set(words)


def test_several_gpus_are_several_peers_that_end_together(tmp_path: Path) -> None:
    put_in_path(tmp_path / "bin", "nvidia-smi", "echo GPU 0; echo GPU 1; echo GPU 2")
    says_its_command = 'trap "echo ended; exit 0" TERM; printf "%q " adloco-peer "$@"; echo; while :; do read -t 1 < <(:); done'
    path = put_in_path(tmp_path / "bin", "adloco-peer", says_its_command.replace("read -t 1 < <(:)", "sleep 0.1"))
    process = subprocess.Popen(
        ["bash", PEERS / "several-gpus.sh", tmp_path / "gpus", "--initial-peers", "adloco://abc"],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    logs = [tmp_path / "gpus" / f"gpu-{number}.log" for number in range(3)]
    assert process.stdout is not None
    assert process.stdout.readline().startswith("3 peers")
    while not all(log.exists() and log.read_text().endswith("\n") for log in logs):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 0
    for number, log in enumerate(logs):
        command, ended = log.read_text().splitlines()
        check_command(command)
        assert f"device=cuda:{number}" in command and f"gpu-{number}" in command
        assert ended == "ended"


@pytest.mark.parametrize(("visible", "number"), [("", 2), ("3,0,2", 3)])
def test_parts_of_a_gpu_are_no_gpus_and_hidden_ones_are_not_counted(visible: str, number: int, tmp_path: Path) -> None:
    listed = "echo 'GPU 0: H100'; echo '  MIG 1g.10gb Device  0: (UUID: MIG-a)'; echo 'GPU 1: H100'"
    put_in_path(tmp_path / "bin", "nvidia-smi", listed)
    path = put_in_path(tmp_path / "bin", "adloco-peer", "exit 0")
    peers = ["--initial-peers", "adloco://abc"]
    ended = run(["bash", PEERS / "several-gpus.sh", tmp_path / "gpus", *peers], PATH=path, CUDA_VISIBLE_DEVICES=visible)
    assert ended.returncode == 0 and ended.stdout.startswith(f"{number} peers"), ended


def test_of_several_peers_one_that_crashes_starts_again_and_one_that_cannot_start_does_not(tmp_path: Path) -> None:
    put_in_path(tmp_path / "bin", "nvidia-smi", "echo GPU 0; echo GPU 1")
    script = 'case "$*" in *cuda:0*) exit 2 ;; esac; [ -e "$SEEN" ] && { echo done; exit 0; }; touch "$SEEN"; exit 1'
    path = put_in_path(tmp_path / "bin", "adloco-peer", script)
    ended = run(
        ["bash", PEERS / "several-gpus.sh", tmp_path / "gpus", "--initial-peers", "adloco://abc"],
        PATH=path,
        SEEN=str(tmp_path / "seen"),
        ADLOCO_RESTART_SECONDS="0",
    )
    assert ended.returncode == 2
    assert (tmp_path / "gpus" / "gpu-0.log").read_text() == ""
    words = "gpu-1 ended with exit code 1; it starts again in 0 s"
    assert (tmp_path / "gpus" / "gpu-1.log").read_text() == f"{words}\ndone\n"
    assert words in ended.stderr


def test_the_pause_before_a_restart_shrinks_after_a_long_life_and_nobody_has_to_read_of_it(tmp_path: Path) -> None:
    put_in_path(tmp_path / "bin", "nvidia-smi", "echo GPU 0")
    script = 'echo x >> "$SEEN"; case $(wc -l < "$SEEN") in 1) exit 1 ;; 2) sleep 3.1; exit 1 ;; esac'
    path = put_in_path(tmp_path / "bin", "adloco-peer", script)
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        ["bash", PEERS / "several-gpus.sh", tmp_path / "gpus", "--initial-peers", "adloco://abc"],
        env={**os.environ, "PATH": path, "SEEN": str(tmp_path / "seen"), "ADLOCO_RESTART_SECONDS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=writing,
        check=False,
        timeout=600,
    )
    os.close(writing)
    assert ended.returncode == 0
    words = "gpu-0 ended with exit code 1; it starts again in 1 s"
    assert (tmp_path / "gpus" / "gpu-0.log").read_text().splitlines() == [words, words]


def test_without_a_gpu_the_script_for_several_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bash", "sed", "wc", "mkdir"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    ended = run(["bash", PEERS / "several-gpus.sh", tmp_path / "gpus", "--initial-peers", "LINK"], PATH=str(tmp_path / "bin"))
    assert ended.returncode == 2 and "no nvidia-smi here" in ended.stderr and not (tmp_path / "gpus").exists()


def test_compose_file_is_read_by_a_compose_tool(tmp_path: Path) -> None:
    """podman-compose asks for podman's version before it reads anything; here nothing is run, so any answer will do."""
    path = put_in_path(tmp_path, "podman", "echo podman version 5.0.0")
    parsed = run([TOOLS / "podman-compose", "-f", PEERS / "compose.yaml", "config"], PATH=path)
    assert parsed.returncode == 0, parsed.stderr
    services = yaml.safe_load(parsed.stdout)["services"]
    assert len(services) == 4
    own = [volume for service in services.values() for volume in service["volumes"] if volume.endswith(":/data")]
    assert len(set(own)) == 4  # an identity each
    for service in services.values():
        (script,) = service["command"]
        assert run(["bash", "-n", "-c", script.replace("$$", "$")]).returncode == 0
        (command,) = re.findall(r"exec (adloco-peer .*)", script)
        check_command(command)


def test_the_compose_file_of_a_volunteer_is_read_by_a_compose_tool(tmp_path: Path) -> None:
    path = put_in_path(tmp_path, "podman", "echo podman version 5.0.0")
    file = PEERS / "volunteer.compose.yaml"
    command: list[str | Path] = [TOOLS / "podman-compose", "--profile", "gpu", "--profile", "page", "-f", file, "config"]
    parsed = run(command, PATH=path, ADLOCO_PEERS="adloco://abc", ADLOCO_SET="max_instances=2")
    assert parsed.returncode == 0, parsed.stderr
    services = yaml.safe_load(parsed.stdout)["services"]
    assert set(services) == {"peer", "gpu", "page"}
    for service in (services["peer"], services["gpu"]):
        (script,) = service["command"]
        (spoken,) = re.findall(r"^adloco-peer [^&]*", script, re.MULTILINE)
        words = spoken.replace("$$", "$").replace("\\\n", "")
        words = words.replace("$ADLOCO_PEERS", "adloco://abc").replace("$ADLOCO_SET", "max_instances=2")
        check_command(words)
        settings = load_peer(None, shlex.split(words)[shlex.split(words).index("--peer-set") + 1 :]).value
        assert float(service["stop_grace_period"].removesuffix("s")) > settings.grace_seconds
        assert service["read_only"] and service["restart"] == "unless-stopped", "after a clean end of the machine it comes back"
    assert services["page"]["restart"] == "unless-stopped"
    check_command(shlex.join(["adloco-peer", *services["page"]["command"]]))
    without = run(command, PATH=path, ADLOCO_PEERS="")
    assert without.returncode != 0 and "ADLOCO_PEERS" in without.stderr


@pytest.mark.parametrize(
    ("peer", "stops_by", "code", "says"),
    [
        ("exit 0", "a rest", 0, "ended with exit code 0 and is not started again"),  # the run is over
        ("exit 2", "a rest", 2, "ended with exit code 2 and is not started again"),
        ("exit 3", "itself", 3, ""),  # Docker starts it again
        ("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", "a signal", 0, ""),  # the machine shuts down
    ],
)
def test_a_volunteers_container_ends_or_rests(peer: str, stops_by: str, code: int, says: str, tmp_path: Path) -> None:
    """What ends by itself Docker starts again, and after a shutdown at the next boot; a container at rest is left alone."""
    ((script,), path) = (
        yaml.safe_load((PEERS / "volunteer.compose.yaml").read_text())["x-peer"]["command"],
        put_in_path(tmp_path, "adloco-peer", peer),
    )
    environment = {**os.environ, "PATH": path, "ADLOCO_PEERS": "adloco://abc", "ADLOCO_SET": ""}
    script = script.replace("$$", "$")
    if stops_by == "a signal":  # the peer is up before its shell knows the process
        script = script.replace("child=$!", "sleep 0.5; child=$!")
    process = subprocess.Popen(
        ["bash", "-c", script], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    if stops_by != "itself":
        assert (says or "up") in process.stdout.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == code


@pytest.mark.parametrize("path", sorted((PEERS / "kubernetes").glob("*.yaml")), ids=lambda path: path.name)
def test_kubernetes_manifests_keep_to_its_schema_and_leave_a_peer_time_to_leave(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.31", strict=True)
    (pod,) = (document["spec"]["template"]["spec"] for document in documents if "template" in document["spec"])
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"  # Always opens identity.key to the group
    (container,) = pod["containers"]
    words = [
        word.replace("$(ADLOCO_PEERS)", "adloco://abc").replace("$(NODE_ADDRESS)", "203.0.113.7") for word in container["args"]
    ]
    check_command(shlex.join(["adloco-peer", *words]))
    settings = load_peer(None, words[words.index("--peer-set") + 1 :]).value
    assert pod["terminationGracePeriodSeconds"] > settings.grace_seconds
    assert settings.metrics_host == "0.0.0.0"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, page in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], ports[asked["port"]]) == (page, settings.metrics_port)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] and {"/data", "/tmp"} == mounted


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_commands_of_the_compose_file_make_a_swarm(tmp_path: Path, warm_server: str) -> None:
    """As they stand, but for the folders that are volumes there, and without containers."""
    services = yaml.safe_load((PEERS / "compose.yaml").read_text())["services"]
    (tmp_path / "output").mkdir()
    with sandbox(tmp_path, warm_server) as box:
        for name, until in (("first", "join link:"), ("second", r"hosts 2 .*")):
            (script,) = services[name]["command"]
            script = script.replace("$$", "$").replace("/output", f"{tmp_path}/output").replace("/data", f"{tmp_path}/{name}")
            box.run(Block(directive=f"keep until {until}", script=f"CONFIG=configs/default.yaml\n{script}"))


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_compose_file_is_read_by_docker_compose() -> None:
    parsed = run(["docker-compose", "-f", PEERS / "compose.yaml", "config", "--quiet"])
    assert parsed.returncode == 0, parsed.stderr


def test_the_unit_starts_a_command_that_adloco_peer_understands() -> None:
    (line,) = re.findall(r"^ExecStart=/opt/adloco/bin/(adloco-peer .*)$", UNIT.read_text(), re.MULTILINE)
    check_command(line.replace("$ADLOCO_PEERS", "adloco://abc").replace("$ADLOCO_OPTIONS", "--peer-set device=cpu"))


def test_the_unit_outlasts_hours_without_a_network() -> None:
    text = UNIT.read_text()
    assert re.search(r"^StartLimitIntervalSec=0$", text, re.MULTILINE) and "StartLimitBurst" not in text


@pytest.mark.parametrize(
    ("error", "is_final"),
    [(ConfigError, True), (DeviceError, True), (SwarmError, False), (ShardLost, False), (AdlocoError, False)],
)
def test_the_unit_starts_again_what_may_go_on(error: type[AdlocoError], is_final: bool) -> None:
    (final,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert (str(error.exit_code) in final.split()) is is_final


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_read_by_systemd(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/adloco/bin/adloco-peer", shutil.which("true") or ""))
    checked = run(["systemd-analyze", "verify", "--man=no", unit])
    assert checked.returncode == 0 and not checked.stderr, checked.stderr


def test_the_dockerfile_copies_what_the_context_lets_through() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for names in copied for name in names.split()} == allowed
    assert all((REPOSITORY / name).exists() for name in allowed)


@pytest.mark.parametrize("answers", ["/data", "/data/peer-0", "the page", ""], ids=["node", "swarm", "dashboard", "nothing"])
def test_the_health_check_of_the_image_knows_every_verb(answers: str, tmp_path: Path) -> None:
    """As Docker runs it, but for the programs that it asks."""
    (check,) = re.findall(r"^HEALTHCHECK .* CMD ((?:.*\\\n)*.*)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    path = put_in_path(tmp_path, "adloco-peer", f'echo "$@" >> {tmp_path}/asked; [ "$3" = "{answers}" ]')
    put_in_path(tmp_path, "python3", f'echo "$2" >> {tmp_path}/asked; [ "{answers}" = "the page" ]')
    checked = run(["sh", "-c", check], PATH=path)
    assert (checked.returncode == 0) == bool(answers)
    asked = (tmp_path / "asked").read_text().splitlines()
    for command in (line for line in asked if line.startswith("status")):
        check_command(f"adloco-peer {command}")
    assert len(asked) == {"/data": 1, "/data/peer-0": 2}.get(answers, 3)
    compile(asked[-1] if len(asked) == 3 else "", "the page", "exec")
