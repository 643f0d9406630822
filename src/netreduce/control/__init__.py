"""The control plane: topologies from files, rings placed over switches, admission with a reason."""
