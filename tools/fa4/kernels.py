"""The kernels that are exported: entry points with one flat list of arguments each, and how they are compiled.

Shapes and strides are read at run time, head dims too: a kernel whose tiles are d wide serves all smaller ones, since
what is loaded beyond a row's end is zeros. What is compiled in: dtype, tile widths, deterministic or not.
"""

import dataclasses

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Int32
from quack import layout_utils

import slices
import tiles
from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90
from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90
from flash_attn.cute.utils import AuxData

DTYPES = {"bf16": BFloat16, "fp16": Float16}

# Of a forward call; src/kernel/fa4/tables.hpp has the same.
RESUMES = 1  # the state holds something: read it
LEAVES_STATE = 2  # write the state, not the output


class Forward(FlashAttentionForwardSm90):
    """Begins or resumes the running state of rows, and leaves it in fp32 or gives the output."""

    def mma(self, *args):
        *rest, aux_data, fastdiv_mods = args
        self.state = aux_data.scalars  # the state's tensors travel where scalars of a score function would
        FlashAttentionForwardSm90.mma(self, *rest, AuxData(None, None), fastdiv_mods)

    @cute.jit
    def merge(self, acc, lse, low, old_acc, old_lse, old_low, at, rows, dims):
        """acc, lse, low = the state in memory and this result, by log-sum-exp."""
        for m in cutlass.range_constexpr(cute.size(acc, mode=[0])):
            was, was_low = -Float32.inf, Float32(0.0)
            if at[m, 0][0] < rows:
                was, was_low = old_lse[at[m, 0][0]], old_low[at[m, 0][0]]
            cute.arch.sync_warp()  # four threads read before one of them writes
            top = cutlass.max(was, lse[m])
            top = Float32(0.0) if top == -Float32.inf else top
            a = cute.math.exp((was - top) + was_low)
            b = cute.math.exp(lse[m] - top)
            total = a + b
            more = cute.math.log(total)
            lse[m] = top + more
            virtual = lse[m] - top  # the two-sum of Knuth: what rounding took from top + more
            low[m] = (top - (lse[m] - virtual)) + (more - virtual)
            low[m] = Float32(0.0) if total == Float32(0.0) else low[m]
            scale = Float32(0.0) if total == Float32(0.0) else Float32(1.0) / total
            for v in cutlass.range_constexpr(self.tile_hdimv // 8):
                pair = cute.make_rmem_tensor((2,), Float32)
                pair.fill(0.0)
                if a > Float32(0.0) and at[m, 0][0] < rows and 8 * v < dims:
                    cute.autovec_copy(old_acc[m, (None, v, 0)], pair)
                for i in cutlass.range_constexpr(2):
                    new = acc[m, (i, v, 0)] * (b * scale)
                    new = Float32(0.0) if b == Float32(0.0) else new  # an empty sum may hold anything
                    acc[m, (i, v, 0)] = new + pair[i] * (a * scale)

    @cute.jit
    def epilogue(self, acc_O, lse, mO, mLSE, sO, seqlen, gmem_tiled_copy_O, tma_atom_O, tiled_mma, tidx, m_block,
                 head_idx, batch_idx):
        state_acc, state_low = self.state
        tile = (self.tile_m, self.tile_hdimv)
        thread = tiled_mma.get_slice(tidx)
        at = layout_utils.reshape_acc_to_mn(thread.partition_C(cute.make_identity_tensor(tile)))
        acc = layout_utils.reshape_acc_to_mn(acc_O)
        rows = seqlen.seqlen_q - m_block * self.tile_m
        dims = state_acc.shape[3]

        def statistics(tensor):
            own = seqlen.offset_batch_Q(tensor, batch_idx, dim=2)[None, head_idx]
            return cute.local_tile(own, (self.tile_m,), (m_block,))

        own_acc = cute.domain_offset((seqlen.row, 0), state_acc[seqlen.batch, None, head_idx, None])
        old_acc = layout_utils.reshape_acc_to_mn(thread.partition_C(cute.local_tile(own_acc, tile, (m_block, 0))))
        old_lse, old_low = statistics(mLSE), statistics(state_low)
        low = cute.make_rmem_tensor_like(lse, Float32)
        low.fill(0.0)
        if (seqlen.flags & RESUMES) != 0:
            self.merge(acc, lse, low, old_acc, old_lse, old_low, at, rows, dims)
        if (seqlen.flags & LEAVES_STATE) != 0:
            for m in cutlass.range_constexpr(cute.size(acc, mode=[0])):
                if at[m, 0][0] < rows:
                    for v in cutlass.range_constexpr(self.tile_hdimv // 8):
                        pair = cute.make_rmem_tensor((2,), Float32)
                        for i in cutlass.range_constexpr(2):
                            pair[i] = acc[m, (i, v, 0)]
                        if 8 * v < dims:
                            cute.autovec_copy(pair, old_acc[m, (None, v, 0)])
                    if at[m, 0][1] == 0:
                        old_lse[at[m, 0][0]] = lse[m]
                        old_low[at[m, 0][0]] = low[m]
        else:
            FlashAttentionForwardSm90.epilogue(self, acc_O, lse, mO, mLSE, sO, seqlen, gmem_tiled_copy_O, tma_atom_O,
                                               tiled_mma, tidx, m_block, head_idx, batch_idx)


class AnyRatio:
    """Stands for the number of query heads of a KV head: more than 1 for the compiler. Slice.kv_head divides."""

    def __eq__(self, other):
        return False

    def __gt__(self, other):
        return True

    __hash__ = None


class Turn(Int32):
    """In place of that number: a query head's turn among those of its KV head in this call."""

    def __new__(cls, seqlen):
        made = super().__new__(cls)
        made.seqlen = seqlen
        return made

    def __init__(self, seqlen):
        super().__init__(1)

    def __eq__(self, other):
        return False

    def __gt__(self, other):
        return True

    __hash__ = None

    def __rmod__(self, head):
        return cutlass.min(head, (head + self.seqlen.q_first) % self.seqlen.group)


class Backward(FlashAttentionBackwardSm90):
    """Adds to fp32 sums, whatever the number of heads; or, direct, dK and dV are final and leave in 16 bits."""

    def epilogue_dKV(self, acc_dV, mdV, sV, acc_dK, mdK, sK, seqlen, *rest):
        *rest, divmod_, dk_semaphore, dv_semaphore = rest
        if self.deterministic:
            self.qhead_per_kvhead = Turn(seqlen)

            class Flags:  # indexed [block, None, query head, slice]
                def __init__(self, tensor):
                    self.tensor = tensor

                def __getitem__(self, index):
                    return self.tensor[index[0], index[1], seqlen.kv_head(index[2]), index[3]]

            dk_semaphore, dv_semaphore = Flags(dk_semaphore), Flags(dv_semaphore)
        FlashAttentionBackwardSm90.epilogue_dKV(self, acc_dV, mdV, sV, acc_dK, mdK, sK, seqlen, *rest, divmod_,
                                                dk_semaphore, dv_semaphore)


def _by_heads_and_batch(tensor):
    """(batch, heads, rows) as ((heads, batch), rows): FA4 counts two modes of statistics."""
    (batch, heads, rows), (of_batch, of_head, of_row) = tensor.shape, tensor.stride
    layout = cute.make_layout(((heads, batch), rows), stride=((of_head, of_batch), of_row))
    return cute.make_tensor(tensor.iterator, layout)


def _rows_and_heads(tensor):
    """(batch, rows, heads, dims) as (rows, (heads, batch), dims)."""
    (batch, rows, heads, dims), (of_batch, of_row, of_head, of_dim) = tensor.shape, tensor.stride
    layout = cute.make_layout((rows, (heads, batch), dims), stride=(of_row, (of_head, of_batch), of_dim))
    return cute.make_tensor(tensor.iterator, layout)


class ForwardEntry:
    """Of a launch over tables."""

    def __init__(self, kernel, dims):
        self.kernel, self.dims = kernel, dims

    @cute.jit
    def __call__(self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, acc: cute.Tensor,
                 lse: cute.Tensor, low: cute.Tensor, scale: Float32, cu_q: cute.Tensor, cu_k: cute.Tensor,
                 used_q: cute.Tensor, used_k: cute.Tensor, first: cute.Tensor, owner: cute.Tensor, rows: Int32,
                 stream: cuda.CUstream):
        slices.Grid.of_tables(lse.shape[1], self.dims, rows, first, owner)
        self.run(q, k, v, out, acc, lse, low, scale, cu_q, cu_k, used_q, used_k, Int32(0), stream)

    def run(self, q, k, v, out, acc, lse, low, scale, cu_q, cu_k, used_q, used_k, left, stream):
        turned = _by_heads_and_batch(low)
        low_rows = cute.make_tensor(turned.iterator, cute.select(turned.layout, [1, 0]))
        self.kernel(q, k, v, out, _by_heads_and_batch(lse), scale, cu_q, cu_k, used_q, used_k, None, left,
                    Int32(0), None, None, AuxData(None, (acc, low_rows)), None, None, stream)


class ForwardOneEntry(ForwardEntry):
    """Of a launch over One, whose numbers are the last arguments. `unread` is in the tables' place."""

    @cute.jit
    def __call__(self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, acc: cute.Tensor,
                 lse: cute.Tensor, low: cute.Tensor, scale: Float32, unread: cute.Tensor, batches: Int32,
                 blocks: Int32, rows_q: Int32, rows_k: Int32, right: Int32, q_row: Int32, k_row: Int32, q_sum: Int32,
                 q_sum_step: Int32, k_sum: Int32, k_sum_step: Int32, group: Int32, q_first: Int32, kv_first: Int32,
                 flags: Int32, stream: cuda.CUstream):
        one = slices.One(batches, blocks, rows_q, rows_k, right, q_row, k_row, q_sum, q_sum_step, k_sum,
                         k_sum_step, group, q_first, kv_first, flags)
        slices.Grid.of_one(lse.shape[1], self.dims, one)
        q, k, v, out = (_rows_and_heads(t) for t in (q, k, v, out))
        self.run(q, k, v, out, acc, lse, low, scale, unread, unread, unread, unread, None, stream)


class BackwardEntry:
    """Of a launch over tables."""

    def __init__(self, kernel, dims, direct):
        self.kernel, self.dims, self.direct = kernel, dims, direct

    @cute.jit
    def __call__(self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, dout: cute.Tensor, lse_log2: cute.Tensor,
                 delta: cute.Tensor, dq: cute.Tensor, dk: cute.Tensor, dv: cute.Tensor, scale: Float32,
                 cu_q: cute.Tensor, cu_k: cute.Tensor, used_q: cute.Tensor, used_k: cute.Tensor, first: cute.Tensor,
                 owner: cute.Tensor, turns_q: cute.Tensor, turns_k: cute.Tensor, turns_v: cute.Tensor, rows: Int32,
                 stream: cuda.CUstream):
        slices.Grid.of_tables(delta.shape[0], self.dims, rows, first, owner)
        turns = (turns_q, turns_k, turns_v) if self.kernel.deterministic else (None, None, None)
        self.run(q, k, v, dout, lse_log2, delta, dq, dk, dv, scale, cu_q, cu_k, used_q, used_k, turns, stream)

    def run(self, q, k, v, dout, lse_log2, delta, dq, dk, dv, scale, cu_q, cu_k, used_q, used_k, turns, stream):
        self.kernel.qhead_per_kvhead = 1 if self.direct else AnyRatio()
        self.kernel(q, k, v, dout, lse_log2, delta, dq, dk, dv, scale, cu_q, cu_k, used_q, used_k, Int32(0), Int32(0),
                    *turns, AuxData(None, None), None, None, stream)


class BackwardOneEntry(BackwardEntry):
    """Of a launch over One, whose numbers are the last arguments. `unread` is in the tables' place."""

    @cute.jit
    def __call__(self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, dout: cute.Tensor, lse_log2: cute.Tensor,
                 delta: cute.Tensor, dq: cute.Tensor, dk: cute.Tensor, dv: cute.Tensor, scale: Float32,
                 unread: cute.Tensor, batches: Int32, blocks: Int32, rows_q: Int32, rows_k: Int32, right: Int32,
                 q_row: Int32, k_row: Int32, q_sum: Int32, q_sum_step: Int32, k_sum: Int32,
                 k_sum_step: Int32, group: Int32, q_first: Int32, kv_first: Int32, flags: Int32,
                 stream: cuda.CUstream):
        one = slices.One(batches, blocks, rows_q, rows_k, right, q_row, k_row, q_sum, q_sum_step, k_sum,
                         k_sum_step, group, q_first, kv_first, flags)
        slices.Grid.of_one(delta.shape[0], self.dims, one)
        q, k, v, dout = (_rows_and_heads(t) for t in (q, k, v, dout))
        if cutlass.const_expr(self.direct):
            dk, dv = _rows_and_heads(dk), _rows_and_heads(dv)
        self.run(q, k, v, dout, lse_log2, delta, dq, dk, dv, scale, unread, unread, unread, unread,
                 (None, None, None), stream)


NUMBERS = len(dataclasses.fields(slices.One))

_divisor = slices.backward_module.FastDivmodDivisorV2
slices.backward_module.FastDivmodDivisorV2 = lambda ratio: _divisor(1 if isinstance(ratio, AnyRatio) else ratio)

extent = cute.sym_int


def tensor(dtype, rank, bytes_apart=16, unit=True):
    """Any shape and strides: multiples of `bytes_apart`, with the last axis contiguous if `unit`."""
    apart = max(1, bytes_apart * 8 // dtype.width)
    strides = [cute.sym_int64(divisibility=apart) for _ in range(rank)]
    if unit:
        strides[-1] = 1
    return cute.runtime.make_fake_tensor(dtype, tuple(extent() for _ in range(rank)), stride=tuple(strides),
                                         assumed_align=bytes_apart)


def ints(rank=1):
    return tensor(Int32, rank, 4)


def _compile(entry, *args):
    return cute.compile(entry, *args, cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False))


def forward(dtype, d, d_v, one=False):
    slices.teach(one)
    of = DTYPES[dtype]
    tile = tiles.forward(d, d_v)
    kernel = Forward(of, d, d_v, 1, is_causal=False, is_local=True, pack_gqa=False, tile_m=tile.m_block_size,
                     tile_n=tile.n_block_size, num_stages=2, num_threads=384, Q_in_regs=False,
                     intra_wg_overlap=tile.intra_wg_overlap, mma_pv_is_rs=tile.mma_pv_is_rs, mask_mod=None,
                     score_mod=None, has_aux_tensors=False, q_subtile_factor=1, paged_kv_non_tma=False)
    statistics = lambda: tensor(Float32, 3, 4, unit=False)  # noqa: E731
    rank = 4 if one else 3
    tensors = (*(tensor(of, rank) for _ in range(4)), tensor(Float32, 4), statistics(), statistics())
    if one:
        return _compile(ForwardOneEntry(kernel, (d, d_v)), *tensors, Float32(1.0), ints(), *NUMBERS * (Int32(0),))
    return _compile(ForwardEntry(kernel, (d, d_v)), *tensors, Float32(1.0), *(ints() for _ in range(6)), Int32(0))


def backward(dtype, d, d_v, deterministic=False, direct=False, one=False):
    slices.teach(one)
    of = DTYPES[dtype]
    tile = tiles.backward(d, d_v)
    kernel = Backward(of, d, d_v, 1, False, is_local=True, deterministic=deterministic, tile_m=tile.m_block_size,
                      tile_n=tile.n_block_size, Q_stage=tile.num_stages_Q, dO_stage=tile.num_stages_dO,
                      PdS_stage=tile.num_stages_PdS, SdP_swapAB=tile.SdP_swapAB, dKV_swapAB=tile.dKV_swapAB,
                      dQ_swapAB=tile.dQ_swapAB, AtomLayoutMSdP=tile.AtomLayoutMSdP,
                      AtomLayoutNdKV=tile.AtomLayoutNdKV, AtomLayoutMdQ=tile.AtomLayoutMdQ,
                      num_threads=(tile.num_wg + 1) * 128, V_in_regs=False, score_mod=None, score_mod_bwd=None,
                      mask_mod=None, has_aux_tensors=False, q_subtile_factor=2, dQ_single_wg=tile.dQ_single_wg)
    sums = lambda: tensor(Float32, 2)  # noqa: E731
    rank = 4 if one else 3
    keys = (lambda: tensor(of, rank)) if direct else sums
    tensors = (*(tensor(of, rank) for _ in range(4)), *(sums() for _ in range(3)), keys(), keys())
    if one:
        return _compile(BackwardOneEntry(kernel, (d, d_v), direct), *tensors, Float32(1.0), ints(),
                        *NUMBERS * (Int32(0),))
    return _compile(BackwardEntry(kernel, (d, d_v), direct), *tensors, Float32(1.0), *(ints() for _ in range(6)),
                    *(ints(4) for _ in range(3)), Int32(0))
