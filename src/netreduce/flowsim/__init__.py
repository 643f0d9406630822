"""Flow-level simulation of collectives on thousands of workers: fluid engine, topologies, prices, workloads, plans."""
