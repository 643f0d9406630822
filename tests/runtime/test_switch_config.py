"""The configuration of `netreduce switch`: errors name the file, and the line or the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from netreduce.errors import ConfigurationError
from netreduce.runtime.switch_config import load_config


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fabric.toml"
    path.write_text(text)
    return path


def test_a_file_is_read_with_defaults_for_what_it_leaves_out(tmp_path):
    config = load_config(
        write(tmp_path, 'path-mtu = 4096\n[[port]]\ninterface = "eth1"\n[[port]]\nstream = "/run/g"\n')
    )
    assert [port.interface or port.stream for port in config.port] == ["eth1", "/run/g"]
    assert (config.path_mtu, config.listen, config.rings) == (4096, "", 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path-mtu = 4096\nrings = many\n", "line 2"),
        ('path-mtu = 4096\nrings = "many"\n', "line 2: Expected `int`, got `str`"),
        ("\n\npathmtu = 4096\n", "line 3: Object contains unknown field `pathmtu`"),
        ("path-mtu = 1500\n", "line 1: path-mtu: 1500 is none of"),
        ('[[port]]\ninterface = "a"\nstream = "b"\n', "line 1: port: each needs either"),
        ('name = "x"\nlisten = "0.0.0.0:1"\n', "line 2: listen: who listens on a network needs a token-file"),
        ('cables = 1\nuser = "no-such-user"\n', "line 2: user: "),
        ("cables = 0\n", "a switch without ports"),
        ('mode = "hub"\n', "line 1: Invalid enum value 'hub'"),
        ('cables = 1\nmode = "route"\n', "line 2: mode: a switch that routes needs a port with an interface"),
        ('mode = "route"\n[[port]]\ninterface = "a"\n[[port]]\nstream = "b"\n', "line 5: stream: a stream has no"),
        ("\nrings-per-worker = 0\n", "line 2: rings-per-worker: want 1 or more"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(ConfigurationError) as caught:
        load_config(write(tmp_path, text))
    assert "fabric.toml" in str(caught.value)
    assert message in str(caught.value)


def test_a_token_is_long_and_readable_or_refused(tmp_path):
    (tmp_path / "short").write_text("secret\n")
    (tmp_path / "good").write_text("0123456789abcdef\nnot this\n")
    load = lambda name: load_config(write(tmp_path, f'cables = 1\ntoken-file = "{tmp_path}/{name}"\n')).token()  # noqa: E731
    assert load("good") == "0123456789abcdef"
    with pytest.raises(ConfigurationError, match="16 characters"):
        load("short")
    with pytest.raises(ConfigurationError, match="No such file"):
        load("nowhere")
