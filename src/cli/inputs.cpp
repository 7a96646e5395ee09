#include "cli/inputs.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/setup.hpp"

namespace rotunda::cli {
namespace {

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

float nearly_normal(std::uint64_t key, std::uint64_t index) {
  int sum = -1020;
  for (std::uint64_t z = splitmix64(key + index); z != 0; z >>= 8) sum += static_cast<int>(z & 255U);
  return static_cast<float>(sum / 209.0);
}

std::uint16_t bf16_bits(float value) {
  const auto wide = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((wide + 0x7fffU + ((wide >> 16) & 1U)) >> 16);
}

std::uint16_t fp16_bits(float value) {
  if (value == 0) return 0;
  int exponent = 0;
  (void)std::frexp(value, &exponent);  // |value| = m·2^exponent, 0.5 <= m < 1
  exponent = std::max(exponent - 1, -14);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::abs(value), 10 - exponent)));
  return static_cast<std::uint16_t>((std::signbit(value) ? 0x8000 : 0) | (((exponent + 14) << 10) + units));
}

/// Writes a finite value of at most some tens, rounded to nearest even.
void store(DType dtype, void* to, std::int64_t index, float value) {
  switch (dtype) {
    case DType::fp32: static_cast<float*>(to)[index] = value; break;
    case DType::bf16: static_cast<std::uint16_t*>(to)[index] = bf16_bits(value); break;
    case DType::fp16: static_cast<std::uint16_t*>(to)[index] = fp16_bits(value); break;
  }
}

/// Rows [begin, end) of all batch entries, one after the other. Elements are numbered in the order of the view's axes.
void fill_rows(const TensorView& view, std::int64_t begin, std::int64_t end, std::uint64_t key, float gain) {
  auto index = static_cast<std::uint64_t>(begin * view.heads() * view.dim());
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t row = n / view.rows() * view.stride[0] + n % view.rows() * view.stride[1];
    for (std::int64_t head = 0; head < view.heads(); ++head) {
      const std::int64_t at = row + head * view.stride[2];
      for (std::int64_t i = 0; i < view.dim(); ++i) {
        store(view.dtype, view.data, at + i, gain * nearly_normal(key, index++));
      }
    }
  }
}

void fill_random(const TensorView& view, std::uint64_t key, float gain) {
  constexpr std::int64_t kElements = 1 << 20;  // of a thread, at least: its start costs less than they do
  const std::int64_t rows = view.batch() * view.rows();
  const std::int64_t parts = std::clamp<std::int64_t>(view.elements() / kElements, 1, cores());
  std::vector<std::jthread> threads;
  for (std::int64_t part = 1; part < parts; ++part) {
    threads.emplace_back([&, part] { fill_rows(view, rows * part / parts, rows * (part + 1) / parts, key, gain); });
  }
  fill_rows(view, 0, rows / parts, key, gain);
}

/// One tensor of a file, found and checked but for its shape.
const TensorEntry& find_entry(const SafetensorsFile& file, const Problem& problem, const TensorKind& kind) {
  const auto found = file.header().tensors.find(kind.name);
  if (found == file.header().tensors.end()) {
    const std::string_view name = kind.name;
    const char* why = name == "dout"   ? " (the problem has grad=1)"
                      : name == "sink" ? " (the problem has sink=learnable)"
                                       : "";
    fail(ErrorKind::bad_input, "{}: tensor {} is missing{}", file.path(), kind.name, why);
  }
  const DType wanted = dtype_of(problem, kind);
  if (found->second.dtype != file_code(wanted)) {
    fail(ErrorKind::bad_input, "{}: tensor {} has dtype {}, the problem needs {} ({})", file.path(), kind.name,
         found->second.dtype, file_code(wanted), to_string(wanted));
  }
  return found->second;
}

/// Rows of a packed buffer: the file's, if they reach at least to the last offset.
std::int64_t packed_rows(const SafetensorsFile& file, const Problem& problem, const char* name,
                         const std::vector<std::int64_t>& offsets, std::int64_t rows_of_problem) {
  const TensorEntry& entry = find_entry(file, problem, kind_of(name));
  const std::int64_t least = offsets.empty() ? rows_of_problem : offsets.back();
  if (entry.shape.size() == 3 && entry.shape[0] >= least) return entry.shape[0];
  return least;  // the shape check that follows tells what is wrong
}

void check_shape(const SafetensorsFile& file, const Problem& problem, const TensorKind& kind, RowCounts rows) {
  const TensorEntry& entry = find_entry(file, problem, kind);
  const auto wanted = file_shape(problem, kind, rows);
  if (entry.shape == wanted) return;
  fail(ErrorKind::bad_input, "{}: tensor {} has shape {}, the problem with layout {} needs {}", file.path(), kind.name,
       shape_text(entry.shape), to_string(problem.layout), shape_text(wanted));
}

/// A view of the mapped bytes, or of a copy where an element would not be aligned.
void take(const SafetensorsFile& file, const Problem& problem, const TensorKind& kind, TensorStore& store) {
  const auto bytes = file.bytes(find_entry(file, problem, kind));
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % size_of(dtype_of(problem, kind)) == 0;
  if (aligned) {
    // Inputs are read only; views carry no const.
    store.attach(kind, view_of(problem, kind, whole_rows(problem), const_cast<std::byte*>(bytes.data())));
    return;
  }
  store.allocate(problem, whole_rows(problem), {kind});
  if (!bytes.empty()) std::memcpy((store.views.*kind.view).data, bytes.data(), bytes.size());
}

Problem problem_of_file(const SafetensorsFile& file) {
  const auto found = file.header().metadata.find("problem");
  if (found == file.header().metadata.end()) {
    fail(ErrorKind::bad_input, "{}: its metadata has no key `problem`, and --problem was not given", file.path());
  }
  try {
    return parse_problem(found->second);
  } catch (const Error& error) {
    fail(error.kind(), "{}: metadata `problem`: {}", file.path(), error.what());
  }
}

void append_tail(std::vector<std::int64_t>& offsets, std::vector<std::int64_t>& used, std::int64_t rows) {
  if (used.empty()) {
    for (std::size_t i = 1; i < offsets.size(); ++i) used.push_back(offsets[i] - offsets[i - 1]);
  }
  offsets.push_back(rows);
  used.push_back(0);
}

}  // namespace

Problem with_tail(Problem problem, RowCounts rows) {
  if (rows.q == problem.s_q && rows.k == problem.s_k) return problem;
  if (problem.slices) {
    problem.cu_q = {0, rows.q};
    problem.cu_k = {0, rows.k};
  } else {
    append_tail(problem.cu_q, problem.used_q, rows.q);
    append_tail(problem.cu_k, problem.used_k, rows.k);
  }
  problem.s_q = rows.q;
  problem.s_k = rows.k;
  problem.b = static_cast<std::int64_t>(problem.cu_q.size()) - 1;
  normalize(problem);
  return problem;
}

Inputs read_inputs(const std::string& path, const std::optional<Problem>& given) {
  Inputs inputs;
  inputs.file = std::make_unique<SafetensorsFile>(path);
  const SafetensorsFile& file = *inputs.file;
  inputs.problem = given ? *given : problem_of_file(file);
  inputs.problem_text = to_text(inputs.problem);
  Problem& problem = inputs.problem;
  for (const TensorKind& kind : input_kinds(problem)) (void)find_entry(file, problem, kind);
  RowCounts rows = whole_rows(problem);
  if (problem.layout == Layout::thd) {
    rows.q = packed_rows(file, problem, "q", problem.cu_q, rows.q);
    rows.k = packed_rows(file, problem, "k", problem.cu_k, rows.k);
  }
  for (const TensorKind& kind : input_kinds(problem)) check_shape(file, problem, kind, rows);
  if (problem.layout == Layout::thd) problem = with_tail(problem, rows);
  for (const TensorKind& kind : input_kinds(problem)) take(file, problem, kind, inputs.tensors);
  return inputs;
}

Inputs random_inputs(const Problem& problem, std::uint64_t seed) {
  Inputs inputs;
  inputs.problem = problem;
  inputs.problem_text = to_text(problem);
  inputs.tensors.allocate(problem, whole_rows(problem), input_kinds(problem));
  const std::array streams{"q", "k", "v", "dout", "sink"};
  for (std::size_t stream = 0; stream < streams.size(); ++stream) {
    const TensorView& view = inputs.tensors.views.*kind_of(streams[stream]).view;
    if (view.data != nullptr) fill_random(view, splitmix64(16 * seed + stream), stream == 4 ? 2.0F : 1.0F);
  }
  return inputs;
}

}  // namespace rotunda::cli
