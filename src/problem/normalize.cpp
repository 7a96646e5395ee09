#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/fail.hpp"
#include "problem/defaults.hpp"
#include "problem/keys.hpp"
#include "problem/overlap.hpp"
#include "problem/slice_region.hpp"
#include "problem/slice_text.hpp"

namespace rotunda {
namespace {

using List = std::vector<std::int64_t>;

constexpr int kMaxHeadDim = 512;

std::string shown(const List& list) {
  return printable(fmt::format("{}", fmt::join(list, ",")));
}

void check_heads(Problem& p) {
  if (p.h_kv == 0) p.h_kv = p.h_q;
  if (p.d_v == 0) p.d_v = p.d;
  if (p.h_q < 1) reject("h_q", p.h_q);
  if (p.h_kv < 1) reject("h_kv", p.h_kv);
  if (p.h_q % p.h_kv != 0) reject("h_kv", p.h_kv, fmt::format("does not divide h_q={}, as it must", p.h_q));
  if (p.d < 1 || p.d > kMaxHeadDim) reject("d", p.d);
  if (p.d_v < 1 || p.d_v > kMaxHeadDim) reject("d_v", p.d_v);
  if (p.scale == 0) p.scale = default_scale(p.d);
  if (!is_scale(p.scale)) reject("scale", fmt::format("{}", p.scale));
}

void check_mask(Problem& p) {
  if (p.mask == Mask::causal) p.window.right = 0;
  if (p.window.left < 0 || p.window.right < 0) {
    reject("window", fmt::format("{},{}", p.window.left, p.window.right));
  }
  if (p.prefix < 0) reject("prefix", p.prefix);
  if (p.chunk < 0) reject("chunk", p.chunk);
  if (!p.slices) return;
  const bool bare = p.mask == Mask::none && p.window == Window{} && p.align == Align::top_left && p.prefix == 0 &&
                    p.chunk == 0 && p.lens_q.empty() && p.lens_k.empty() && p.used_q.empty() && p.used_k.empty();
  if (!bare) {
    fail(
        ErrorKind::bad_input,
        "problem: slices say the whole mask: mask, window, align, prefix, chunk, lens_q, lens_k, used_q and used_k may "
        "not stand beside them");
  }
}

void check_lens(std::string_view key, List& lens, std::int64_t b, std::int64_t rows) {
  if (lens.empty()) return;
  if (static_cast<std::int64_t>(lens.size()) != b) {
    reject(key, shown(lens), fmt::format("{} lengths for b={}", lens.size(), b));
  }
  for (std::size_t i = 0; i < lens.size(); ++i) {
    if (lens[i] >= 0 && lens[i] <= rows) continue;
    reject(element_name(key, i), lens[i], fmt::format("a length here is from 0 to {} rows", rows));
  }
  const bool full = std::all_of(lens.begin(), lens.end(), [&](std::int64_t len) { return len == rows; });
  if (full) lens.clear();  // one spelling for one problem
}

void check_dense(Problem& p) {
  for (const auto& [key, list] :
       {std::pair{"cu_q", &p.cu_q}, {"cu_k", &p.cu_k}, {"used_q", &p.used_q}, {"used_k", &p.used_k}}) {
    if (!list->empty()) reject(key, shown(*list), "only for layout=thd");
  }
  if (p.s_k == -1) p.s_k = p.s_q;
  if (p.b < 0) reject("b", p.b);
  if (p.s_q < 0) reject("s_q", p.s_q);
  if (p.s_k < 0) reject("s_k", p.s_k);
  check_lens("lens_q", p.lens_q, p.b, p.s_q);
  check_lens("lens_k", p.lens_k, p.b, p.s_k);
}

void check_offsets(std::string_view key, const List& offsets) {
  if (offsets.front() != 0) reject(element_name(key, 0), offsets.front(), "the first offset is 0");
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] >= offsets[i - 1]) continue;
    reject(element_name(key, i), offsets[i],
           fmt::format("offsets never descend, and the one before is {}", offsets[i - 1]));
  }
}

void check_used(std::string_view key, const List& used, const List& offsets) {
  const std::size_t count = offsets.size() - 1;
  if (used.size() != count) {
    reject(key, shown(used), fmt::format("{} lengths for {} sequences", used.size(), count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t rows = offsets[i + 1] - offsets[i];
    if (used[i] >= 0 && used[i] <= rows) continue;
    reject(element_name(key, i), used[i],
           fmt::format("sequence {} has {} rows, a length here is from 0 to that", i, rows));
  }
}

void check_packed(Problem& p) {
  if (!p.lens_q.empty()) reject("lens_q", shown(p.lens_q), "layout=thd takes used_q");
  if (!p.lens_k.empty()) reject("lens_k", shown(p.lens_k), "layout=thd takes used_k");
  if (p.cu_q.empty()) fail(ErrorKind::bad_input, "problem: layout=thd needs cu_q: {}", find_key("cu_q")->allowed);
  check_offsets("cu_q", p.cu_q);
  if (p.cu_k.empty()) {
    p.cu_k = p.cu_q;
    p.used_k = p.used_k.empty() ? p.used_q : p.used_k;
  }
  check_offsets("cu_k", p.cu_k);
  p.s_q = p.cu_q.back();
  p.s_k = p.cu_k.back();
  if (p.slices) {  // rows of the buffers are all that they need
    p.cu_q = {0, p.s_q};
    p.cu_k = {0, p.s_k};
    p.b = 1;
    return;
  }
  p.b = static_cast<std::int64_t>(p.cu_q.size()) - 1;
  if (p.cu_k.size() != p.cu_q.size()) {
    reject("cu_k", shown(p.cu_k), fmt::format("{} offsets where cu_q has {}", p.cu_k.size(), p.cu_q.size()));
  }
  if (p.used_q.empty()) p.used_q = full_lengths(p.cu_q);
  if (p.used_k.empty()) p.used_k = full_lengths(p.cu_k);
  check_used("used_q", p.used_q, p.cu_q);
  check_used("used_k", p.used_k, p.cu_k);
}

// Fewer elements than kMaxElements in every tensor, an empty one counted as if it had one row.
void check_sizes(const Problem& p) {
  const auto check = [&](const char* tensor, std::initializer_list<std::int64_t> shape) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) {
      if (__builtin_mul_overflow(elements, std::max<std::int64_t>(extent, 1), &elements) || elements >= kMaxElements) {
        fail(ErrorKind::bad_input, "problem: {} [{}] has too many elements, allowed are fewer than 2^62", tensor,
             fmt::join(shape, ", "));
      }
    }
  };
  check("q", {p.batches(), p.s_q, p.h_q, p.d});
  check("k", {p.batches(), p.s_k, p.h_kv, p.d});
  check("v", {p.batches(), p.s_k, p.h_kv, p.d_v});
  check("out", {p.batches(), p.s_q, p.h_q, p.d_v});
}

/// `name`: such as "slices[3]".
[[noreturn]] void reject_slice(const std::string& name, const char* member, std::int64_t value,
                               std::string_view allowed) {
  fail(ErrorKind::bad_input, "problem: {}: {}={}: allowed is {}", name, member, value, allowed);
}

/// No slice begins before its buffer, and ends can be computed.
void check_slice_ranges(const std::vector<Slice>& slices, std::string_view name) {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& s = slices[i];
    for (const auto& [member, value] : {std::pair{"batch", s.batch},
                                        {"q_begin", s.q_begin},
                                        {"q_len", s.q_len},
                                        {"k_begin", s.k_begin},
                                        {"k_len", s.k_len}}) {
      if (value < 0) reject_slice(element_name(name, i), member, value, "at least 0");
    }
    const auto too_far = [](std::int64_t begin, std::int64_t len) {
      return len > kMaxElements || begin > kMaxElements - len;
    };
    if (too_far(s.q_begin, s.q_len)) reject_slice(element_name(name, i), "q_len", s.q_len, "an end of at most 2^62");
    if (too_far(s.k_begin, s.k_len)) reject_slice(element_name(name, i), "k_len", s.k_len, "an end of at most 2^62");
  }
}

// Packed buffers without offsets are as long as the slices say.
void fill_offsets(Problem& p) {
  std::int64_t q_end = 0, k_end = 0;
  for (const Slice& s : *p.slices) {
    q_end = std::max(q_end, s.q_begin + s.q_len);
    k_end = std::max(k_end, s.k_begin + s.k_len);
  }
  if (p.cu_q.empty() && p.cu_k.empty()) p.cu_k = {0, k_end};
  if (p.cu_q.empty()) p.cu_q = {0, q_end};
}

void check_slices(const Problem& p, std::string_view name) {
  for (std::size_t i = 0; i < p.slices->size(); ++i) {
    const Slice& s = (*p.slices)[i];
    const auto refuse = [&](const char* member, std::int64_t value, std::string_view allowed) {
      reject_slice(element_name(name, i), member, value, allowed);
    };
    if (s.batch >= p.batches()) {
      refuse("batch", s.batch, p.layout == Layout::thd ? "0 in layout=thd" : fmt::format("below b={}", p.b));
    }
    if (s.q_begin + s.q_len > p.s_q) {
      refuse("q_begin + q_len", s.q_begin + s.q_len, fmt::format("at most {}, the query rows", p.s_q));
    }
    if (s.k_begin + s.k_len > p.s_k) {
      refuse("k_begin + k_len", s.k_begin + s.k_len, fmt::format("at most {}, the key rows", p.s_k));
    }
  }
  if (const auto overlap = find_overlap(*p.slices)) {
    const auto [a, b] = *overlap;
    fail(ErrorKind::bad_input, "problem: {} {} and {} {} overlap: no (row, key) pair may be counted twice",
         element_name(name, a), print_slice((*p.slices)[a]), element_name("slices", b), print_slice((*p.slices)[b]));
  }
}

}  // namespace

void normalize(Problem& problem) {
  normalize(problem, "slices");
}

void normalize(Problem& problem, std::string_view slices_name) {
  check_heads(problem);
  check_mask(problem);
  if (problem.slices) check_slice_ranges(*problem.slices, slices_name);
  if (problem.layout == Layout::thd) {
    if (problem.slices) fill_offsets(problem);
    check_packed(problem);
  } else {
    check_dense(problem);
  }
  check_sizes(problem);
  if (problem.slices) check_slices(problem, slices_name);
}

}  // namespace rotunda
