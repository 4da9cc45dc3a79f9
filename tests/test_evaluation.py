"""`evaluate` over a checkpoint whose model has diverged."""

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from adloco_p2p.commands import evaluation
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.data import feed
from adloco_p2p.training import hosting


@pytest.mark.parametrize("as_json", [True, False])
def test_a_finite_loss_whose_perplexity_no_float_holds_is_reported(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunConfig()
    saved = SimpleNamespace(run=run, sources=run, instances=(0,), round=3)
    engine = SimpleNamespace(
        restore=lambda instance, tensors, meta: None,
        evaluate=lambda instance: 1000.0,
        heldout_losses=lambda instance: (1000.0,),
    )
    monkeypatch.setattr(evaluation, "read_saved", lambda workdir, read: (saved, {0: ({}, {})}))
    monkeypatch.setattr(evaluation, "_plans_of", lambda saved: [object()])
    monkeypatch.setattr(feed, "open_feed", lambda run, cache_dir: None)
    monkeypatch.setattr(hosting, "Hosting", lambda *_: engine)
    monkeypatch.setattr(RunConfig, "readers", {"text": None})
    asked = Namespace(workdir=tmp_path, data=None, json=as_json)
    assert evaluation._on_heldout(asked) == 0
    said = capsys.readouterr().out
    if as_json:
        instance = json.loads(said)["instances"][0]
        assert instance["heldout_loss"] == 1000.0 and instance["perplexity"] is None
    else:
        assert "held-out loss 1000.0000 nats per token  perplexity inf" in said
