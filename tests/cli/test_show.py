"""The command `netreduce show`, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.wire.conversation import answer, message_frames
from typer.testing import CliRunner, Result

from netreduce.cli.show import show
from netreduce.wire.build import build_burst
from netreduce.wire.pcap import Direction, PcapWriter

SOURCE = Path(__file__).parents[2] / "src"
app = typer.Typer()
app.command()(show)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "x.pcapng"
    with PcapWriter(path, ["port 0", "port 1"], epoch_ns=1_700_000_000_000_000_000) as writer:
        for i, frame in enumerate([*message_frames(0, 0), answer(0, 3), message_frames(0, 0)[1]]):
            writer.write_burst(0, Direction.INBOUND, build_burst([frame], i * 1_500_000))
    return path


def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def test_a_capture_is_shown_a_line_a_frame(capture: Path) -> None:
    result = run(capture)
    lines = result.stdout.splitlines()
    assert (result.exit_code, len(lines)) == (0, 6)
    assert " ".join(lines[1].split()) == (
        "2 0.000001500 port 0 in 10.78.0.1 > 10.78.0.2 RC SEND_MIDDLE qp 0x000020 psn 1 256 B "
        "ring 3 rank 0 msg 0 slot 1/4 icrc good"
    )
    assert lines[5].endswith("retransmission  icrc good")


def test_times_can_be_deltas_or_utc(capture: Path) -> None:
    deltas = [line.split()[1] for line in run(capture, "--time", "delta").stdout.splitlines()]
    assert deltas == ["0.000000000", *["0.000001500"] * 5]
    assert "2023-11-14T22:13:20.000001500Z" in run(capture, "--time", "utc").stdout.splitlines()[1]


def test_filters_and_count_choose_lines(capture: Path) -> None:
    def numbers(*arguments: str) -> list[str]:
        return [line.split()[0] for line in run(capture, *arguments).stdout.splitlines()]

    assert numbers("--opcode", "middle", "--rank", "0") == ["2", "3", "6"]
    assert numbers("--opcode", "middle", "--count", "1") == ["2"]
    assert numbers("--psn", "3", "--psn", "0x0-1") == ["1", "2", "4", "5", "6"]
    assert run(capture, "--bad").stdout == ""


def test_json_has_an_object_a_line(capture: Path) -> None:
    views = [json.loads(line) for line in run(capture, "--json").stdout.splitlines()]
    assert [view.get("slot") for view in views] == [0, 1, 2, 3, 3, 1]
    assert views[4]["acknowledgement"] == "ACK"
    assert "p_key" not in views[0]


def test_the_summary_comes_as_text_and_as_json(capture: Path) -> None:
    assert "6 frames" in run(capture, "--summary").stdout
    assert json.loads(run(capture, "--summary", "--json").stdout)["retransmitted"] == 1


def test_standard_input_is_read_too(capture: Path) -> None:
    assert len(run("-", stdin=capture.read_bytes()).stdout.splitlines()) == 6


def test_a_file_that_is_cut_shows_what_it_has_and_then_fails_in_one_line(capture: Path) -> None:
    capture.write_bytes(capture.read_bytes()[:-5])
    result = run(capture)
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 5)
    assert result.stderr.count("\n") == 1
    assert f"{capture}: the file ends inside a block, at byte" in result.stderr
    assert "5 frames" in run(capture, "--summary").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nowhere/x.pcap"], 1, "/nowhere/x.pcap: No such file or directory"),
        (["/"], 1, "/: Is a directory"),
        ([__file__], 1, "not a pcap or pcapng file, it starts with 2222"),
        (["-", "--qpn", "seven"], 2, "--qpn 'seven': a number is expected"),
        (["-", "--opcode", "snd"], 2, "--opcode 'snd': no such name"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert message in result.stderr


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", *arguments]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


def test_help_needs_neither_compiler_nor_numpy() -> None:
    code = "import sys, netreduce.cli.show; print({'numba', 'numpy', 'dpkt', 'msgspec'} & set(sys.modules))"
    done = subprocess.run(python(code), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """As with `| head`: the pipe holds 64 KiB, the lines are more."""
    path = tmp_path / "long.pcapng"
    with PcapWriter(path, ["port 0"]) as writer:
        for i in range(300):
            writer.write_burst(0, Direction.INBOUND, build_burst(message_frames(i, 4 * i)))
    code = "import sys, typer; from netreduce.cli.show import show; a = typer.Typer(); a.command()(show); a()"
    process = subprocess.Popen(
        python(code, str(path)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert "SEND_FIRST" in process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), errors) == (0, "")
