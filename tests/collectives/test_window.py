"""The window's promise, checked against a model of a ring: whoever posts message k proves that all ranks hold k-2N."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreduce.collectives.window import MessageWindow


@given(
    size=st.integers(1, 5),
    ranks=st.integers(2, 5),
    choices=st.lists(st.tuples(st.sampled_from(["post", "result", "ack"]), st.integers(0, 4)), max_size=300),
)
def test_a_posted_message_proves_that_all_ranks_hold_the_one_two_windows_before(
    size: int, ranks: int, choices: list[tuple[str, int]]
) -> None:
    windows = [MessageWindow(size) for _ in range(ranks)]
    for action, chosen in choices:
        rank = chosen % ranks
        window, successor = windows[rank], windows[(rank + 1) % ranks]
        if action == "post" and window.may_post:
            number = window.post()
            assert all(other.received > number - 2 * size for other in windows)
            assert all(number < other.completed + 2 * size for other in windows)
        elif action == "result" and window.received < min(other.posted for other in windows):
            window.receive()  # a result exists once every rank has given its share
        elif action == "ack" and window.acknowledged < min(window.posted, successor.received):
            window.acknowledge()  # the successor acknowledges what it has received
        window.complete()
        assert window.in_flight <= size


@given(st.integers(1, 8), st.data())
def test_each_message_completes_once_and_in_order(size: int, data: st.DataObject) -> None:
    window = MessageWindow(size)
    done: list[int] = []
    for _ in range(100):
        possible = []
        if window.may_post:
            possible.append(window.post)
        if window.received < window.posted:
            possible.append(window.receive)
        if window.acknowledged < window.posted:
            possible.append(window.acknowledge)
        data.draw(st.sampled_from(possible))()
        done.extend(window.complete())
    assert done == list(range(window.completed))
    assert window.completed == min(window.received, window.acknowledged)


def test_a_window_of_one_alternates() -> None:
    window = MessageWindow(1)
    assert window.post() == 0
    assert not window.may_post
    window.receive()
    assert list(window.complete()) == []
    window.acknowledge()
    assert list(window.complete()) == [0]
    assert window.may_post


def test_a_full_window_admits_nothing() -> None:
    window = MessageWindow(2)
    window.post()
    window.post()
    with pytest.raises(AssertionError):
        window.post()


def test_message_ids_are_32_bits_wide() -> None:
    assert MessageWindow.message_id((1 << 32) + 5) == 5
