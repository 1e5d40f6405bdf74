"""A training with torchrun whose workers may change: python -m torch.distributed.run ... elastic_training.py FOLDER.

Each step adds the gradients of all data, divided by the workers, in double precision, so that the loss does not depend
on the number of workers but for rounding. The first worker saves each step. Workers that start again continue from it.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data = torch.randn(64, 8, dtype=torch.float64)
truth = data @ torch.arange(8.0, dtype=torch.float64)
own = slice(len(data) * rank // workers, len(data) * (rank + 1) // workers)
saved = folder / "saved"
step, weights = torch.load(saved) if saved.exists() else (0, torch.zeros(8, dtype=torch.float64))
ends = torch.zeros(1)
while not ends:
    error = data[own] @ weights - truth[own]
    sums = torch.cat([2 * data[own].T @ error, (error**2).sum().reshape(1)])
    dist.all_reduce(sums)
    step, weights = step + 1, weights - 0.02 * sums[:-1] / len(data)
    ends[0] = rank == 0 and ((folder / "end").exists() or step == int(os.environ.get("STEPS", "0")))
    dist.all_reduce(ends)
    if rank == 0:
        with open(folder / "losses", "a") as file:  # first: a step that is killed before it is saved is done again
            file.write(f"{step} {workers} {sums[-1].item()!r}\n")
        torch.save((step, weights), folder / "part")
        (folder / "part").rename(saved)
