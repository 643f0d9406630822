"""Trains a classifier of handwritten digits with DistributedDataParallel: an ordinary script, unchanged for NetReduce.

    netreduce run --workers 4 -- python examples/train_digits.py
    torchrun --nproc-per-node 4 examples/train_digits.py --backend gloo

The data ships inside scikit-learn. All seeds are fixed, so two runs differ only in how the gradients are summed.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

BATCH_PER_RANK = 32
LEARNING_RATE = 0.05  # tame: at 0.1 training turns chaotic, and the last bit of a sum decides the loss curve


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training pixels and labels, then those held out: float32[n, 64] in 0..1 and int64[n]."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    pixels = torch.from_numpy(digits.data).float()[order] / 16
    labels = torch.from_numpy(digits.target).long()[order]
    held_out = len(labels) // 5
    return pixels[held_out:], labels[held_out:], pixels[:held_out], labels[:held_out]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a digit classifier with DistributedDataParallel.")
    parser.add_argument("--backend", default="netreduce", help="c10d backend: netreduce or gloo")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--result", type=Path, help="write the loss of every step and the accuracy to this JSON file")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    pixels, labels, held_out_pixels, held_out_labels = load_data()
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses: list[float] = []

    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH_PER_RANK * world_size):
            mine = batch[rank::world_size]  # the last batch is smaller, but no rank's share is empty
            loss = cross_entropy(model(pixels[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean_loss = loss.detach()
            dist.all_reduce(mean_loss)
            losses.append(mean_loss.item() / world_size)
        with torch.no_grad():
            accuracy = (network(held_out_pixels).argmax(1) == held_out_labels).float().mean().item()
        if rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {losses[-1]:.4f}  accuracy {accuracy:.1%}", flush=True)

    if rank == 0 and options.result:
        options.result.write_text(json.dumps({"losses": losses, "accuracy": accuracy}))
    dist.barrier()  # nobody leaves while others still need it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
