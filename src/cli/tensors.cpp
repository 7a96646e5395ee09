#include "cli/tensors.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/fail.hpp"

namespace rotunda::cli {
namespace {

using Rows = TensorKind::Rows;
using Heads = TensorKind::Heads;
using Dim = TensorKind::Dim;

const std::vector<TensorKind> kKinds{
    {"q", &Tensors::q, Rows::q, Heads::q, Dim::d},
    {"k", &Tensors::k, Rows::k, Heads::kv, Dim::d},
    {"v", &Tensors::v, Rows::k, Heads::kv, Dim::d_v},
    {"dout", &Tensors::dout, Rows::q, Heads::q, Dim::d_v},
    {"sink", &Tensors::sink, Rows::none, Heads::q, Dim::head_value},
    {"out", &Tensors::out, Rows::q, Heads::q, Dim::d_v},
    {"lse", &Tensors::lse, Rows::q, Heads::q, Dim::row_statistic},
    {"max_logit", &Tensors::max_logit, Rows::none, Heads::q, Dim::head_value},
    {"dq", &Tensors::dq, Rows::q, Heads::q, Dim::d},
    {"dk", &Tensors::dk, Rows::k, Heads::kv, Dim::d},
    {"dv", &Tensors::dv, Rows::k, Heads::kv, Dim::d_v},
    {"dsink", &Tensors::dsink, Rows::none, Heads::q, Dim::head_value},
};

std::vector<TensorKind> pick(std::initializer_list<const char*> names) {
  std::vector<TensorKind> kinds;
  for (const char* name : names) {
    if (*name != '\0') kinds.push_back(kind_of(name));
  }
  return kinds;
}

}  // namespace

const TensorKind& kind_of(const std::string& name) {
  for (const TensorKind& kind : kKinds) {
    if (name == kind.name) return kind;
  }
  fail(ErrorKind::internal, "no tensor is called {}", name);
}

std::vector<TensorKind> input_kinds(const Problem& problem) {
  return pick({"q", "k", "v", problem.grad ? "dout" : "", problem.sink == Sink::learnable ? "sink" : ""});
}

std::vector<TensorKind> output_kinds(const Problem& problem) {
  const bool grad = problem.grad;
  return pick({"out", "lse", problem.max_logit ? "max_logit" : "", grad ? "dq" : "", grad ? "dk" : "", grad ? "dv" : "",
               grad && problem.sink == Sink::learnable ? "dsink" : ""});
}

RowCounts whole_rows(const Problem& problem) {
  return {problem.s_q, problem.s_k};
}

DType dtype_of(const Problem& problem, const TensorKind& kind) {
  return kind.dim == Dim::d || kind.dim == Dim::d_v ? problem.dtype : DType::fp32;
}

const char* file_code(DType dtype) {
  switch (dtype) {
    case DType::bf16: return "BF16";
    case DType::fp16: return "F16";
    case DType::fp32: return "F32";
  }
  return "?";
}

std::vector<std::int64_t> file_shape(const Problem& problem, const TensorKind& kind, RowCounts rows) {
  const std::int64_t h = kind.heads == Heads::q ? problem.h_q : problem.h_kv;
  const std::int64_t s = kind.rows == Rows::q ? rows.q : rows.k;
  const std::int64_t b = problem.batches();
  const bool packed = problem.layout == Layout::thd;
  if (kind.dim == Dim::head_value) return {h};
  if (kind.dim == Dim::row_statistic) return packed ? std::vector{h, s} : std::vector{b, h, s};
  const std::int64_t d = kind.dim == Dim::d ? problem.d : problem.d_v;
  switch (problem.layout) {
    case Layout::bshd: return {b, s, h, d};
    case Layout::sbhd: return {s, b, h, d};
    case Layout::bhsd: return {b, h, s, d};
    case Layout::thd: break;
  }
  return {s, h, d};
}

TensorView view_of(const Problem& problem, const TensorKind& kind, RowCounts rows, void* data) {
  const std::int64_t h = kind.heads == Heads::q ? problem.h_q : problem.h_kv;
  const std::int64_t s = kind.rows == Rows::q ? rows.q : rows.k;
  const std::int64_t b = problem.batches();
  if (kind.dim == Dim::head_value) return make_row_view(static_cast<float*>(data), 1, 1, h);
  if (kind.dim == Dim::row_statistic) return make_row_view(static_cast<float*>(data), b, s, h);
  return make_view(data, problem.dtype, problem.layout, b, s, h, kind.dim == Dim::d ? problem.d : problem.d_v);
}

std::int64_t checked_bytes(const Problem& problem, RowCounts rows, const std::vector<TensorKind>& kinds) {
  std::int64_t total = 0;
  bool overflow = false;
  for (const TensorKind& kind : kinds) {
    auto bytes = static_cast<std::int64_t>(size_of(dtype_of(problem, kind)));
    for (const std::int64_t extent : file_shape(problem, kind, rows)) {
      overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
    }
    overflow |= __builtin_add_overflow(total, bytes, &total);
  }
  const std::int64_t machine = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  if (overflow)
    fail(ErrorKind::unsupported, "the tensors of [{}] have more bytes than 64 bits can count", to_text(problem));
  if (total > machine) {
    fail(ErrorKind::unsupported, "the tensors of [{}] need {:.1f} GiB, this machine has {:.1f} GiB of memory",
         to_text(problem), static_cast<double>(total) / 0x1p30, static_cast<double>(machine) / 0x1p30);
  }
  return total;
}

void TensorStore::allocate(const Problem& problem, RowCounts rows, const std::vector<TensorKind>& kinds) {
  (void)checked_bytes(problem, rows, kinds);
  for (const TensorKind& kind : kinds) {
    TensorView view = view_of(problem, kind, rows, nullptr);
    // Never null: a view without data stands for a tensor that is not there, an empty one is there.
    const auto bytes = static_cast<std::size_t>(view.bytes());
    memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(1, bytes)));
    view.data = memory_.back().get();
    views.*kind.view = view;
  }
}

}  // namespace rotunda::cli
