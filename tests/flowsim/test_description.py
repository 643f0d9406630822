"""Files describe clusters and scenarios; a mistake is an error that names the file and the field."""

import pytest

from netreduce.errors import ConfigurationError
from netreduce.flowsim.description import background_of, cluster_of, jobs_of, load, settings_of
from netreduce.flowsim.scenario import simulate

SPLICED = """
[cluster]
fabric = "single-switch"
machines = 8
port = "100Gbps"
[settings]
payload = 0
[[job]]
scheme = "ring"
size = "80MB"
workers = "0-3,5"
late = { 2 = "1ms" }
[[background]]
source = 6
sink = 0
size = "50MB"
"""

GRAPH = """
hosts = ["a", "b", "c"]
[cluster]
fabric = "graph"
[[link]]
ends = ["a", "s"]
rate = "100Gbps"
[[link]]
ends = ["b", "s"]
rate = "100Gbps"
[[link]]
ends = ["c", "s"]
rate = "10Gbps"
latency = "5us"
"""


def written(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def everything(path):
    description = load(path)
    cluster = cluster_of(description)
    return jobs_of(description, cluster), background_of(description, cluster)


def test_a_described_scenario_runs(tmp_path):
    description = load(written(tmp_path, SPLICED))
    cluster = cluster_of(description)
    jobs = jobs_of(description, cluster)
    assert jobs[0].name == "job0"
    assert jobs[0].workers.tolist() == [0, 1, 2, 3, 5]
    outcome = simulate(cluster, jobs, background_of(description, cluster), settings_of(description))
    assert outcome.jobs[0].times_s[0] > 2 * 4 / 5 * 80e6 / 12.5e9 + 50e6 / 12.5e9 / 2


def test_an_empty_file_is_32_machines_under_one_leaf(tmp_path):
    cluster = cluster_of(load(written(tmp_path, "")))
    assert cluster.title == "32 x 1 workers on a leaf-spine"


@pytest.mark.parametrize(
    ("fabric", "title"),
    [
        ('fabric = "fat-tree"\nmachines = 16\nradix = 4', "fat tree k=4"),
        ('fabric = "rail"\nmachines = 8\ngpus = 4\nports = 4\nper-leaf = 4\nspines = 4', "rail-optimised"),
        ('fabric = "leaf-spine"\nmachines = 64\nuplink = "400Gbps"', "leaf-spine"),
    ],
)
def test_every_fabric_can_be_described(tmp_path, fabric, title):
    assert title in cluster_of(load(written(tmp_path, f"[cluster]\n{fabric}\n"))).title


def test_a_graph_names_its_hosts_and_links(tmp_path):
    cluster = cluster_of(load(written(tmp_path, GRAPH)))
    assert cluster.worker_count == 3
    assert dict(zip(cluster.links.names, cluster.links.capacity, strict=True))["s->c"] == pytest.approx(1.25e9)


def test_links_can_be_changed_by_name(tmp_path):
    text = GRAPH + '[[change]]\nlinks = "a--s"\nfactor = 0.5\nlatency = "10us"\n'
    cluster = cluster_of(load(written(tmp_path, text)))
    index = cluster.links.names.index("s->a")
    assert cluster.links.capacity[index] == pytest.approx(6.25e9)
    assert cluster.links.latency_s[index] == pytest.approx(11e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cluster]\nmachine = 8", r"cluster.toml: Object contains unknown field `machine` - at `\$.cluster`"),
        ("[cluster]\nmachines = true", r"Expected `int`, got `bool` - at `\$.cluster.machines`"),
        ("[cluster\n", r"cluster.toml: .*line 1"),
        ('[cluster]\nport = "fast"', "'fast' is not a rate"),
        ("[cluster]\nmachines = 0", "at least 1"),
        ('[[change]]\nlinks = "spine9->*"', "no link matches"),
        ('[[job]]\nscheme = "quantum"\nsize = "1MB"', "no scheme 'quantum'"),
        ('[[job]]\nscheme = "ring"\nsize = "1MB"\nworkers = "0-99"', "from 0 to 31"),
        ('[[job]]\nscheme = "ring"\nsize = "1MB"\nworkers = "a"', "write 0-15"),
        ('[[job]]\nscheme = "ring"\nsize = "1MB"\nlate = { 77 = "1s" }', "late ranks must be 0 to 31"),
        ('[[background]]\nsource = 1\nsink = 1\nsize = "1MB"', "no two workers"),
    ],
)
def test_mistakes_are_errors_that_name_the_field(tmp_path, text, message):
    with pytest.raises(ConfigurationError, match=message):
        everything(written(tmp_path, text))


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot read .*nowhere"):
        load(tmp_path / "nowhere.toml")
