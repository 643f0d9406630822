from netreduce.runtime.observer import summary
from netreduce.wire.control import Statistics


def test_a_run_that_was_reduced_in_the_network_says_so_with_figures():
    statistics = Statistics(
        counters={"packets_spliced": 4000, "messages_aggregated": 12, "drop_bad_icrc": 1},
        workers={"in_network_bytes_sent": 4_000_000, "ring_bytes": 6_000_000, "retransmitted_pkts": 3},
        rings={},
        ports={},
    )
    assert summary(statistics) == [
        "in-network reduction was ACTIVE: 12 messages, 4,000 packets spliced",
        "payload sent by all workers: 4.0 MB; round a ring it were 6.0 MB",
        "ICRC failures: 1, retransmissions: 3",
    ]


def test_a_run_without_reduction_says_so_plainly():
    assert summary(Statistics({}, {}, {}, {}))[0].startswith("in-network reduction was NOT active")
