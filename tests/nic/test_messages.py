import numpy as np
import pytest
from tests.nic.harness import connect, fill, make_wire


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 512, 513, 1021, 5000])
def test_send(size):
    wire = make_wire()
    a, b = connect(wire)
    fill(a, 1)
    b.receive(7, 0, 8192)
    a.send(1, 0, size)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS")]
    [wc] = b.completions()
    assert wc.byte_len == size
    assert np.array_equal(a.memory[:size], b.memory[:size])
