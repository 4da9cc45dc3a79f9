"""The command line itself: what its help shows, that its examples are right, and what a shell can complete."""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from adloco_p2p.cli import main, make_parser
from adloco_p2p.cli.examples import EXAMPLES, FIRST
from adloco_p2p.cli.parser import Parser
from adloco_p2p.commands import console, signing, train, trained_model
from adloco_p2p.commands.console import Steps
from adloco_p2p.commands.swarm import _conclude
from adloco_p2p.commands.swarm_members import Member
from adloco_p2p.commands.train import _ended, _keep_command, _run_config, shortest
from adloco_p2p.config.load import load_peer, load_run
from adloco_p2p.config.run_config import DataConfig, RunConfig
from adloco_p2p.core.model.course import AS_CONFIGURED, Course
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.storage.admission_files import keep_address, read_address
from adloco_p2p.storage.workdir import Workdir, read_command
from adloco_p2p.swarm.p2p.identity import Identity
from tests.views.synthetic import events

ROOT = str(Path(__file__).parents[1])
ERASE = "\r\x1b[2K"


def all_verbs(parser: Parser) -> Iterator[Parser]:
    for verb in parser.verbs.values():
        yield verb
        yield from all_verbs(verb)


def test_the_help_page_lists_every_verb_once_below_a_task_and_fits_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = make_parser()
    page = parser.format_help()
    listed = [line.split()[0] for line in page.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert [name for name in listed if name in parser.verbs] == list(parser.verbs)
    places = [page.index(words) for words in ("take part in a run", "  start ", "the trained model:", "  export ")]
    assert places == sorted(places)
    assert all(len(line) < 80 for line in page.splitlines() if "adloco-peer" not in line)


@pytest.mark.parametrize("line", [line.partition("    ")[0] for lines in (*EXAMPLES.values(), FIRST) for line in lines])
def test_every_example_is_a_command(line: str) -> None:
    command = line.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0]
    arguments = make_parser().parse_args(shlex.split(command)[1:])
    assert arguments.verb
    load_peer(None, vars(arguments).get("peer_set", []))
    load_run(None, vars(arguments).get("set", []))


def test_a_peer_that_holds_no_model_gets_no_hint_to_export_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer to a run that has ended; `export` would refuse."""
    arguments = Namespace(workdir=tmp_path / "late")
    assert _ended(Stop(reason="complete", is_finished=True), arguments) == 0
    said = capsys.readouterr().out
    assert "holds no model" in said and "adloco-peer export" not in said
    monkeypatch.setattr(trained_model, "open_saved", lambda workdir: object())
    _ended(Stop(reason="complete", is_finished=True), arguments)
    assert f"adloco-peer export --workdir {arguments.workdir}" in capsys.readouterr().out


def test_a_paused_run_is_not_paused_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further pause let the run train another round."""
    plan = Namespace(course=Course(paused_from=4), round=3)
    monkeypatch.setattr(
        signing, "signer_of", lambda workdir: Namespace(workdir=workdir, round=3, ledger=Namespace(plans=[plan]))
    )
    assert main(["command", "pause", "--workdir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("nothing is signed: the run is paused already")
    assert not list(tmp_path.iterdir())


def test_a_run_that_no_signer_pauses_or_ends_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Namespace(course=AS_CONFIGURED, round=3)
    monkeypatch.setattr(
        signing, "signer_of", lambda workdir: Namespace(workdir=workdir, round=3, ledger=Namespace(plans=[plan]))
    )
    assert main(["command", "resume", "--workdir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("nothing is signed: no signer pauses or ends the run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["join", "adloco://ab", "--workdir", "x"], "did you mean --initial-peers adloco://ab?"),
        (["doctor", "/ip4/192.0.2.1/tcp/1"], "did you mean --initial-peers /ip4/192.0.2.1/tcp/1?"),
        (["start", "--config", "x"], "E200: --config: no such option of adloco-peer start; give CONFIG alone\n"),
        (["start", "--workdr", "x"], "E200: --workdr: no such option of adloco-peer start; did you mean --workdir?\n"),
        (["command", "set", "--workdir", "x", "--set", "a=1"], "E200: --set: no such option of adloco-peer command set\n"),
        (["start", "--workdir", ""], "E200: argument --workdir: an empty name: a path is accepted"),
        (["command", "pause", "--workdir", "x", "--reason", "Caf\u00e9"], "only printable ASCII on every terminal is accepted"),
        (["report", "none", "--output", "out"], "E212: RUN none: no events"),
        (["report", "--workdir", "none", "--output", "out"], "E212: --workdir none: no events"),
    ],
)
def test_an_error_names_what_was_given(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):  # argparse's own errors end the process
        main(words)
    assert named in capsys.readouterr().err


def test_commands_for_copying_quote_their_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = tmp_path / "my run"
    assert main(["export", "--workdir", str(workdir), "--output", str(tmp_path / "model")]) == 2
    assert f"`adloco-peer start CONFIG --workdir '{workdir}'` makes one" in capsys.readouterr().err
    _ended(
        Stop(reason="paused", is_finished=False),
        Namespace(workdir=workdir, command_line=shlex.join(["adloco-peer", "start", "--workdir", str(workdir)])),
    )
    assert f"continue with: adloco-peer start --workdir '{workdir}'" in capsys.readouterr().out


LONG = "adloco://ab,/ip4/192.0.2.1/tcp/1/p2p/a"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["join", "--initial-peers", LONG, "--workdir", "me"], "adloco-peer join --workdir me"),
        (
            ["join", "--workdir", "me", "--initial-peers", LONG, "/ip4/x", "--peer-set", "nickname=ann"],
            "adloco-peer join --workdir me --peer-set nickname=ann",
        ),
        (
            ["join", "--initial-peers", LONG, "--workdir", "me", f"--initial-peers={LONG}", "--initial", LONG],
            "adloco-peer join --workdir me",
        ),
        (["start", "--initial-peers", LONG, "--workdir", "me"], "adloco-peer start --workdir me"),
    ],
)
def test_a_peer_goes_on_by_the_shortest_command_that_works(
    words: list[str], left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = make_parser().parse_args(words)
    arguments.command_line = shlex.join(["adloco-peer", *words])
    assert (
        shortest(arguments.command_line, arguments.workdir) == arguments.command_line
    )  # as long as the directory does not know the run's address
    (tmp_path / "me").mkdir()
    keep_address(tmp_path / "me", LONG)
    assert shortest(arguments.command_line, arguments.workdir) == left
    assert make_parser().parse_args(shlex.split(left)[1:]).workdir == Path("me")


def test_the_link_stays_in_the_command_where_the_directory_knows_no_other_peer(tmp_path: Path) -> None:
    me, other = (
        Identity.load_or_create(tmp_path / "identity.key").peer_id,
        "12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauLWL",
    )
    arguments = make_parser().parse_args(["join", "--initial-peers", LONG, "--workdir", str(tmp_path)])
    arguments.command_line = f"adloco-peer join --initial-peers {LONG} --workdir {tmp_path}"
    keep_address(tmp_path, f"adloco://{'a' * 64},/ip4/192.0.2.1/tcp/1/p2p/{me}")
    assert shortest(arguments.command_line, arguments.workdir) == arguments.command_line
    keep_address(tmp_path, f"{read_address(tmp_path)},/ip4/127.0.0.1/tcp/1/p2p/{other}")
    assert shortest(arguments.command_line, arguments.workdir) == f"adloco-peer join --workdir {tmp_path}"


def test_a_joiner_without_a_link_goes_on_where_its_directory_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["join", "--workdir", str(tmp_path / "new")]) == 2
    assert "--initial-peers is needed" in capsys.readouterr().err and not (tmp_path / "new").exists()
    keep_address(tmp_path, "adloco://cut")  # the link is what is read, and found to be cut
    assert main(["join", "--workdir", str(tmp_path)]) == 2
    assert "adloco://cut" in capsys.readouterr().err


def test_the_loss_that_few_bytes_cost_is_shown_with_the_hosts_that_it_was_measured_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = ["--set", "averaging.preset=sign"]
    assert main(["config", "show", *chosen]) == 0
    shown = "held-out loss beside float32, as measured with 20,864 parameters and 64 rounds: +0.012 +- 0.043 nats with 4 hosts"
    larger = "-0.021 +- 0.030 nats with 8 hosts, -0.023 +- 0.022 nats with 16 hosts"
    assert f"\n# codec sign, {shown}, {larger} (docs/results/bytes.md)\n" in capsys.readouterr().out
    assert main(["plan", "--samples", "1000", "--peers", "3", *chosen]) == 0
    assert f"per peer and direction; {shown} (docs/results/bytes.md)\n" in capsys.readouterr().out


def test_the_price_of_a_seat_is_shown_with_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, price, attempts, words in (
        ("work", ["admission.price_minutes=0.5"], 3000, "work, 0.5 min of one core a seat (3000 attempts on average)"),
        ("open", [], 0, "open"),
    ):
        asked = ["plan", "--samples", "1000", "--set", f"admission.kind={kind}", *price]
        assert main([*asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["admission"] == {"kind": kind, "price_attempts": attempts}
        assert main(asked) == 0
        assert f"\n  admission: {words}\n" in capsys.readouterr().out


@pytest.mark.parametrize("is_emulated", [True, False])
def test_a_plan_names_the_setting_whose_arithmetic_this_machine_emulates(
    is_emulated: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: not is_emulated)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    asked = ["plan", "--samples", "1000", "--set", "model.precision=bfloat16"]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["emulated"] == ("model.precision" if is_emulated else None)
    assert main(asked) == 0
    assert ("(E524); auto lets each machine take what it has\n" in capsys.readouterr().out) == is_emulated


def test_the_price_of_contributions_looked_at_is_shown_with_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    """Three uploads of one contribution, which float32 makes 4 bytes per value, shared over 8 peers and 4 rounds."""
    asked = ["plan", "--samples", "1000", "--set", "averaging.assess_every=4", "averaging.codec=float32"]
    assert main([*asked, "--peers", "8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sent = 3 * 4 * document["parameters"]
    assert document["look"] == {"every": 4, "subject_bytes": sent, "bytes_per_peer_and_round": sent / 32}
    assert main([*asked, "--peers", "8"]) == 0
    shown = f"  one contribution looked at every 4 rounds: {sent / 1e6:,.2f} MB from its host; {sent / 32e6:,.2f} MB a round"
    assert shown in capsys.readouterr().out
    assert main([*asked, "--peers", "4"]) == 0
    assert "  contributions looked at: none with fewer than 5 peers\n" in capsys.readouterr().out


def test_a_plan_without_a_configuration_is_of_the_run_in_the_directory_and_one_that_is_over_gives_its_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", "--workdir", str(tmp_path)]
    assert main(plan) == 2
    assert f"--workdir {tmp_path}: no run was begun there" in capsys.readouterr().err
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig(name="mine", work=WorkRules(rounds=2)))
    made = [{**event, "samples": 64} for event in events(6) if event["event"] == "plan"]
    made += [{**made[-1], "round": made[-1]["round"] + 1, "samples": 0}]  # as in a pause
    over = {**made[-1], "round": made[-1]["round"] + 1, "is_last": True, "samples_before": 123_456}
    write = (tmp_path / "events.jsonl").write_text
    write("".join(json.dumps({**event, "is_last": False}) + "\n" for event in made))
    assert main(plan) == 2
    assert "--samples N is required" in capsys.readouterr().err
    assert main([*plan, "--samples", "1000000"]) == 0
    assert "extrapolated" in capsys.readouterr().out
    write("".join(json.dumps({**event, "is_last": False}) + "\n" for event in made) + json.dumps(over) + "\n")
    assert main(plan) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("mine: 123,456 samples") and "extrapolated" not in shown
    assert main([*plan, "--set", "name=other"]) == 2
    assert "name a CONFIG" in capsys.readouterr().err


def test_a_plan_names_the_settings_in_which_the_run_of_the_directory_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("name: mine\nwork:\n  rounds: 2\n")
    run = load_run(config, []).value
    with closing(Workdir.open(tmp_path / "run")) as workdir:
        workdir.adopt(replace(run, author="me", packages={"its": "1"}, data=replace(run.data, digest="ab")))
    (tmp_path / "run" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events(6)))
    plan = ["plan", str(config), "--samples", "1000000", "--workdir", str(tmp_path / "run")]
    assert main(plan) == 0
    assert "other settings" not in capsys.readouterr().out
    assert main([*plan, "--set", "work.inner_steps=7"]) == 0
    there = run.work.inner_steps
    assert f"had other settings than are planned here: work.inner_steps: 7 here, {there} there\n" in capsys.readouterr().out
    assert main([*plan, "--json", "--set", "work.inner_steps=7"]) == 0
    assert json.loads(capsys.readouterr().out)["differs"] == [f"work.inner_steps: 7 here, {there} there"]


def test_start_without_a_configuration_goes_on_with_the_run_of_the_directory(tmp_path: Path) -> None:
    mine = RunConfig(name="mine", work=WorkRules(samples=60_000))
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(mine)
    start = ["start", "--workdir", str(tmp_path)]
    assert _run_config(make_parser().parse_args(start)) == mine
    for words in (["--rounds", "5"], ["--set", "name=other"]):
        assert _run_config(make_parser().parse_args([*start, *words])).name != "mine", "another run is asked for, and refused"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["start"], "adloco-peer start"),
        (["start", "mine.yaml", "--initial-peers", LONG, "/ip4/x", "--plain"], "adloco-peer start mine.yaml --plain"),
        (["join", "--initial-peers", LONG], "adloco-peer join"),
        (["keep", f"--initial-peers={LONG}"], "adloco-peer keep"),
        (["start", "--lifeline", "3"], ""),
    ],
)
def test_the_directory_keeps_the_command_of_every_verb_but_not_that_of_a_swarms_peer(
    words: list[str], kept: str, tmp_path: Path
) -> None:
    arguments = make_parser().parse_args([*words, "--workdir", str(tmp_path)])
    arguments.command_line = shlex.join(["adloco-peer", *words])
    with closing(Workdir.open(tmp_path)) as workdir:
        _keep_command(workdir, arguments)
    assert read_command(tmp_path) == kept, "without the link, which is a key"


@pytest.mark.parametrize("verb", ["join", "keep"])
def test_a_complete_directory_needs_no_address_and_is_not_taken_for_another_run(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig())
    complete = Namespace(durable=Namespace(is_finished=True))
    monkeypatch.setattr(trained_model, "open_saved", lambda workdir: complete)
    address = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauLWL"
    own, other = (f"adloco://{run},{address}" for run in (RunConfig().digest, "b" * 64))
    for given in ([], ["--initial-peers", address], ["--initial-peers", own]):
        assert main([verb, "--workdir", str(tmp_path), *given]) == 0
        assert "this run is complete" in capsys.readouterr().out
    for given in (["--initial-peers", other], ["--initial-peers", address, "--run", "bbbb"]):
        assert main([verb, "--workdir", str(tmp_path), *given]) == 2
        assert f"E203: --workdir {tmp_path}: holds run {RunConfig().digest[:16]}, not bbbb" in capsys.readouterr().err


@pytest.mark.parametrize("has_history", [True, False])
def test_start_does_not_go_on_with_the_run_of_another_peer(
    has_history: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volunteer writes `start` for `join`, or the author has lost the identity."""
    author = Identity.load_or_create(tmp_path / "author.key").peer_id
    with closing(Workdir.open(tmp_path)) as workdir:
        workdir.adopt(RunConfig(author=author))
        workdir.journal_path.write_bytes(b"a plan" if has_history else b"")
    monkeypatch.setattr(train, "is_complete", lambda workdir: True)
    assert main(["start", "--workdir", str(tmp_path)]) == (2 if has_history else 0)
    said = capsys.readouterr().err
    assert (f"E203: --workdir {tmp_path}: another peer began the run in it, {author}" in said) == has_history
    assert (f"go on with `adloco-peer join --workdir {tmp_path}`" in said) == has_history


def test_every_verb_has_examples_and_every_argument_is_explained() -> None:
    parser = make_parser()
    assert set(EXAMPLES) == {verb.prog.removeprefix("adloco-peer ") for verb in all_verbs(parser)}
    for verb in all_verbs(parser):
        assert verb.description and "examples:" in verb.format_help(), verb.prog
        for action in verb._actions:
            assert action.help or action.choices, f"{verb.prog}: {action.dest}"
    assert "examples:\n  adloco-peer start --workdir runs/mine\n" in parser.verbs["start"].format_help()


def test_a_number_that_is_none_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["invite", "--workdir", "x", "--seats", "abc"], "argument --seats: abc: a whole number from 1 on is accepted"),
        (["plan", "--samples", "10.5"], "argument --samples: 10.5: a whole number from 1 on is accepted"),
        (["explain", "last", "--workdir", "x"], "argument ROUND: last: a whole number from 0 on is accepted"),
        (["plan", "--mbit", "fast"], "argument --mbit: fast: a number is accepted"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert said in capsys.readouterr().err


def test_the_purpose_of_a_verb_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in all_verbs(make_parser()):
        purpose = verb.format_help().partition("\n\n")[2].partition("\n\n")[0]
        assert purpose and all(len(line) < 80 for line in purpose.splitlines()), verb.prog


OFFERS = """
import os, sys
from pathlib import Path
from adloco_p2p.cli import main
for number, line in enumerate(sys.argv[1:]):
    child = os.fork()  # argcomplete ends the process
    if child == 0:
        os.environ |= {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "|", "_ARGCOMPLETE_STDOUT_FILENAME": f"{number}.offers"}
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
        main([])
    assert os.waitpid(child, 0)[1] == 0
    print(Path(f"{number}.offers").read_text())
"""


def test_a_shell_completes_verbs_options_and_values(tmp_path: Path) -> None:
    for name in ("mine.yaml", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "runs").mkdir()
    offers = {
        "sw": {"swarm"},
        "join --workdir ": {"runs/"},
        "start --set work.sa": {"work.samples="},
        "command p": {"pause"},
        "swarm --peers ": {""},
        "join --": {"--initial-peers", "--workdir", "--peer-set"},
        "start ": {"default", "mine.yaml"},
        "join --peer-set d": {"device="},
    }
    lines = [f"adloco-peer {words}" for words in offers]
    done = subprocess.run(
        [sys.executable, "-c", OFFERS, *lines],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=True,
    )
    found = [{word.strip() for word in line.split("|")} for line in done.stdout.splitlines()]
    for line, wanted, offered in zip(lines, offers.values(), found, strict=True):
        assert wanted <= offered, line
        assert "notes.txt" not in offered
    assert all(offered == wanted for wanted, offered in list(zip(offers.values(), found, strict=True))[:5])


def test_bash_completes_with_the_code_that_the_program_prints(tmp_path: Path) -> None:
    """Through the whole program, as a user's shell does it; the shell function gets what bash would give it."""
    program = tmp_path / "adloco-peer"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m adloco_p2p "$@"\n')
    program.chmod(0o755)
    script = """
eval "$(adloco-peer completion bash)"
COMP_LINE="adloco-peer explain-e"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
COMP_WORDS=(adloco-peer explain-e); COMP_CWORD=1
_python_argcomplete adloco-peer explain-e adloco-peer
printf '%s\\n' "${COMPREPLY[@]}"
"""
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path, "PYTHONPATH": ROOT},
    )
    assert done.stdout.split() == ["explain-error"], done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_for_a_shell_names_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "adloco-peer" in capsys.readouterr().out


def test_the_settings_of_the_machine_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--peer", "--peer-set", "num_threads=3"]) == 0
    out = capsys.readouterr().out
    assert "num_threads = 3    [--peer-set]" in out and "work.rounds" not in out
    assert main(["config", "show", "--peer", "--set", "work.rounds=3"]) == 2
    assert "--peer shows this machine's settings" in capsys.readouterr().err
    assert main(["config", "show", "--set", "work.rounds=3"]) == 0


def test_a_wrong_setting_of_the_machine_names_the_option_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    for text, problem in (("nickname=8", "nickname: 8 (--peer-set) is not"), ("ann", "--peer-set ann: write it as key=value")):
        assert main(["join", "--workdir", "never", "--peer-set", text]) == 2
        assert problem in capsys.readouterr().err


def test_a_directory_without_its_option_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["leaderboard", str(tmp_path)], ["status", str(tmp_path)]):
        with pytest.raises(SystemExit):
            make_parser().parse_args(words)
        assert f"required: --workdir; did you mean --workdir {tmp_path}?" in capsys.readouterr().err
    for words in (["status", str(tmp_path / "nowhere")], ["export", "--output", str(tmp_path)]):
        with pytest.raises(SystemExit):
            make_parser().parse_args(words)
    assert "did you mean" not in capsys.readouterr().err


def test_an_export_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    program = (
        "import sys; from adloco_p2p.cli import main;"
        f" code = main(['export', '--workdir', 'x', '--output', {str(tmp_path)!r}]); print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"] and "E211" in done.stderr


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        (".venv/bin/adloco-peer", False, ".venv/bin/adloco-peer"),
        ("/an environment/adloco-peer", False, "'/an environment/adloco-peer'"),
        (".venv/bin/adloco-peer", True, "adloco-peer"),
        ("__main__.py", False, "adloco-peer"),
    ],
)
def test_what_can_be_done_next_is_a_command_that_the_shell_finds(
    called: str, on_path: bool, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_path:
        (tmp_path / "adloco-peer").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [called])
    arguments = Namespace(workdir=tmp_path, export=None)
    assert _conclude(arguments, [], Steps(sys.stderr), finished=[tmp_path / "peer-0"], is_stopped=False) == 0
    assert f"  {shown} generate --workdir {tmp_path}/peer-0 " in capsys.readouterr().out
    monkeypatch.setattr(trained_model, "open_saved", lambda workdir: object())
    _ended(Stop(reason="complete", is_finished=True), arguments)
    assert capsys.readouterr().out == f"done. Write the model: {shown} export --workdir {tmp_path} --output DIR\n"
    _ended(Stop(reason="asked", is_finished=False), Namespace(workdir=tmp_path, command_line="adloco-peer start"))
    assert capsys.readouterr().out == f"saved; continue with: {shown} start\n"


class SlowTerminal(io.StringIO):
    """Gives all other threads a turn before it takes a result."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text == "result":
            time.sleep(0.005)
        return super().write(text)


def test_no_step_is_drawn_between_its_erasure_and_what_is_printed_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(console, "FRAME_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stdout", terminal := SlowTerminal())
    steps = Steps(terminal)
    steps.enter("a step that moves all the time")
    for _ in range(100):
        console.say("result")
    steps.enter(None)
    drawn = [line for line in terminal.getvalue().split(ERASE) if "result" in line]
    assert drawn == ["result\n"] * 100


@pytest.mark.parametrize(("code", "word"), [(0, "saved"), (130, "stopped")])
def test_a_swarm_that_was_ended_at_once_is_not_called_saved(
    code: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = cast(subprocess.Popen[bytes], Namespace(returncode=code))
    member = Member(workdir=tmp_path / "peer-0", process=process, log=tmp_path / "log", lifeline=0)
    arguments = Namespace(workdir=tmp_path, export=None, command_line="adloco-peer swarm --workdir sw")
    assert _conclude(arguments, [member], Steps(sys.stderr), finished=[], is_stopped=True) == 0
    assert capsys.readouterr().out.startswith(f"{word}; continue with: ")


@pytest.mark.parametrize(
    ("data", "prompt"),
    [
        (DataConfig(), "'def '"),
        (DataConfig(source="text", path="*.txt"), "'The '"),
        (DataConfig(source="json", path="chats.jsonl", messages_column="messages"), "'What can you do?'"),
    ],
)
def test_the_prompt_to_try_next_is_a_beginning_of_what_the_model_has_read(
    data: DataConfig, prompt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Workdir.open(tmp_path / "peer-0")) as workdir:
        workdir.adopt(replace(RunConfig(), data=data))
    arguments = Namespace(workdir=tmp_path, export=None)
    assert _conclude(arguments, [], Steps(sys.stderr), finished=[tmp_path / "peer-0"], is_stopped=False) == 0
    assert f" --prompt {prompt}\n" in capsys.readouterr().out


def test_a_usage_error_names_the_program_once_and_no_list_of_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["strat"])
    said = capsys.readouterr().err
    assert said.startswith("adloco-peer: E200: strat: no such verb; did you mean start?") and said.count("\n") == 3
    with pytest.raises(SystemExit):
        make_parser().parse_args(["join", "--work-dir", "x"])
    said = capsys.readouterr().err
    assert "did you mean --workdir?" in said and said.count("\n") == 3
    with pytest.raises(SystemExit):
        make_parser().parse_args(["join", "--set", "device=cpu"])
    assert "did you mean --peer-set?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        make_parser().parse_args(["join"])
    assert capsys.readouterr().err.startswith("usage: adloco-peer join ")


def test_help_as_a_verb_leads_to_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help"])
    assert "help: no such verb; did you mean --help?" in capsys.readouterr().err


@pytest.mark.parametrize("cap", ["1", "9999", "8Mbit", "-1", "nan"])
def test_a_cap_in_other_units_is_refused_with_those_that_are_accepted(cap: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["bandwidth", "--workdir", "me", f"--up={cap}"])
    assert f"argument --up: {cap}: accepted are bytes per second from 10k on" in capsys.readouterr().err
    assert make_parser().parse_args(["bandwidth", "--workdir", "me", "--up=10k", "--down=0"]).up == 10_000


def test_a_model_that_is_not_there_is_named_by_the_setting_that_named_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["start", "configs/default.yaml", "--workdir", str(tmp_path / "w"), "--set", "model.pretrained=./nomodel"]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "E209: model.pretrained: './nomodel' looks like a path" in said and "tokenizer" not in said.splitlines()[0]


def test_a_model_that_could_be_of_the_hub_is_looked_for_here_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["start", "--workdir", str(tmp_path / "w"), "--set", "model.pretrained=models/mine"]) == 2
    said = capsys.readouterr().err
    assert "E208: tokenizer.source, or model.pretrained where that is left out: 'models/mine' cannot be loaded" in said
    assert "no directory of that name is here; revision 'main'" in said


def test_a_plan_of_a_model_that_is_not_there_names_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--samples", "1000", "--set", "model.pretrained=./nomodel"]) == 2
    assert "E209: model.pretrained: './nomodel' looks like a path" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "simulate",
        "simulate --peers 0",
        "simulate --peers four",
        "simulate --peers 5000",
        "simulate --peers 4 --rounds 0",
        "simulate --peers 4 --seeds x",
        "simulate --peers 4 --seeds 5-1",
        "simulate --peers 4 --loss 0.9",
        "simulate --peers 4 --loss nan",
        "simulate --peers 4 --liars -0.1",
        "simulate --peers 4 --churn 7",
        "simulate --peers 4 --partition -1",
        "ledger",
        "ledger prove --workdir .",
        "explain --workdir .",
        "explain one --workdir .",
        "dashboard",
        "dashboard --workdir . --initial-peers /ip4/127.0.0.1/tcp/1/p2p/x",
        "dashboard --workdir . --port 70000",
        "dashboard . --workdir .",
        "dashboard nothing-here --labels one two",
        "dashboard --workdir . --host everywhere",
        "dashboard --workdir nothing-here --port 0",
        "replay --workdir nothing-here",
        "replay --workdir . --speed 0",
        "leaderboard",
    ],
)
def test_bad_arguments(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(arguments.split())
    except SystemExit as ended:  # of the argument parser
        code = ended.code
    assert code == 2
    assert capsys.readouterr().err


def test_the_help_of_keep_names_no_training_on_devices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["keep", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "compute on these" in shown and "train on" not in shown
