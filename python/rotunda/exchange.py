"""torch.distributed as the carrier of bytes between ranks (the callback transport)."""

import itertools
from datetime import timedelta

import torch
import torch.distributed as dist


class TorchExchange:
    """Sends and receives over a process group of its own, so that nobody else's messages get in between."""

    def __init__(self, rank, size, name, timeout):
        # Made by hand, since new_group wants every process of the job to take part.
        store = dist.PrefixStore(f"rotunda/{name}", dist.distributed_c10d._get_default_store())
        # Ranks give up after `timeout` by themselves; this only ends the thread that still waits then.
        self._timeout = timedelta(seconds=2 * timeout)
        self._group = dist.ProcessGroupGloo(store, rank, size, self._timeout)
        self._tickets = itertools.count()
        self._works = {}

    def send(self, peer, memory):
        return self._keep(self._group.send, peer, memory)

    def receive(self, peer, memory):
        return self._keep(self._group.recv, peer, memory)

    def wait(self, ticket):
        self._works.pop(ticket)[0].wait(self._timeout)

    def stop(self):
        """Works of gloo can't be interrupted: they end when the peers do, or after their timeout."""

    def _keep(self, start, peer, memory):
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        ticket = next(self._tickets)
        self._works[ticket] = (start([tensor], peer, 0), tensor)
        return ticket
