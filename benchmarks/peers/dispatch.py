"""PyTorch's time of a + b on eight floats, plain and recorded, and of DTensor's; seconds, one number per line."""
import os
import time

import torch

torch.set_num_threads(1)


def median_seconds(f, calls=2000, rounds=25):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            f()
        times.append((time.perf_counter() - start) / calls)
    return sorted(times)[rounds // 2]


def add(a, b):
    def run():
        a + b

    return run


a, b = torch.randn(8), torch.randn(8)
with torch.no_grad():
    print("forward", median_seconds(add(a, b)))
a.requires_grad_(True)
print("recorded", median_seconds(add(a, b)))
print("version", torch.__version__)

try:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29563", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (1,))
    x, y = (distribute_tensor(torch.randn(8), mesh, [Shard(0)]) for _ in range(2))
    with torch.no_grad():
        print("decomposed", median_seconds(add(x, y), calls=200))
    dist.destroy_process_group()
except (ImportError, RuntimeError):
    pass
