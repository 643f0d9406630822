"""The PyTorch process group."""
