"""The document that compares with the paper holds what the simulator gives today."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_the_tables_of_the_reproduction_are_up_to_date():
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("reproduction", ROOT / "benchmarks" / "reproduction.py")
    reproduction = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reproduction)
    document = (ROOT / "docs" / "reproduction.md").read_text()
    assert reproduction.with_tables(document) == document, "run: python benchmarks/reproduction.py"


@pytest.mark.parametrize("document", ["reproduction.md", "flowsim.md"])
def test_every_figure_that_a_document_shows_is_committed(document):
    text = (ROOT / "docs" / document).read_text()
    shown = [line.split("](")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert all((ROOT / "docs" / figure).exists() for figure in shown)


def test_the_scenario_of_the_guide_can_be_read_and_names_every_field(tmp_path):
    from netreduce.flowsim import description

    guide = (ROOT / "docs" / "flowsim.md").read_text()
    example = guide.split("```toml\n")[1].split("```")[0]
    path = tmp_path / "scenario.toml"
    path.write_text(example)
    described = description.load(path)
    cluster = description.cluster_of(described)
    assert [job.name for job in description.jobs_of(described, cluster)] == ["train"]
    assert description.background_of(described, cluster)[0].repeat
    tables = ("ClusterFields", "SettingsFields", "JobFields", "ChangeFields", "BackgroundFields")
    for table in tables:
        for name in getattr(description, table).__struct_encode_fields__:
            assert name in example, name
