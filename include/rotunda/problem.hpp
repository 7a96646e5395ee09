// A problem: one attention call, described, validated, parsed, printed and hashed.
//
// Masks live here and nowhere else: whatever a problem asks for (causal, windows, padding, documents, prefix, chunks)
// becomes a list of slices with a band (mask_slices), and everything later sees only slices.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rotunda/error.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda {

enum class Mask { none, causal };
enum class Align { top_left, bottom_right };
enum class Sink { none, zero, learnable };
/// Whose rows are meant: those of q, out and their gradients, or those of k, v and theirs.
enum class Side { query, key };

[[nodiscard]] const char* to_string(Sink sink) noexcept;

/// "No bound" for a band edge.
inline constexpr std::int64_t kInfinity = std::numeric_limits<std::int64_t>::max();

/// Query rows [q_begin, q_begin + q_len) and key rows [k_begin, k_begin + k_len) of one batch entry, with a band:
/// row i sees column j (both counted from the slice's first) iff
///     -left <= (k_pos + j) - (q_pos + i) <= right.
/// left and right are signed; kInfinity is no bound. The slices of a query row never overlap in keys.
struct Slice {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t k_begin = 0, k_len = 0;
  std::int64_t q_pos = 0, k_pos = 0;
  std::int64_t left = kInfinity, right = kInfinity;

  bool operator==(const Slice&) const = default;
};

/// Rows [begin, begin + len) of one batch entry.
struct RowSpan {
  std::int64_t batch = 0, begin = 0, len = 0;

  bool operator==(const RowSpan&) const = default;
};

/// Row i sees keys i-left .. i+right around the diagonal.
struct Window {
  std::int64_t left = kInfinity, right = kInfinity;

  bool operator==(const Window&) const = default;
};

/// One attention call. docs/problem.md (and `rotunda --help`) describe each key of the text form. Plain data: fill it
/// in and call normalize(), or use parse_problem(), which does both.
struct Problem {
  DType dtype = DType::bf16;
  Layout layout = Layout::bshd;
  std::int64_t b = 1;              ///< batch entries (dense) or sequences (thd, set by normalize)
  std::int64_t s_q = 0, s_k = -1;  ///< rows of a batch entry (dense; s_k = -1 means s_q) or of the packed buffer (thd,
                                   ///< set by normalize)
  int h_q = 0, h_kv = 0;           ///< heads; h_kv = 0 means h_q
  int d = 0, d_v = 0;              ///< head dims of q, k and of v; d_v = 0 means d
  Mask mask = Mask::none;
  Align align = Align::top_left;
  Window window;
  std::int64_t prefix = 0;                   ///< keys at the start of each sequence that all of its rows see
  std::int64_t chunk = 0;                    ///< 0: off
  std::optional<std::vector<Slice>> slices;  ///< the general mask; excludes mask, window, align, prefix, chunk
  std::vector<std::int64_t> lens_q, lens_k;  ///< dense: visible lengths, b numbers (empty: full)
  std::vector<std::int64_t> cu_q, cu_k;      ///< thd: physical offsets, b + 1 numbers
  std::vector<std::int64_t> used_q, used_k;  ///< thd: visible lengths, b numbers (empty: full)
  double scale = 0;                          ///< softmax scale; 0 means 1/sqrt(d)
  Sink sink = Sink::none;
  bool max_logit = false;
  bool deterministic = false;
  bool grad = false;

  bool operator==(const Problem&) const = default;

  /// Batch entries of the buffers: b for dense layouts, 1 for thd.
  [[nodiscard]] std::int64_t batches() const { return layout == Layout::thd ? 1 : b; }
};

/// Fills in defaults (h_kv, d_v, s_k, cu_k, used_*, scale; a causal mask pins window.right to 0) and validates. One
/// problem has one form: full lens_q, lens_k become empty; thd with slices has cu_q, cu_k = [0, rows] and no used_*.
/// Idempotent. @throws Error bad_input naming the key, the value and what is allowed.
void normalize(Problem& problem);

/// Parses the problem text: `key=value` separated by blanks, or a JSON object. `slices=@file.json` reads that file.
/// The result is normalized. @throws Error bad_input, or unsupported for keys known by name and refused.
[[nodiscard]] Problem parse_problem(std::string_view text);

/// Text that parses to the same problem; keys in a fixed order, defaults left out except `mask=`.
[[nodiscard]] std::string to_text(const Problem& problem);

/// 64-bit hash of to_text (FNV-1a): equal on every rank and machine.
[[nodiscard]] std::uint64_t hash(const Problem& problem);

/// The same kind of problem, made smaller: lengths, offsets, windows, prefix, chunk and slices times `factor`, below 1.
/// What is above 0 stays so, but for visible and packed lengths. @throws Error bad_input where slices then overlap
[[nodiscard]] Problem scaled(Problem problem, double factor);

/// The mask as slices in buffer rows (batch 0 for thd), ordered by batch and query row. Slices with no visible pair
/// are left out. Band edges and positions are small enough that sums of them never overflow.
[[nodiscard]] std::vector<Slice> mask_slices(const Problem& problem);

/// Visible (row, key) pairs of a slice, in closed form; kInfinity where they are more.
[[nodiscard]] std::int64_t visible_pairs(const Slice& slice);

/// The pairs of a list of slices, of any size: for costs.
[[nodiscard]] double count_pairs(const std::vector<Slice>& slices);

/// Query rows that exist: visible lengths without padding (rows that see nothing included), sorted, disjoint.
[[nodiscard]] std::vector<RowSpan> real_query_rows(const Problem& problem);

/// Row ranges of the buffers that belong together (documents; the whole entry for dense layouts), padding included,
/// as offsets [0, …, rows]: where shards like to cut.
[[nodiscard]] std::vector<std::int64_t> document_offsets(const Problem& problem, Side side);

}  // namespace rotunda
