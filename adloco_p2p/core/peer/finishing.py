"""The end of the run on this peer: it saves the final model, compares its state with those of the others, and waits for them.

A peer without the model of the run ends with an error: it came too late, no other peer could give it the model, or nothing
shows that its own is that of the run.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.effects import Effect, Stop
from adloco_p2p.core.model.electorate import deciding_hosts
from adloco_p2p.core.model.messages import RunComplete
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.catch_up import CatchingUp
from adloco_p2p.core.peer.completion import CompletionBarrier
from adloco_p2p.core.peer.fetching import Fetching
from adloco_p2p.core.peer.plan_book import FinalState, PlanBook
from adloco_p2p.core.peer.saving import Checkpoints
from adloco_p2p.core.peer.state import PeerState

NOT_THE_MODEL = "E314"
"""Error code: the run is over, and this peer does not have its model."""
DIVERGED = "E503"
"""Error code: training leads nowhere here."""
NO_FINAL_MODEL = "no peer could give this one the final model"
TOO_LATE = "the others ended the run before this peer had caught up"
ANOTHER_MODEL = "the others may have ended the run with another model than the one that this peer has"
ALONE = (
    "most others were not heard at the end, and may have ended the run without this peer: the model that it trained is its"
    " last checkpoint, which `adloco-peer export` writes"
)
NOT_COMPARED = "stopped before the final states were compared; the last checkpoint stands"


class Finishing:
    """Ends the run on this peer. Call `finish` and `wait` whenever something happened, and `reopen` if another history wins.

    A `Stop` is the last of the effects. `Lifecycle` handles it, and first makes the peer leave the roster.
    """

    def __init__(
        self,
        state: PeerState,
        *,
        agreement: Agreement,
        fetching: Fetching,
        catching_up: CatchingUp,
        checkpoints: Checkpoints,
        transfer_seconds: float,
    ) -> None:
        """`transfer_seconds` is the time that a state may take over a slow link."""
        self._state = state
        self._book = state.book
        self._agreement = agreement
        self._fetching = fetching
        self._catching_up = catching_up
        self._checkpoints = checkpoints
        self._completion = CompletionBarrier(
            state.me, sign=agreement.sign, verify=agreement.verify, transfer_seconds=transfer_seconds
        )
        self._has_asked = False
        """This peer has asked for the final state of the others; it is on its way as long as the book has a `final`."""
        self._is_saved = False
        """The checkpoint of the run's end is written."""

    @property
    def has_finished(self) -> bool:
        """The last plan is applied here, and this peer waits for the others."""
        return self._completion.has_begun

    @property
    def next_deadline(self) -> float | None:
        return self._completion.next_deadline

    def received(self, sender: PeerId, message: RunComplete) -> list[Effect]:
        return self._completion.received(sender, message)

    def tick(self, now: float) -> list[Effect]:
        return self._completion.tick(now, self._state.gone)

    def have_others_ended(self) -> bool:
        newest = self._book.newest
        digest = self._book.digests[newest.round]
        return newest.is_last and self._completion.are_all_done(digest, roster_of(newest), self._state.gone)

    def give_up(self, reason: str) -> list[Effect]:
        """Stop because training leads nowhere here. Saved checkpoints stay, and no further one is made."""
        return [*self._state.abandon_rounds(), Stop(reason=reason, is_finished=False, is_urgent=True, error=DIVERGED)]

    # --- on the way to the last plan ---------------------------------------------------------------------------------

    def missed(self) -> Stop | None:
        """Return the stop of a peer whose run the others have ended, or that they left, and to which the model no longer comes;
        else None."""
        if self._fetching.has_given_up:
            return Stop(reason=NO_FINAL_MODEL, is_finished=False, error=NOT_THE_MODEL)
        newest, opened = self._book.newest, self._state.opened
        is_last_step = opened + 1 == newest.round and self._book.has_others(newest, self._state.gone)  # they still serve states
        is_arriving = opened == newest.round or is_last_step or bool(self._fetching.under_way)
        if is_arriving or not self.have_others_ended():
            return None
        return Stop(reason=TOO_LATE, is_finished=False, error=NOT_THE_MODEL)

    def pass_over_the_rest(self) -> list[Effect]:
        """Skip to the end if most electors have ended the run and this peer lacks a state before it, which perhaps no peer has
        any more: only the final state is needed then. Because a member may have claimed two states, this peer doubts the final
        one until all have compared."""
        last, opened = self._book.newest, self._state.opened
        is_lacking = any(instance not in self._state.held for instance in self._book.sources(last))
        if not last.is_last or opened >= last.round or self._fetching.under_way or not is_lacking:
            return []
        run = self._completion.state_of_most(self._book.digests[last.round], roster_of(last), voters_of(self._book, last))
        if run is None or all(peer in self._state.gone for peer in run.holders):
            return []
        reason = "this peer lacks a state before the last round; fetching the final one of the others"
        return [*self._catching_up.pass_over_the_rest(), *self._fetch_final(replace(run, is_agreed=False), reason)]

    # --- the last plan is applied ------------------------------------------------------------------------------------

    def finish(self, now: float) -> list[Effect]:
        """Once the last plan is applied and its instance evaluated, save the model and announce the end to the others."""
        plan = self._book.get(self._state.opened)
        if plan is None or self._state.opening is not None or not plan.is_last:
            return []
        final, mine = self._state.final, self._book.mine(plan)
        if mine and final is None:
            return self._evaluate_exchanged(plan)
        loss = final.heldout_loss if final is not None else None
        if loss is not None and not isfinite(loss):
            reason = f"training has diverged: the held-out loss after round {plan.round} is not finite"
            return self.give_up(reason)
        is_agreed = self._is_agreed(plan)
        self._is_saved = is_agreed and not self._is_apart()
        effects = self._save_final(plan, now, is_finished=self._is_saved) if is_agreed else []
        totals = canonical.to_plain(self._checkpoints.totals(now))
        losses = final.heldout_losses if final is not None else ()
        finished = telemetry.Finished(round=plan.round, heldout_loss=loss, heldout_losses=losses, **totals)
        logs: list[Effect] = [finished] if self._book.is_on_roster(plan) else []
        state = final.state_digest if final is not None else None
        digest, roster = self._book.digests[plan.round], roster_of(plan)
        sent = self._completion.begin(plan=digest, state=state, is_agreed=is_agreed, roster=roster, now=now)
        return [*effects, *logs, *sent]

    def _evaluate_exchanged(self, plan: RoundPlan) -> list[Effect]:
        is_here = all(self._state.is_at(instance, plan.round) for instance in self._book.mine(plan))
        if self._book.final is None or not is_here:
            return []
        self._book.final = None
        ended = telemetry.Warning(key="final state", message="the exchange has ended", active=False)
        return [ended, *self._state.final_evaluations(plan)]

    def _is_agreed(self, plan: RoundPlan) -> bool:
        """Return whether a majority agreed on every step to this peer's states after the last plan, or has reported them since.
        False without a seat."""
        return self._book.is_on_roster(plan) and all(
            self._state.known(instance).doubtful_from is None
            or (not self._has_asked and self._state.is_reported(plan, instance))
            for instance in self._book.mine(plan)
        )

    def _is_apart(self) -> bool:
        """Return whether most of those that decided may have ended the run without this peer and the others that are here."""
        return self._agreement.may_be_apart(is_alone=roster_of(self._book.newest) == (self._state.me,))

    def _save_final(self, plan: RoundPlan, now: float, *, is_finished: bool = True) -> list[Effect]:
        mine = self._book.mine(plan)
        for instance, item in self._state.instances.items():
            if instance not in mine:
                item.saved.discard(plan.round)  # merged away by this plan, and saved before that
        saves = [self._checkpoints.save(instance, plan.round) for instance in mine]
        return [*saves, *self._checkpoints.complete(plan.round, now, is_finished=is_finished)]

    # --- waiting for the others --------------------------------------------------------------------------------------

    def wait(self, now: float) -> list[Effect]:
        """After the run is complete here, stop once the others have the model, too. A peer whose final state is not that of the
        run fetches that one, once. It ends with an error if it does not get it, or if nothing shows that its own state is that
        of the run."""
        plan, gone = self._book.newest, self._state.gone
        if not self._completion.is_over(now, gone):
            return []
        if not self._book.is_on_roster(plan):
            return [Stop(reason=TOO_LATE, is_finished=False, error=NOT_THE_MODEL)]
        run = self._completion.final_state(voters_of(self._book, plan))
        final, is_agreed = self._state.final, self._is_agreed(plan)
        has_it = run is None or final is None or run.digest == final.state_digest
        if run is not None and not has_it and (run.is_of_most or not is_agreed) and not self._has_asked:
            return self._exchange(run, self._book.mine(plan))
        if has_it and not self._completion.may_go(now, gone):
            return []
        if self._is_apart():
            return [Stop(reason=ALONE, is_finished=False, error=NOT_THE_MODEL)]
        is_sure = run is None or not (run.is_disputed or (run.is_agreed and not has_it))
        if (is_agreed and is_sure) or (has_it and run is not None and run.is_agreed):
            return self._complete(plan, now)
        if not self._completion.is_last_word(now):
            return []
        saves = self._save_final(plan, now, is_finished=False) if is_agreed else []
        return [*saves, Stop(reason=ANOTHER_MODEL, is_finished=False, error=NOT_THE_MODEL)]

    def leave(self, now: float) -> list[Effect]:
        """Leave before the others are done. A state is saved as finished only if it is the model of the run."""
        if self._is_apart():
            return [Stop(reason=ALONE, is_finished=False, error=NOT_THE_MODEL)]
        if self._is_agreed(self._book.newest):
            return self._complete(self._book.newest, now)
        return [Stop(reason=NOT_COMPARED, is_finished=False)]

    def reopen(self) -> None:
        """Continue after another history has won: the run was complete only in the history that lost."""
        self._has_asked = False
        self._completion.withdraw()

    def _complete(self, plan: RoundPlan, now: float) -> list[Effect]:
        """End with the model of the run, saved as such."""
        saves = [] if self._is_saved else self._save_final(plan, now)
        return [*saves, Stop(reason="the run is complete", is_finished=True)]

    def _exchange(self, run: FinalState, mine: Sequence[InstanceId]) -> list[Effect]:
        """Exchange this peer's final state for that of the run."""
        self._completion.withdraw()
        self._state.final = None
        for instance in mine:
            self._state.instance(instance).give_up()
        return self._fetch_final(run, "the final state of this peer is not that of the run; fetching that of the others")

    def _fetch_final(self, run: FinalState, reason: str) -> list[Effect]:
        self._book.final, self._has_asked = run, True
        return [telemetry.Warning(key="final state", message=reason, active=True)]


def voters_of(book: PlanBook, plan: RoundPlan) -> list[PeerId]:
    """Return the peers whose final states decide after the last plan: hosts that had work in the last round, in the order of
    joining; without any, all members."""
    before = book.get(plan.round - 1)
    worked = {share.peer for item in (before.instances if before else ()) for share in item.hosts if share.samples > 0}
    voters = deciding_hosts(worked, plan)
    members = [entry.peer for entry in sorted(plan.roster, key=lambda entry: (entry.joined_round, entry.peer))]
    return [peer for peer in members if peer in voters] or members
