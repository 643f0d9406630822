"""The ranks that the live tests of this folder share."""

from collections.abc import Iterator

import pytest
from tests.torch.world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Four ranks in one process group, with a switch of their own."""
    ranks = World(4, tmp_path_factory.mktemp("world"))
    yield ranks
    ranks.close()
