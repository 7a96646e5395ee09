"""Four processes for the whole session, joined by gloo (pool.py)."""

import os

import pytest
import torch.distributed as dist
from pool import Pool

import rotunda

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # there may be no other interface


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also what takes minutes: real models, compilation to C++")
    parser.addoption(
        "--gpu-tests-on", choices=("cuda", "cpu"), default="cuda", help="cpu: to try out the tests in gpu/ themselves"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; only with --all")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--all"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: runs with --all"))


@pytest.fixture(scope="session")
def pool():
    os.environ.setdefault("ROTUNDA_TIMEOUT", "60")
    pool = Pool(4)
    yield pool
    pool.close()


@pytest.fixture
def alone():
    """Tests that need one rank alone run in this process, which has no torch.distributed."""
    assert not dist.is_initialized()
    return rotunda.Group.of("self")
