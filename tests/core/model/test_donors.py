"""The order in which the donors of a state are asked."""

from collections import Counter

from adloco_p2p.core.model.donors import in_turn
from adloco_p2p.core.model.scalars import Digest, PeerId

DONORS = [PeerId(f"p{index:02}") for index in range(20)]
STATE = Digest("5" * 64)


def test_those_that_come_first_come_first_whatever_their_ids() -> None:
    first = {DONORS[3], DONORS[19]}
    order = in_turn(DONORS, STATE, PeerId("me"), first=first)
    assert {*order[:2]} == first and sorted(order) == DONORS


def test_no_donor_is_first_for_every_peer_and_state() -> None:
    """400 draws of one in 20: 20 for each, and more than 40 by chance once in ten thousand."""
    peers, states = [PeerId(f"q{index}") for index in range(20)], [Digest(f"{index:064x}") for index in range(20)]
    first = Counter(in_turn(DONORS, state, peer, first=())[0] for peer in peers for state in states)
    assert len(first) == len(DONORS) and max(first.values()) <= 40
    assert in_turn(DONORS, STATE, peers[0], first=()) == in_turn(DONORS[::-1], STATE, peers[0], first=())
