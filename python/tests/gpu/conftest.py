"""Two processes, joined by NCCL where each has a GPU of its own, else by gloo: what every test here runs in."""

import os

import pytest
import torch
from pool import Pool

import rotunda


class Gpus:
    """run(ranks, case, …) as Pool's; NCCL's tests are skipped where ranks share a GPU."""

    def __init__(self, pool, share):
        self._pool, self.share = pool, share

    def run(self, ranks, case, *arguments):
        if self.share and ranks > 1 and "nccl" in arguments:
            pytest.skip(f"NCCL needs a GPU for each of the {ranks} ranks")
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
    pool = Pool(2, device, method="spawn", patience=90, restarts=5)
    yield Gpus(pool, share=count < 2)
    pool.close()
