"""A peer's part in the looks at contributions: asked for once, before the state changes, and reported one with each report."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.peer.assessing import looks_due
from adloco_p2p.core.peer.state import PeerState
from tests.core.peer.story import Story, rules

ROUNDS = 12
Looks = dict[int, dict[PeerId, AssessContribution | ShowContribution]]


def story_of(*, peers: int = 6, every: int = 1) -> Story:
    return Story(rules=replace(rules(rounds=ROUNDS), assess_every=every), peers=peers).play()


def looks_of(story: Story) -> Looks:
    """Round -> what each peer was asked for."""
    found: Looks = defaultdict(dict)
    for told in story.told:
        if isinstance(told.effect, AssessContribution | ShowContribution):
            assert told.peer not in found[told.effect.round], "once"
            found[told.effect.round][told.peer] = told.effect
    return found


def test_three_look_at_one_that_shows_it_to_these_three() -> None:
    story = story_of()
    looks = looks_of(story)
    assert [*looks] == [*range(1, ROUNDS - 1)], "no plan follows from a look at the last one"
    for asked in looks.values():
        ((subject, show),) = ((peer, item) for peer, item in asked.items() if isinstance(item, ShowContribution))
        given = {peer: item for peer, item in asked.items() if isinstance(item, AssessContribution)}
        assert {*given} == {*show.assessors} and len(given) == 3
        assert len({*given.values()}) == 1, "the same rows for all"
        assert next(iter(given.values())).subject == subject


def test_the_rows_are_those_that_the_plan_of_the_round_gave() -> None:
    story = story_of()
    plans = {entry.plan.round: entry.plan.instances[0] for entry in story.world.ledger()}
    for number, asked in looks_of(story).items():
        look = next(item for item in asked.values() if isinstance(item, AssessContribution))
        share = next(share for share in plans[number].hosts if share.peer == look.subject)
        assert (look.first_sample, look.samples) == (share.first_sample, share.samples)
        assert look.unseen_from == plans[number + 1].first_sample, "where the next round's begin"


def test_a_look_begins_before_the_next_inner_steps() -> None:
    story = story_of()
    for peer in {told.peer for told in story.told}:
        effects = [told.effect for told in story.told if told.peer == peer]
        for place, effect in enumerate(effects):
            if isinstance(effect, AssessContribution):
                begun = [item.round for item in effects[:place] if isinstance(item, RunInner)]
                assert max(begun) == effect.round


def test_every_score_is_reported_with_a_later_round() -> None:
    story = story_of()
    reported = [
        (item.assessment.round, report.round)
        for machine in story.world.machines.values()
        for report in machine.reported
        for item in report.instances
        if item.assessment is not None
    ]
    num_asked = sum(isinstance(told.effect, AssessContribution) for told in story.told)
    assert num_asked - 6 <= len(reported) <= num_asked, "but those of the last rounds"
    assert all(average < round <= average + 2 for average, round in reported)


def test_only_in_every_nth_round_and_only_with_five_hosts() -> None:
    assert [*looks_of(story_of(every=4))] == [4, 8]
    assert looks_of(story_of(every=0)) == looks_of(story_of(peers=4)) == {}


def looked_again(change: Callable[[Average], Average | RepairAverage]) -> list[AssessContribution]:
    """What assessors of the last look but one were asked for, had the attempt at the average been another one."""
    story = story_of()
    found: list[AssessContribution] = []
    for peer, effect in looks_of(story)[ROUNDS - 2].items():
        if isinstance(effect, AssessContribution):
            outer = next(outer for outer in _state(story, peer).rounds if outer.round == effect.round)
            assert outer.average is not None and isinstance(outer.average.asked, Average)
            outer.average = replace(outer.average, asked=change(outer.average.asked))
            outer.is_looked_at = False
            found += [again for again in looks_due(_state(story, peer)) if isinstance(again, AssessContribution)]
    return found


def _state(story: Story, peer: PeerId) -> PeerState:
    process = story.machine(peer).process
    assert process is not None
    return process.peer._state


def test_of_a_partial_contribution_the_rows_of_its_steps_are_looked_at() -> None:
    whole = looked_again(lambda average: average)
    partial = looked_again(lambda average: replace(average, steps=(1,) * len(average.steps)))
    plan = next(entry.plan for entry in story_of().world.ledger() if entry.plan.round == ROUNDS - 2)
    share = next(share for share in plan.instances[0].hosts if share.peer == whole[0].subject)
    assert len({*whole}) == len({*partial}) == 1 and len(whole) == len(partial) == 3
    assert whole[0].samples == share.samples > share.effective_batch == partial[0].samples
    assert partial[0] == replace(whole[0], samples=share.effective_batch)


def test_a_host_that_fetched_the_average_assesses_nothing() -> None:
    def fetched(average: Average) -> RepairAverage:
        return RepairAverage(
            instance=average.instance,
            round=average.round,
            attempt=average.attempt,
            key=average.key,
            digest=Digest("a" * 64),
            contributors=tuple(peer for peer, _ in average.weights),
            from_peers=(),
            timeout_seconds=1.0,
        )

    assert looked_again(fetched) == []
