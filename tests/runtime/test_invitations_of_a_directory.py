"""The invitations in the directory of a run that never began, and gave way to the next one."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.cli import main
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters.admission import check_invitations, first_invitation
from adloco_p2p.storage.admission_files import keep_address, read_address
from adloco_p2p.storage.workdir import Workdir
from adloco_p2p.swarm.discovery.join_link import with_invitation
from adloco_p2p.swarm.p2p.identity import Identity


def begun(folder: Path, seed: int) -> tuple[RunConfig, Identity]:
    """The directory of an author whose node loads the model; `invite` works by then."""
    me = Identity.load_or_create(folder / "identity.key")
    run = replace(RunConfig(), author=me.peer_id, seed=seed)
    with closing(Workdir.open(folder)) as workdir:
        workdir.adopt(run)
    keep_address(folder, f"adloco://{run.digest},/ip4/127.0.0.1/tcp/1/p2p/{me.peer_id}")
    return run, me


def test_invitations_of_the_earlier_run_stop_neither_the_start_nor_a_revocation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not for this run, so every start ended with E206 and the advice to copy the whole link."""
    begun(tmp_path, seed=1)
    assert main(["invite", "--workdir", str(tmp_path)]) == 0  # then the model did not fit this machine
    run, me = begun(tmp_path, seed=2)
    token = first_invitation(tmp_path, run, me)
    assert token.invitation.run == run.digest and first_invitation(tmp_path, run, me) == token, "the same at every start"
    assert main(["invite", "--workdir", str(tmp_path), "--revoke", token.invitation.key]) == 0
    assert token.invitation.key in capsys.readouterr().out


def test_a_damaged_invitation_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    run, me = begun(tmp_path, seed=1)
    link = with_invitation(read_address(tmp_path), first_invitation(tmp_path, run, me).to_text())
    check_invitations([link, read_address(tmp_path), "/ip4/127.0.0.1/tcp/1"])
    for damaged in (f"{link}x", link[:-1]):
        with pytest.raises(ConfigError, match="the invitation in the join link is damaged; copy the whole link"):
            check_invitations([damaged])
