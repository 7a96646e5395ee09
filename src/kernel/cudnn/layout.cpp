#include "kernel/cudnn/layout.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/fail.hpp"

namespace rotunda::cudnn {
namespace {

constexpr std::int64_t kTile = 128;  // the largest that cuDNN's kernels cut rows and keys into

Side side_of(Operand operand) {
  const bool key = operand == Operand::k || operand == Operand::v || operand == Operand::dk || operand == Operand::dv;
  return key ? Side::key : Side::query;
}

/// Moves a view's first element; scratch has no memory while it is measured.
void move(TensorView& view, std::int64_t elements) {
  if (view.data == nullptr) return;
  view.data = static_cast<std::byte*>(view.data) + elements * static_cast<std::int64_t>(size_of(view.dtype));
}

/// Rows of batch entries that hold all sequences of a ragged call.
struct RaggedBox {
  std::int64_t batch = 0, batches = 0, row = 0, rows = 0;
};

RaggedBox ragged_box(const GroupedCall& call, std::int64_t view_rows, Side side) {
  const RowSpan first = rows_of(call.sequences.front(), side), last = rows_of(call.sequences.back(), side);
  if (first.batch == last.batch) return {first.batch, 1, first.begin, last.begin + last.len - first.begin};
  return {first.batch, last.batch - first.batch + 1, 0, view_rows};
}

/// Lengths that a ragged graph is built for: coarser than those asked for, so that batches of other lengths find it.
std::int64_t roomy(std::int64_t length) {
  const auto n = static_cast<std::uint64_t>(std::max<std::int64_t>(length, 1));
  const auto step = static_cast<std::int64_t>(std::max<std::uint64_t>(64, std::bit_floor(n) / 8));
  return (length + step - 1) / step * step;
}

}  // namespace

std::vector<GroupedCall> served(std::vector<GroupedCall> calls, bool backward) {
  for (GroupedCall& call : calls) {
    const bool tiny = backward && call.longest(Side::query) == 1 && call.longest(Side::key) == 1;
    if (call.form == CallForm::padded || tiny) call.form = CallForm::ragged;
  }
  return calls;
}

TensorView box(const TensorView& view, const GroupedCall& call, Side side) {
  TensorView result = view;
  if (call.form == CallForm::ragged) {
    const RaggedBox rows = ragged_box(call, view.rows(), side);
    result.shape[0] = rows.batches;
    result.shape[1] = rows.rows;
    move(result, rows.batch * view.stride[0] + rows.row * view.stride[1]);
    return result;
  }
  const RowSpan first = rows_of(call.sequences.front(), side);
  result.shape[0] = static_cast<std::int64_t>(call.sequences.size());
  result.shape[1] = call.longest(side);
  result.stride[0] =
      call.step.batch * view.stride[0] + (side == Side::query ? call.step.q : call.step.k) * view.stride[1];
  move(result, first.batch * view.stride[0] + first.begin * view.stride[1]);
  return result;
}

bool covers(const GroupedCall& call, std::int64_t batches, std::int64_t rows, Side side) {
  if (call.form == CallForm::ragged) {
    const RaggedBox found = ragged_box(call, rows, side);
    return found.batches == batches && found.rows == rows;
  }
  const SequenceStep& step = call.step;
  const std::int64_t count = static_cast<std::int64_t>(call.sequences.size());
  const bool all = call.longest(side) == rows && count == batches;
  return all && (count == 1 || (step.batch == 1 && (side == Side::query ? step.q : step.k) == 0));
}

bool is_packed_statistics(const TensorView& view) {
  const std::int64_t rows = view.rows(), heads = view.heads();
  return (rows == 1 || view.stride[1] == 1) && (heads == 1 || view.stride[2] == rows) &&
         (view.batch() == 1 || view.stride[0] == rows * heads);
}

std::vector<HeadRun> head_runs(const HeadMap& map, int q_heads) {
  std::vector<HeadRun> runs;
  for (int head = 0; head < q_heads;) {
    const int kv = map.kv(head);
    int count = 1;
    while (head + count < q_heads && map.kv(head + count) == kv) ++count;
    const bool extends = !runs.empty() && runs.back().q_heads == count * runs.back().kv_heads &&
                         runs.back().kv_begin + runs.back().kv_heads == kv;
    if (extends) {
      runs.back().q_heads += count;
      runs.back().kv_heads += 1;
    } else {
      runs.push_back({head, count, kv, 1});
    }
    head += count;
  }
  return runs;
}

GraphCall::GraphCall(const GroupedCall& call, bool backward, DType dtype, int device) : call_(call) {
  key.device = device;
  key.backward = backward;
  key.dtype = dtype;
  key.mask = call.mask;
  // Without lengths cuDNN refuses windows and bottom-right masks with fewer keys than rows; and in backward it scores
  // the rest of a last tile 0, which overflows where an LSE is below about -88 (versions up to 9.26).
  const bool anchored = call.mask.left != kInfinity || call.mask.align == Align::bottom_right;
  const std::int64_t rows = call.longest(Side::query), keys = call.longest(Side::key);
  const bool partial_tile = rows % kTile != 0 || keys % kTile != 0;
  key.lengths = call.form != CallForm::dense || (anchored && rows > keys) || (backward && partial_tile);
  if (!key.lengths) return;
  for (const Sequence& sequence : call.sequences) {
    lengths_q.push_back(static_cast<int>(sequence.q_len));
    lengths_k.push_back(static_cast<int>(sequence.k_len));
  }
}

void GraphCall::set(Operand operand, const TensorView& view) {
  const Side side = side_of(operand);
  bindings.tensors[static_cast<std::size_t>(operand)] = view.data;
  TensorKey& tensor = key[operand];
  std::array<std::int64_t, 4> shape = view.shape, stride = view.stride;
  if (call_.form == CallForm::ragged) {
    (side == Side::query ? key.total_q : key.total_k) = shape[0] * shape[1];
    tensor.offsets = offsets_of(view, side);
    shape[0] = static_cast<std::int64_t>(call_.sequences.size());
    shape[1] = roomy(call_.longest(side));
    stride[0] = shape[1] * stride[1];  // not used: offsets are
  }
  // What lies in one place has no stride; plans are the same for all.
  if (shape[2] == 1) stride[2] = shape[3];
  if (shape[1] == 1) stride[1] = shape[2] * stride[2];
  if (shape[0] == 1) stride[0] = std::max(shape[1] * stride[1], shape[2] * stride[2]);
  tensor.dim = {shape[0], shape[2], shape[1], shape[3]};
  tensor.stride = {stride[0], stride[2], stride[1], 1};
  const bool packed = operand == Operand::lse && call_.form != CallForm::ragged && is_packed_statistics(view);
  if (packed) tensor.stride = {shape[2] * shape[1], shape[1], 1, 1};  // cuDNN compares these
}

int GraphCall::offsets_of(const TensorView& view, Side side) {
  const OffsetKind kind = {side, view.batch() == 1 ? 0 : view.stride[0], view.stride[1]};
  const auto known = std::find(kinds_.begin(), kinds_.end(), kind);
  const auto index = static_cast<int>(known - kinds_.begin());
  if (known != kinds_.end()) return index;
  kinds_.push_back(kind);
  const RowSpan first = rows_of(call_.sequences.front(), side);
  const std::int64_t first_row = view.batch() == 1 ? first.begin : 0;  // as ragged_box has it
  std::vector<int>& array = offsets.emplace_back();
  const auto add = [&](std::int64_t batch, std::int64_t row) {
    const std::int64_t at = batch * kind.batch_stride + row * kind.row_stride;
    if (at > std::numeric_limits<int>::max()) {
      fail(ErrorKind::unsupported, "cuDNN counts the elements of packed sequences in 32 bits, and one begins at {}",
           at);
    }
    array.push_back(static_cast<int>(at));
  };
  for (const Sequence& sequence : call_.sequences) {
    const RowSpan own = rows_of(sequence, side);
    add(own.batch - first.batch, own.begin - first_row);
  }
  add(view.batch() - 1, view.rows());
  key.offset_arrays = static_cast<int>(offsets.size());
  return index;
}

std::int64_t GraphCall::array_bytes() const {
  const auto sequences = static_cast<std::int64_t>(call_.sequences.size());
  return static_cast<std::int64_t>((2 + kOperands) * sizeof(int)) * (sequences + 1);
}

}  // namespace rotunda::cudnn
