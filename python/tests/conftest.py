"""Four processes for the whole session, joined by gloo: tests send them functions, and none starts its own.

A case is a function case(group, …) that every rank of the group runs; its group has the number of ranks that the test
asks for. What a rank raises is the test's failure, with its traceback.
"""

import faulthandler
import multiprocessing
import os
import tempfile
import traceback

import pytest
import torch
import torch.distributed as dist

import rotunda

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # there may be no other interface

WORLD = 4
PATIENCE = 100  # seconds a case may take on a loaded machine


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also what takes minutes: real models, compilation to C++")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; only with --all")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--all"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: runs with --all"))


def _serve(rank, store, pipe, patience):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    groups = {1: "self", 2: dist.new_group([0, 1]), 3: dist.new_group([0, 1, 2]), 4: dist.group.WORLD}
    while True:
        case, ranks, arguments = pipe.recv()
        if case is None:
            break
        text = None
        if rank < ranks:
            torch.manual_seed(1234)
            faulthandler.dump_traceback_later(patience - 5)  # says where it hangs
            try:
                case(groups[ranks], *arguments)
            except BaseException:
                text = f"rank {rank} of {ranks}:\n{traceback.format_exc()}"
            faulthandler.cancel_dump_traceback_later()
        pipe.send(text)
    dist.barrier()
    dist.destroy_process_group()


class Pool:
    def __init__(self, patience=PATIENCE):
        # Forked: what this process has imported is there at once. It has started no threads.
        context = multiprocessing.get_context("fork")
        self._folder = tempfile.TemporaryDirectory()
        store = os.path.join(self._folder.name, "store")
        self._pipes, self._processes = [], []
        self._lost, self._patience = None, patience
        for rank in range(WORLD):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, store, theirs, patience), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, ranks, case, *arguments):
        for pipe in self._pipes:
            pipe.send((case, ranks, arguments))
        texts = [self._result(rank) for rank in range(WORLD)]
        failures = "\n".join(text for text in texts if text)
        if self._lost:  # the other cases can't run either
            print(failures)
            pytest.exit(f"{case.__name__}: {self._lost}", 1)
        if failures:
            pytest.fail(failures, pytrace=False)

    def _result(self, rank):
        if not self._pipes[rank].poll(1 if self._lost else self._patience):
            self._lost = f"rank {rank} has said nothing for {self._patience} s"
            return None
        try:
            return self._pipes[rank].recv()
        except EOFError:
            self._lost = f"the process of rank {rank} has died"
            return None

    def close(self):
        for pipe in self._pipes:
            pipe.send((None, 0, ()))
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


@pytest.fixture(scope="session")
def pool():
    os.environ.setdefault("ROTUNDA_TIMEOUT", "60")
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def alone():
    """Tests that need one rank alone run in this process, which has no torch.distributed."""
    assert not dist.is_initialized()
    return rotunda.Group.of("self")
