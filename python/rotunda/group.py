"""Groups: the ranks that share a sequence, and how bytes travel between them."""

import atexit
import json
import os
import socket
import uuid
from collections import OrderedDict
from datetime import timedelta

import torch
import torch.distributed as dist

from . import _core

_TRANSPORTS = ("auto", "ipc", "nccl", "callback")
_TIMEOUT = 600  # seconds, as PyTorch gives NCCL: a rank may be compiling, or writing a checkpoint
_groups = {}  # by name
_captured = set()  # calls that CUDA graphs replay: their memory stays where it is
_MAX_CALLS = 64  # plans kept for each device; packed batches bring new ones all the time


class Group:
    """The ranks of a context-parallel group.

    group: a ProcessGroup, a DeviceMesh of one or two dimensions, or a pair of process groups (inner, outer) as Megatron
        passes them for a2a+p2p; "self" is this process alone, and None the default group of torch.distributed, or
        "self" where there is none.
    inner: for a2a_p2p, ranks of an a2a group (consecutive ranks of the group). A pair or a mesh says it itself.
    transport: "auto"; on CUDA devices "ipc" (one host) or "nccl"; on CPUs "callback" (torch.distributed, gloo). auto
        takes ipc where every rank can map the others' memory.
    timeout: seconds after which a silent peer is an error (default: ROTUNDA_TIMEOUT, or 600).

    Making one talks to nobody; the first attention on it does (collectively). After an error the group is made anew by
    the next call.
    """

    def __init__(self, group=None, *, inner=0, transport="auto", timeout=None):
        if transport not in _TRANSPORTS:
            raise ValueError(f"transport is '{transport}'; allowed: {', '.join(_TRANSPORTS)}")
        self.process_group, self.inner = _resolve(group, inner)
        self._transport = transport
        self._timeout = float(timeout or os.environ.get("ROTUNDA_TIMEOUT", _TIMEOUT))
        if self.process_group is None:
            self.rank, self.size, name = 0, 1, "self"
        else:
            self.rank = dist.get_rank(self.process_group)
            self.size = dist.get_world_size(self.process_group)
            name = self.process_group.group_name
            if self.rank < 0:
                raise ValueError("this process is not a rank of the group that it passes to rotunda")
        self.name = f"{name}/{self.inner}/{transport}/{self._timeout:g}"
        known = _groups.get(self.name)
        if known is not None and known.process_group is self.process_group:
            self._ends = known._ends  # the same ranks meet once
            self._meetings = known._meetings
        else:
            self._ends = {}
            self._meetings = 0
            _groups[self.name] = self

    @staticmethod
    def of(group):
        """The Group of what a caller passes; the same one every time."""
        if isinstance(group, Group):
            return group
        return _group_of(group)

    @staticmethod
    def named(name):
        return _groups[name]

    def end(self, device):
        """This rank's end for tensors of a device. Collective when it is new."""
        end = self._ends.get(device)
        if end is None:
            end = self._ends[device] = _End(self, device)
        return end

    def abort(self, reason):
        """Tells the other ranks that this one can't go on: they get an error instead of waiting."""
        for end in self._ends.values():
            end.core.abort(str(reason))
        self._ends.clear()

    def __repr__(self):
        return f"rotunda.Group(rank {self.rank} of {self.size}, {self.name})"

    def _connect(self, device):
        """The core's end, and whether its process takes turns with others on a CUDA device."""
        index = None if device.type == "cpu" else device.index
        if self.size == 1:
            return _core.Group.local(index), False
        everyone = self._meet(device)
        name = self._choose_transport(device, everyone)
        address = everyone[0]["unix" if _is_one_host(everyone) else "tcp"]
        if name == "callback":
            from .exchange import TorchExchange

            exchange = TorchExchange(self.rank, self.size, address, self._timeout)
            return _core.Group.callback(self.rank, self.size, address, self._timeout, exchange), False
        core = _core.Group.process(name, self.rank, self.size, address, self._timeout, index)
        return core, name == "ipc" and _share_a_device(everyone)

    def _choose_transport(self, device, everyone):
        """The same on every rank, since all go by what all have said."""
        for rank, each in enumerate(everyone):
            if each["kind"] != device.type:
                raise _core.BadInputError(
                    f"rank {self.rank} of {self} has tensors on {device}, and rank {rank} has its own on {each['kind']}"
                )
        on_host = device.type == "cpu"
        if self._transport == "auto":
            shared = not on_host and _is_one_host(everyone) and _reach_each_other(everyone)
            return "callback" if on_host else "ipc" if shared else "nccl"
        if on_host != (self._transport == "callback"):
            raise _core.UnsupportedError(
                f"transport {self._transport} does not carry tensors on {device}: callback is for those on CPUs, ipc "
                "and nccl for those on CUDA devices"
            )
        return self._transport

    def _meet(self, device):
        """What each rank says of itself. Through the job's store, which has a timeout."""
        self._meetings += 1
        store = dist.PrefixStore(f"rotunda/{self.name}/{self._meetings}", dist.distributed_c10d._get_default_store())
        store.set(str(self.rank), json.dumps(_introduce(device)))
        everyone = []
        for rank in range(self.size):
            try:
                store.wait([str(rank)], timedelta(seconds=self._timeout))
            except Exception as error:  # the class differs between stores
                raise _core.TransportError(
                    f"rank {self.rank} waited {self._timeout:g} s for rank {rank} to call rotunda on {self}"
                ) from error
            everyone.append(json.loads(store.get(str(rank))))
        return everyone


class _End:
    """A rank's end on one device, with the plans that were agreed on over it."""

    def __init__(self, group, device):
        self.group = group
        self.device = device
        self.core, self._takes_turns = group._connect(device)
        self._calls = OrderedDict()
        self._workspace = None
        self._last_stream = None

    def call(self, key, make):
        """The call of a key, made (collectively) where there is none."""
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = make()
            if len(self._calls) > _MAX_CALLS:
                self._calls.popitem(last=False)
        else:
            self._calls.move_to_end(key)
        return found

    def workspace(self, size):
        """Memory for one run. On CPUs it is kept, since fresh pages cost time; CUDA's allocator keeps its own."""
        if size == 0:
            return None
        elements = (size + 3) // 4
        if self.device.type != "cpu":
            return torch.empty(elements, dtype=torch.float32, device=self.device)
        if self._workspace is None or self._workspace.numel() < elements:
            self._workspace = torch.empty(elements, dtype=torch.float32)
        return self._workspace

    def stream(self, call):
        """The current stream's number, for a call that runs now. Calls of a rank follow each other, whatever streams
        they are made on."""
        if self.device.type == "cpu":
            return 0
        number = torch._C._cuda_getCurrentRawStream(self.device.index)
        if number and is_capturing(self.device):  # the default stream, 0, can't be captured
            _captured.add(call)
        elif self._last_stream is None or number != self._last_stream.cuda_stream:
            stream = torch.cuda.current_stream(self.device)
            if self._last_stream is not None:
                stream.wait_stream(self._last_stream)
            self._last_stream = stream
        return number

    def settle(self):
        """After a call. Processes that share a device take turns on it, and what one of them has under way on several
        streams waits for the others': such calls end when the device has run them, one after the other."""
        if self._takes_turns and not is_capturing(self.device):
            self._last_stream.synchronize()

    def failed(self, error):
        """After an error of this rank: nobody else waits for it, and the next call begins anew."""
        self.core.abort(str(error))
        if self.group._ends.get(self.device) is self:
            del self.group._ends[self.device]


def _group_of(group):
    if group is None:
        group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else "self"
    key = tuple(group) if isinstance(group, list) else group
    found = _known.get(key)
    if found is None:
        found = _known[key] = Group(group)
    return found


_known = {}  # Group by what callers pass


def _resolve(group, inner=0):
    """(process group or None for this process alone, ranks of the inner group or 0)"""
    if isinstance(group, str):
        if group != "self":
            raise ValueError(f"group is '{group}'; the only one that has a name is 'self', this process alone")
        return None, 0
    if group is None:
        initialized = dist.is_available() and dist.is_initialized()
        return (dist.group.WORLD if initialized else None), inner
    if isinstance(group, (tuple, list)):
        return _join(*group)
    if hasattr(group, "mesh_dim_names"):  # a DeviceMesh
        if group.ndim == 1:
            return group.get_group(), inner
        if group.ndim == 2:  # (p2p, a2a): a mesh lists its slowest dimension first
            return group._flatten().get_group(), group.size(1)
        raise ValueError(f"a DeviceMesh of {group.ndim} dimensions; allowed: 1, or 2 for (p2p, a2a)")
    return group, inner


def _join(inner, outer):
    """The group of all ranks that share a sequence, from this rank's a2a group and its p2p group."""
    # PyTorch names a group that only its ranks make after how many groups they know.
    mine = (dist.get_process_group_ranks(inner), len(dist.distributed_c10d._world.pg_names))
    everyone = []
    for group in (inner, outer):
        rows = [None] * dist.get_world_size(group)
        dist.all_gather_object(rows, mine, group=group)
        everyone += rows
    ranks = [rank for row, _ in rows for rank in row]
    if ranks == dist.get_process_group_ranks(dist.group.WORLD):
        return dist.group.WORLD, len(mine[0])
    if len({known for _, known in everyone}) > 1 or ranks != sorted(ranks):
        raise ValueError(
            f"the groups of ranks {ranks} can't be joined here: make the group of all of them yourself, a2a ranks next "
            f"to each other, and pass rotunda.Group(that, inner={len(mine[0])})"
        )
    return dist.new_group(ranks, use_local_synchronization=True, group_desc="rotunda a2a_p2p"), len(mine[0])


def is_capturing(device):
    """Whether a CUDA graph is being captured on the device's current stream."""
    if device.type != "cuda":
        return False
    if device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def _introduce(device):
    """What the other ranks need to know of this one before they can connect."""
    said = {"kind": device.type, "host": _host_identity(), **_propose_addresses()}
    if device.type == "cuda":
        there = range(torch.cuda.device_count())
        reached = [i for i in there if i == device.index or torch.cuda.can_device_access_peer(device.index, i)]
        said |= {"device": _device_name(device.index), "reaches": [_device_name(i) for i in reached]}
        said["shares"] = _can_share_memory()
    return said


def _is_one_host(everyone):
    return all(each["host"] == everyone[0]["host"] for each in everyone)


def _reach_each_other(everyone):
    """Whether every rank can map the others' memory: it can be shared, and lies on devices that the rank sees."""
    devices = {each["device"] for each in everyone}
    return all(each["shares"] and devices <= set(each["reaches"]) for each in everyone)


def _share_a_device(everyone):
    return len({each["device"] for each in everyone}) < len(everyone)


def _device_name(index):
    """The same in all processes of a host, whatever CUDA_VISIBLE_DEVICES says (PyTorch 2.5 and later know it)."""
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", index))


def _host_identity():
    """What processes that can meet at a socket in /tmp have in common, and others don't."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    place = os.stat("/tmp")
    return [socket.gethostname(), boot, place.st_dev, place.st_ino]


def _propose_addresses():
    """Where the others find this rank, if it is rank 0: on its host, and from anywhere."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return {"unix": f"unix:/tmp/rotunda-{uuid.uuid4().hex[:16]}.sock", "tcp": f"{socket.gethostname()}:{port}"}


def _can_share_memory():
    """Whether PyTorch's allocator takes memory that processes can share: not a stream-ordered pool's, and not mapped
    piece by piece."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF", "") + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return torch.cuda.get_allocator_backend() == "native" and "expandable_segments:true" not in settings.lower()


@atexit.register
def _close():
    """Leaves all groups in order, while torch.distributed and the interpreter are still there."""
    _captured.clear()
    for group in list(_groups.values()):
        group._ends.clear()
    _groups.clear()
    _known.clear()
