import subprocess
import sys
import time

from tests.patience import bound_s
from typer.testing import CliRunner

from netreduce import __version__
from netreduce.cli.main import app


def test_help_names_the_commands():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in ("run", "doctor", "show", "version"):
        assert command in result.stdout


def test_the_version_is_printed():
    assert CliRunner().invoke(app, ["version"]).stdout.strip() == __version__


def test_help_needs_neither_compiler_nor_torch():
    code = (
        "import sys; from netreduce.cli.main import app; app(['--help'], standalone_mode=False);"
        "sys.exit(str([m for m in ('numba', 'torch', 'numpy') if m in sys.modules]))"
    )
    start = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr.strip() == "[]"
    assert time.monotonic() - start < bound_s()  # 0.3 s on an idle machine
