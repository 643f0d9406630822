"""The netreduce command."""
