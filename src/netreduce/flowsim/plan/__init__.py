"""Would in-network reduction help this job? Measurements that people have, turned into an answer with its reasons."""
