"""`import torch` registers the backend, cheaply and without ever failing."""

import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from netreduce.errors import SwitchLostError
from netreduce.torch.autoload import create


def run(script: str) -> str:
    """Standard output of `script` in a fresh interpreter, where nothing is imported yet."""
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_torch_registers_the_backend_for_host_and_device_tensors():
    script = (
        "import torch.distributed as d;"
        "print(d.is_backend_available('netreduce'), d.Backend.backend_capability['netreduce'])"
    )
    assert run(script) == "True ['cpu', 'cuda']"


def test_importing_torch_loads_neither_the_compiler_nor_the_data_path():
    heavy = "['numba', 'ml_dtypes', 'netreduce.nic', 'netreduce.runtime', 'netreduce.torch.process_group']"
    assert run(f"import torch, sys; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_registering_twice_changes_nothing():
    script = (
        "import torch.distributed as d; from netreduce.torch.autoload import register;"
        "before = list(d.Backend.backend_list); register(); print(d.Backend.backend_list == before)"
    )
    assert run(script) == "True"


def test_a_torch_without_distributed_is_left_alone():
    script = (
        "import torch.distributed as d; from netreduce.torch.autoload import register;"
        "d.is_available = lambda: False; d.Backend.backend_list.remove('netreduce'); register();"
        "print('netreduce' in d.Backend.backend_list)"
    )
    assert run(script) == "False"


def test_options_that_it_does_not_know_are_refused_by_name():
    options = SimpleNamespace(group_rank=0, group_size=2)
    with pytest.raises(ValueError, match="pg_options has speed"):
        create(options, {"provider": "rdma", "speed": 3})


def test_the_switch_can_be_named_as_an_option(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    options = SimpleNamespace(group_rank=0, group_size=2, store=store, group_id="g", timeout=timedelta(seconds=5))
    with pytest.raises(SwitchLostError, match="no switch at local:netreduce-nowhere"):
        create(options, {"switch": "local:netreduce-nowhere"})
