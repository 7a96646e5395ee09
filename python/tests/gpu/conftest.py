"""A process for each GPU of this machine, joined by NCCL: what every test here runs in."""

import os

import pytest
import torch
from pool import Pool

import rotunda


class Gpus:
    """run(ranks, case, …) as Pool's; a test that needs more GPUs than there are is skipped."""

    def __init__(self, pool):
        self._pool = pool

    def run(self, ranks, case, *arguments):
        if ranks > self._pool.world:
            pytest.skip(f"{ranks} GPUs are needed; there is {self._pool.world}")
        self._pool.run(ranks, case, *arguments)


@pytest.fixture(scope="session")
def gpus(request):
    device = request.config.getoption("--gpu-tests-on")
    count = torch.cuda.device_count() if device == "cuda" else 2
    if count == 0:
        pytest.skip("PyTorch sees no GPU")
    reason = rotunda._core.why_no_cuda() if device == "cuda" else ""
    if reason:
        pytest.skip(reason)
    os.environ.setdefault("ROTUNDA_TIMEOUT", "40")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    pool = Pool(min(count, 2), device, method="spawn", patience=90, restarts=5)
    yield Gpus(pool)
    pool.close()
