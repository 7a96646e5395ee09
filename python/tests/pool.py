"""Processes for a whole session: tests send them functions, and none starts its own.

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

PATIENCE = 100  # seconds a case may take on a loaded machine


def _serve(rank, world, device, store, pipe, patience):
    torch.set_num_threads(1)
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    if gpus:
        torch.cuda.set_device(rank % gpus)
    backend = "cpu:gloo,cuda:nccl" if gpus >= world else "gloo"  # NCCL wants a GPU for each rank
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    groups = {1: "self"} | {ranks: dist.new_group(list(range(ranks))) for ranks in range(2, world)}
    if world > 1:
        groups[world] = dist.group.WORLD
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
        if text and device == "cuda":
            torch.cuda.synchronize()  # a device that has failed serves nothing more: the process ends here
    dist.barrier()
    dist.destroy_process_group()


class Pool:
    """`world` processes, joined by torch.distributed; they share GPUs where there are fewer. Where one is lost, all are
    started again, `restarts` times at most."""

    def __init__(self, world, device="cpu", *, method="fork", patience=PATIENCE, restarts=0):
        """Forked, what this process has imported is there at once; it must have started no threads, nor CUDA."""
        self.world, self._device, self._method = world, device, method
        self._patience, self._restarts = patience, restarts
        self._start()

    def _start(self):
        context = multiprocessing.get_context(self._method)
        self._folder = tempfile.TemporaryDirectory()
        store = os.path.join(self._folder.name, "store")
        self._pipes, self._processes, self._lost = [], [], None
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            arguments = (rank, self.world, self._device, store, theirs, self._patience)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, ranks, case, *arguments):
        texts = [self._send(rank, (case, ranks, arguments)) for rank in range(self.world)]
        texts += [self._result(rank) for rank in range(self.world)]
        failures = "\n".join(text for text in texts if text)
        if self._lost:
            failures += f"\n{case.__name__}: {self._lost}"
            for process in self._processes:
                process.kill()
            if self._restarts == 0:  # the other cases can't run either
                pytest.exit(failures, 1)
            self._restarts -= 1
            self._start()
        if failures:
            pytest.fail(failures, pytrace=False)

    def _send(self, rank, case):
        try:
            self._pipes[rank].send(case)
        except BrokenPipeError:
            self._lost = f"the process of rank {rank} has died after the case before"

    def _result(self, rank):
        if not self._pipes[rank].poll(1 if self._lost else self._patience):
            self._lost = f"rank {rank} has said nothing for {self._patience} s"
            return None
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionError):
            self._lost = f"the process of rank {rank} has died"
            return None

    def close(self):
        for rank in range(self.world):
            self._send(rank, (None, 0, ()))
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
