"""torch.distributed as the carrier of bytes between ranks (the callback transport)."""

import itertools
from datetime import timedelta

import torch
import torch.distributed as dist


class TorchExchange:
    """Sends and receives over a process group of its own, so that nobody else's messages get in between."""

    def __init__(self, process_group, timeout):
        ranks = dist.get_process_group_ranks(process_group)
        self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True, group_desc="rotunda")
        # Ranks give up after `timeout` by themselves; this only ends the thread that still waits then.
        self._timeout = timedelta(seconds=2 * timeout)
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
