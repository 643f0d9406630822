"""The walks: what they show is what the runs did, and the runs are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from netreduce.errors import ConfigurationError
from netreduce.trace.recording import read_trace
from netreduce.viewer import walks
from netreduce.viewer.page import render


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return {walk["id"]: walk for walk in walks.record_walks()["walks"]}


def chunks(step: dict[str, Any]) -> list[list[str]]:
    return [[chunk["value"] for chunk in node["chunks"]] for node in step["nodes"].values() if node["chunks"]]


def test_the_ring_walk_has_the_ten_steps_and_the_hop_of_each(recorded: dict[str, Any]) -> None:
    titles = [step["title"] for step in recorded["ring"]["steps"]]
    assert titles[:3] == ["Before", "Queue pairs", "Clear to send"]
    assert titles[6] == "One finished chunk each"
    assert titles[-1] == "The cost"
    assert sum("hop" in title for title in titles) == 6


def test_the_ring_starts_with_powers_of_ten_and_ends_with_ones_everywhere(recorded: dict[str, Any]) -> None:
    steps = recorded["ring"]["steps"]
    assert chunks(steps[0]) == [[str(10**rank)] * 4 for rank in range(4)]
    assert chunks(steps[-1]) == [["1111"] * 4] * 4


def test_after_reduce_scatter_rank_r_owns_chunk_r_plus_1_alone(recorded: dict[str, Any]) -> None:
    owned = [[i for i, value in enumerate(row) if value == "1111"] for row in chunks(recorded["ring"]["steps"][6])]
    assert owned == [[1], [2], [3], [0]]


def test_the_ring_sends_one_and_a_half_buffers_and_says_so(recorded: dict[str, Any]) -> None:
    assert "1.5 times" in recorded["ring"]["steps"][-1]["text"]


@pytest.mark.parametrize("key", ["journey", "first-lost", "replay"])
def test_netreduce_ends_with_the_sum_on_every_rank(recorded: dict[str, Any], key: str) -> None:
    assert {value for row in chunks(recorded[key]["steps"][-1]) for value in row} == {"111"}


def test_the_sum_in_the_table_is_the_one_on_the_frames(recorded: dict[str, Any]) -> None:
    step = next(step for step in recorded["journey"]["steps"] if "sum and splice" in step["title"])
    table = next(table for table in step["tables"] if table["name"].startswith("Aggregator"))
    assert table["rows"][0][-1] == "111"
    spliced = [frame for frame in step["frames"] if frame["tone"] == "sum"]
    assert len(spliced) == 3
    assert all(frame["label"].endswith(" 111") for frame in spliced)
    assert all(["ICRC", "good"] in frame["fields"] for frame in spliced)


def test_after_a_lost_first_packet_the_switch_asks_its_sender_alone_to_go_back(recorded: dict[str, Any]) -> None:
    steps = recorded["first-lost"]["steps"]
    titles = [step["title"] for step in steps]
    assert titles.index("A frame is lost") < titles.index("A gap: the switch answers NAK") < titles.index("Go-back-N")
    assert "Worker 1 sends again" in steps[titles.index("Go-back-N")]["text"]


def test_a_replay_of_a_complete_slot_is_answered_on_one_connection(recorded: dict[str, Any]) -> None:
    step = next(step for step in recorded["replay"]["steps"] if step["title"] == "The switch answers a replay")
    assert sum(frame["from"] == "switch" for frame in step["frames"]) == 1


def test_an_accumulator_in_place_leaves_one_rank_with_another_number(recorded: dict[str, Any]) -> None:
    values = [row[0] for row in chunks(recorded["in-place"]["steps"][-1])]
    assert values[0] == values[2] == "111"
    assert values[1] == "112"  # rank 0's part was added once more


def test_an_unspliced_aggregate_is_dropped_by_receivers_that_it_does_not_fit(recorded: dict[str, Any]) -> None:
    titles = [step["title"] for step in recorded["unspliced"]["steps"]]
    assert "Dropped: not for me" in titles
    assert {value for row in chunks(recorded["unspliced"]["steps"][-1]) for value in row} != {"111"}


def test_every_step_says_what_happens_and_why(recorded: dict[str, Any]) -> None:
    for walk in recorded.values():
        for step in walk["steps"]:
            assert step["title"]
            assert step["text"]
            assert step["why"]


def test_a_trace_survives_its_file_and_can_be_walked(tmp_path: Path) -> None:
    stage = walks.run_replay()
    path = tmp_path / "trace.jsonl"
    stage.trace.write(path)
    again = read_trace(path)
    assert again.moments == stage.trace.moments
    assert walks.walk_of(again)["walks"][0]["steps"][0]["title"] == "Work is posted"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "empty"), ("{}\n", "line 1"), ('{"line":"event","t_ps":1,"node":"a","event":"SENT"}\n', "first line")],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=complaint):
        read_trace(path)


def test_the_page_holds_the_document_and_asks_the_network_for_nothing() -> None:
    page = render({"walks": [{"title": "</script><b>"}]})
    document = page.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(document)["walks"][0]["title"] == "</script><b>"
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
