import json

import pytest
from typer.testing import CliRunner

from netreduce.cli import doctor
from netreduce.cli.main import app


def test_every_finding_that_is_not_well_says_what_to_do():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    checks = json.loads(result.stdout)
    assert len(checks) >= len(doctor.CHECKS)
    assert all(check["advice"] for check in checks if check["status"] == "missing")
    assert "local cables" in result.stdout


def test_the_text_has_a_line_for_each_check():
    checks = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    result = CliRunner().invoke(app, ["doctor"])
    lines = [line for line in result.stdout.splitlines() if "->" not in line]
    assert len(lines) == len(checks)


def test_a_missing_package_tells_how_to_install_it():
    check = doctor.check_package("no-such-package", "dreams", "no-such-package")
    assert (check.status, check.advice) == ("note", "pip install no-such-package")
    assert doctor.check_package("no-such-package", "", "x").status == "missing"


@pytest.mark.parametrize(("limit", "status"), [("4194304", "ok"), ("65536", "note"), ("nonsense", "note")])
def test_small_socket_buffers_are_noted(tmp_path, limit, status):
    path = tmp_path / "proc/sys/net/core"
    path.mkdir(parents=True)
    (path / "wmem_max").write_text(limit)
    assert doctor.check_socket_buffers(tmp_path).status == status


def test_capabilities_are_read_from_the_process_status(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    status = tmp_path / "proc/self/status"
    status.write_text("Name:\tx\nCapEff:\t0000000000002000\n")
    assert doctor.check_raw_sockets(tmp_path).status == "ok"
    status.write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    assert "--cap-add NET_RAW" in doctor.check_raw_sockets(tmp_path).advice


def test_a_cpu_without_vector_instructions_is_noted(tmp_path, monkeypatch):
    (tmp_path / "proc").mkdir()
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t: avx2 pclmulqdq f16c\n")
    assert doctor.check_cpu(tmp_path).status == "ok"
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t: sse2 f16c\n")
    assert doctor.check_cpu(tmp_path).found == "1 x x86_64, without avx2, pclmulqdq"
