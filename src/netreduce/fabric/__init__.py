"""What lies between nodes: the node protocol, links, faults and the simulator."""
