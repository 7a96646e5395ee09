"""FlashAttention-4's SM90 kernels, taught to take a list of slices.

Nothing of FA4 is copied. Its kernels see a batch of packed sequences; here an entry of the batch is a slice: query rows
and key rows that begin anywhere, with a band of its own. Subclasses and replaced names do it:

  Slice      reads a slice from tables, where FA4 reads a sequence's offsets and lengths
  Blocks     bounds a tile's loop by the slice's band, the masks mask by it
  Tma        loads rows of the slice only: tiles are filled with zeros beyond its end, so padding is never read
  arguments  sizes the grid from the tables
"""

from dataclasses import dataclass, fields
from typing import Optional

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync
from quack import copy_utils

import flash_attn.cute.flash_bwd_sm90 as backward_module
import flash_attn.cute.flash_fwd_sm90 as forward_module
from flash_attn.cute.block_info import BlockInfo
from flash_attn.cute.mask import AttentionMask
from flash_attn.cute.seqlen_info import SeqlenInfoQK
from flash_attn.cute.tile_scheduler import (SingleTileLPTScheduler, SingleTileScheduler, SingleTileVarlenScheduler,
                                            TileSchedulerArguments)
from quack.cute_dsl_utils import ParamsBase

# Tables of n slices, int32; src/kernel/fa4/tables.hpp writes them.
#   cu_q, cu_k  first row of each slice as the tensors of q, k, v count them (n + 1 numbers; the last is not read)
#   used_q      n each: rows; first row of the accumulators; batch entry; row in it; head 0 as the tensors count heads
#   used_k      n each: rows; first row of the accumulators; left; right; head 0; then group, q_first, kv_first, flags
# A slice's row i sees its column j iff -left <= j - i - (rows_k - rows_q) <= right.


@dataclass
class One(ParamsBase):
    """One slice of every batch entry, the same in all: numbers in place of tables, nothing to read. Its band has no
    left bound: masks of one side cost less. Tensors are (rows, (heads, batch), dims) and end with the slice's last
    row, so TMA fills up with zeros by itself."""

    batches: Int32
    blocks: Int32
    rows_q: Int32
    rows_k: Int32
    right: Int32
    q_row: Int32
    k_row: Int32
    q_sum: Int32
    q_sum_step: Int32
    k_sum: Int32
    k_sum_step: Int32
    group: Int32
    q_first: Int32
    kv_first: Int32
    flags: Int32


class Heads:
    """A tensor whose last mode before indexing counts heads: an index goes through `place` first."""

    def __init__(self, tensor, place):
        self.tensor, self.place = tensor, place

    def __getitem__(self, index):
        return self.tensor[(*index[:-1], self.place(index[-1]))]


@dataclass(frozen=True)
class Slice(SeqlenInfoQK):
    left: Optional[Int32] = 0
    right: Int32 = 0
    batch: Int32 = 0
    row: Int32 = 0
    q_head: Int32 = 0
    k_head: Int32 = 0
    group: Int32 = 1
    q_first: Int32 = 0
    kv_first: Int32 = 0
    flags: Int32 = 0

    @staticmethod
    def create(batch_idx, seqlen_q_static, seqlen_k_static, mCuSeqlensQ, mCuSeqlensK, mSeqUsedQ, mSeqUsedK,
               mCuTotalMBlocks=None, mCuBlockIdxOffsets=None, tile_m=128, tile_n=128):
        if Grid.one is not None:
            return Slice._of_one(Grid.one_in_kernel, batch_idx, tile_m, tile_n)
        base = SeqlenInfoQK.create(batch_idx, seqlen_q_static, seqlen_k_static, mCuSeqlensQ, mCuSeqlensK, mSeqUsedQ,
                                   mSeqUsedK, tile_m=tile_m, tile_n=tile_n)
        n = mCuSeqlensQ.shape[0] - 1
        own = {field.name: getattr(base, field.name) for field in fields(base)}
        own["padded_offset_q"] = cute.assume(mSeqUsedQ[n + batch_idx], divby=tile_m)
        own["padded_offset_k"] = cute.assume(mSeqUsedK[n + batch_idx], divby=tile_n)
        return Slice(**own, batch=mSeqUsedQ[2 * n + batch_idx], row=mSeqUsedQ[3 * n + batch_idx],
                     q_head=mSeqUsedQ[4 * n + batch_idx], left=mSeqUsedK[2 * n + batch_idx],
                     right=mSeqUsedK[3 * n + batch_idx], k_head=mSeqUsedK[4 * n + batch_idx], group=mSeqUsedK[5 * n],
                     q_first=mSeqUsedK[5 * n + 1], kv_first=mSeqUsedK[5 * n + 2], flags=mSeqUsedK[5 * n + 3])

    @staticmethod
    def _of_one(one, batch, tile_m, tile_n):
        return Slice(offset_q=one.q_row, offset_k=one.k_row,
                     padded_offset_q=cute.assume(one.q_sum + batch * one.q_sum_step, divby=tile_m),
                     padded_offset_k=cute.assume(one.k_sum + batch * one.k_sum_step, divby=tile_n),
                     seqlen_q=one.rows_q, seqlen_k=one.rows_k, m_block_offset=0, block_idx_offset=0, num_n_blocks=0,
                     has_cu_seqlens_q=True, has_cu_seqlens_k=True, has_seqused_q=True, has_seqused_k=True,
                     batch=batch, row=one.q_row, left=None, right=one.right, group=one.group,
                     q_first=one.q_first, kv_first=one.kv_first, flags=one.flags)

    def kv_head(self, head):
        return (head + self.q_first) // self.group - self.kv_first

    def offset_batch_Q(self, mQ, batch_idx, dim, padded=False, ragged=False):
        if padded:  # statistics and accumulators of backward: (rows, heads)
            return super().offset_batch_Q(mQ, batch_idx, dim, padded=True)
        if dim == 2:  # statistics of forward: (rows, (heads, batch))
            return Heads(cute.domain_offset((self.row, 0), mQ), lambda head: (head, self.batch))
        if Grid.one is not None:
            return Heads(_from_row(mQ, self.offset_q, self.seqlen_q, ragged), lambda head: (head, self.batch))
        rows = copy_utils.offset_ragged_tensor(mQ, self.offset_q, self.seqlen_q, ptr_shift=ragged)
        return Heads(rows, lambda head: head + self.q_head)

    def offset_batch_K(self, mK, batch_idx, dim, padded=False, ragged=False, multiple=1):
        if padded:
            rows = super().offset_batch_K(mK, batch_idx, dim, padded=True, multiple=multiple)
            return Heads(rows, self.kv_head)
        if Grid.one is not None:
            rows = _from_row(mK, self.offset_k, self.seqlen_k, ragged)
            return Heads(rows, lambda head: (self.kv_head(head), self.batch))
        rows = copy_utils.offset_ragged_tensor(mK, self.offset_k, self.seqlen_k, ptr_shift=ragged)
        return Heads(rows, lambda head: self.kv_head(head) + self.k_head)


def _from_row(tensor, row, rows, ragged):
    """Of One: a tensor that is loaded from ends where it must; stores are to ragged ones."""
    if ragged:
        return copy_utils.offset_ragged_tensor(tensor, row, rows, ptr_shift=True)
    return cute.domain_offset((row, 0, (0, 0)), tensor)


class Blocks(BlockInfo):
    """Asks FA4's own with the slice's band."""

    def _banded(self, slice_):
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own.update(window_size_left=slice_.left, window_size_right=slice_.right)
        return BlockInfo(**own)

    def get_n_block_min_max(self, slice_, m_block):
        least, end = self._banded(slice_).get_n_block_min_max(slice_, m_block)
        # Forward loads block end - 1 even for rows that see nothing. Rows before a slice are not outside: never -1.
        return least, cutlass.max(end, 1)

    def get_m_block_min_max(self, slice_, n_block):
        return self._banded(slice_).get_m_block_min_max(slice_, n_block)

    def get_n_block_min_causal_local_mask(self, slice_, m_block, least):
        return self._banded(slice_).get_n_block_min_causal_local_mask(slice_, m_block, least)

    def get_n_block_min_before_local_mask(self, slice_, m_block, least):
        return self._banded(slice_).get_n_block_min_before_local_mask(slice_, m_block, least)


def forward_mask(tile_m, tile_n, seqlen_info, window_size_left=None, window_size_right=None, **rest):
    return AttentionMask(tile_m, tile_n, seqlen_info, seqlen_info.left, seqlen_info.right, **rest)


class EdgeMask(AttentionMask):
    """Masks the tiles that an edge of the band or the end of the keys cuts. FA4's backward masks every tile: faster
    where registers suffice."""

    @cute.jit
    def apply_mask(self, acc_S, batch_idx, head_idx, m_block, n_block, thr_mma, mask_seqlen, mask_causal, mask_local,
                   mask_mod, aux_data, fastdiv_mods):
        first = n_block * self.tile_n - m_block * self.tile_m - (self.seqlen_k - self.seqlen_q)  # column - row
        cut = first + self.tile_n - 1 > self.window_size_right or (n_block + 1) * self.tile_n > self.seqlen_k
        if cutlass.const_expr(self.window_size_left is not None):
            cut = cut or first - (self.tile_m - 1) < -self.window_size_left
        if cut:
            AttentionMask.apply_mask(self, acc_S, batch_idx, head_idx, m_block, n_block, thr_mma, mask_seqlen,
                                     mask_causal, mask_local, mask_mod, aux_data, fastdiv_mods)


def backward_mask(tile_m, tile_n, seqlen_info, window_size_left=None, window_size_right=None, **rest):
    few_registers = Grid.dims[0] > 192 or (Grid.dims[0] == 128 and Grid.one is None)
    kind = EdgeMask if few_registers else AttentionMask
    return kind(tile_m, tile_n, seqlen_info, seqlen_info.left, seqlen_info.right, **rest)


class Tma:
    """cpasync, whose loads are of ragged tensors: rows beyond a slice count as outside and become zeros."""

    def __getattr__(self, name):
        return getattr(cpasync, name)

    @staticmethod
    def make_tiled_tma_atom(op, tensor, *rest):
        if isinstance(op, cpasync.CopyBulkTensorTileG2SOp) and Grid.one is None:
            tensor = copy_utils.create_ragged_tensor_for_tma(tensor)
        return cpasync.make_tiled_tma_atom(op, tensor, *rest)


class Grid:
    """What a launch is sized by; an entry point sets it while it is traced."""

    heads = rows = first = owner = dims = one = None
    one_in_kernel = None  # the same numbers as the kernel's own parameters

    @classmethod
    def of_tables(cls, heads, dims, rows, first, owner):
        cls.heads, cls.dims, cls.rows, cls.first, cls.owner, cls.one = heads, dims, rows, first, owner, None

    @classmethod
    def of_one(cls, heads, dims, one):
        cls.heads, cls.dims, cls.one = heads, dims, one


def arguments(num_block, num_head, num_batch, num_splits, seqlen_k, headdim, headdim_v, *, total_q, **rest):
    one = Grid.one
    if one is not None:
        rest.update(mCuSeqlensQ=None, mSeqUsedQ=None)
        return TileSchedulerArguments(one.blocks, Grid.heads, one.batches, num_splits, one.rows_k, *Grid.dims,
                                      total_q=one.rows_q, **rest)
    rest.update(cu_total_m_blocks_ptr=Grid.first, blocks_to_batch_idx_ptr=Grid.owner)
    return TileSchedulerArguments(num_block, Grid.heads, num_batch, num_splits, seqlen_k, *Grid.dims,
                                  total_q=Grid.rows, **rest)


def brings_one(scheduler):
    """A scheduler whose parameters bring One into the kernel: of the kernel's own parameters they alone have a free
    form."""

    class Brings:
        @dataclass
        class Params(ParamsBase):
            own: scheduler.Params
            one: One

        @staticmethod
        def to_underlying_arguments(args):
            return Brings.Params(scheduler.to_underlying_arguments(args), Grid.one)

        @staticmethod
        def get_grid_shape(params):
            return scheduler.get_grid_shape(params.own)

        @staticmethod
        def create(params):
            Grid.one_in_kernel = params.one  # a scheduler is made before its first tile's slice is asked for
            return scheduler.create(params.own)

    return Brings


def teach(one):
    """Replaces the names in FA4's modules, until it is called again: for launches over One or over tables."""
    schedulers = 2 * (SingleTileVarlenScheduler,)
    if one:
        schedulers = (brings_one(SingleTileLPTScheduler), brings_one(SingleTileScheduler))
    for module, mask, scheduler in zip((forward_module, backward_module), (forward_mask, backward_mask), schedulers):
        module.SeqlenInfoQK, module.BlockInfo, module.AttentionMask = Slice, Blocks, mask
        module.TileSchedulerArguments, module.cpasync = arguments, Tma()
        module.SingleTileVarlenScheduler = scheduler
        module.assume_tensor_aligned = lambda tensor: tensor  # strides say so themselves, and some are of two modes
