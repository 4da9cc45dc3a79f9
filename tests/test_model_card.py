"""The model card of an export: what stands in it comes from a run's author and from peers."""

from pathlib import Path
from types import SimpleNamespace

from markdown_it import MarkdownIt

from adloco_p2p.commands.model_card import _claims, _losses, model_card
from adloco_p2p.config.run_config import DataConfig, ModelConfig, RunConfig
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import Metric, TaskScore
from adloco_p2p.core.model.telemetry import TaskScores

MARKUP = "` ![p](http://a.example/p.png) <img src=//a.example> [l](//b)"


def kinds(page: str) -> set[str]:
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(page)
    return {child.type for token in tokens for child in token.children or []} | {token.type for token in tokens}


def test_a_model_card_shows_names_of_others_as_text(tmp_path: Path) -> None:
    model = ModelConfig(pretrained="owner/name", revision=MARKUP, digest=MARKUP, parent=MARKUP)
    for data in (
        DataConfig(source="hub", path="owner/data", split=MARKUP, revision=MARKUP),
        DataConfig(source="plugin", plugin=MARKUP, digest=MARKUP),
        DataConfig(source="text", path="t.txt", digest=MARKUP),
    ):
        run = RunConfig(name=MARKUP, author=MARKUP, model=model, data=data)
        page = model_card(tmp_path, run, round=1, instance=InstanceId(0))
        assert not kinds(page) & {"html_block", "html_inline", "image", "link_open"}
    score = TaskScore(name=MARKUP, digest=Digest("d"), num_documents=1, metrics=(Metric(name=MARKUP, value=0.5),))
    claims = _claims([TaskScores(round=1, peer=PeerId(MARKUP), scores=(score,), model=Digest("d"))])
    assert not kinds(claims) & {"html_block", "html_inline", "image", "link_open"} and "td_open" in kinds(claims)


def test_the_losses_count_rounds_as_the_state_does_and_say_where_they_end() -> None:
    """The report of round 0 has the loss after one round."""

    def entry(round: int) -> SimpleNamespace:
        item = SimpleNamespace(instance=InstanceId(0), heldout_loss=5.0 - round)
        return SimpleNamespace(reports=[SimpleNamespace(report=SimpleNamespace(round=round, instances=[item]))])

    entries = [entry(round) for round in range(4)]
    page = _losses(entries, InstanceId(0), num_rounds=6)  # type: ignore[arg-type]
    assert "| 1 | 5.0000 |" in page and "| 4 | 2.0000 |" in page
    assert page.endswith("the state after round 6 has no line here. `adloco-peer evaluate` measures it.")
    assert _losses(entries, InstanceId(0), num_rounds=4).endswith("| 4 | 2.0000 |")  # type: ignore[arg-type]
