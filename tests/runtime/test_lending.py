from concurrent.futures import Future

import numpy as np
import pytest

from netreduce.errors import ConfigurationError, PeerLostError
from netreduce.runtime.lending import Handle, Lent


@pytest.mark.parametrize("array", [np.zeros(5), np.zeros((2, 3)), np.array(1.0), np.zeros(0)])
def test_contiguous_arrays_are_lent_themselves(array):
    lent = Lent(array)
    assert lent.memory is array
    assert lent.copies == ()


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[:, ::-1], np.s_[:, 1]])
def test_strided_arrays_are_lent_as_copies(view):
    array = np.arange(12.0).reshape(4, 3)[view]
    lent = Lent(array)
    assert lent.memory.flags.c_contiguous
    assert not np.shares_memory(lent.memory, array)
    np.testing.assert_array_equal(lent.memory, array)
    assert lent.copies[0][0] is array


def test_only_arrays_are_lent():
    with pytest.raises(ConfigurationError, match="not list"):
        Lent([1, 2])


def test_a_handle_finishes_once_however_often_it_is_waited_for():
    future, finished = Future(), []
    handle = Handle(future, "result", lambda: finished.append(1))
    assert not handle.done()
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    future.set_result(None)
    assert handle.wait() == handle.wait() == "result"
    assert finished == [1]


def test_a_failed_handle_raises_and_copies_nothing_back():
    future, finished = Future(), []
    handle = Handle(future, None, lambda: finished.append(1))
    future.set_exception(PeerLostError("rank 1"))
    with pytest.raises(PeerLostError):
        handle.wait()
    assert finished == []
