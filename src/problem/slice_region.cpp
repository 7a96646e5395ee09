#include "problem/slice_region.hpp"

#include <algorithm>

namespace rotunda {
namespace {

__extension__ using Wide = __int128;  // sums of a few 64-bit numbers

std::int64_t clamp_to_rows(Wide value) {
  return static_cast<std::int64_t>(std::clamp<Wide>(value, -kMaxElements, kMaxElements));
}

bool is_huge(std::int64_t position) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 40;
  return position <= -kLimit || position >= kLimit;
}

}  // namespace

std::optional<SliceRegion> slice_region(const Slice& slice) {
  if (slice.q_len <= 0 || slice.k_len <= 0) return std::nullopt;
  // column - row of the buffers is this much more than the distance that the band is about
  const Wide shift = (Wide{slice.k_begin} - slice.k_pos) - (Wide{slice.q_begin} - slice.q_pos);
  SliceRegion region;
  region.low = slice.left == kInfinity ? -kMaxElements : clamp_to_rows(shift - slice.left);
  region.high = slice.right == kInfinity ? kMaxElements : clamp_to_rows(shift + slice.right);
  const std::int64_t q_last = slice.q_begin + slice.q_len - 1;
  const std::int64_t k_last = slice.k_begin + slice.k_len - 1;
  // Row r sees columns max(k_begin, r + low) .. min(k_last, r + high); both ends grow with r.
  const Wide first_row = std::max<Wide>(slice.q_begin, Wide{slice.k_begin} - region.high);
  const Wide last_row = std::min<Wide>(q_last, Wide{k_last} - region.low);
  if (region.low > region.high || first_row > last_row) return std::nullopt;
  region.q_begin = static_cast<std::int64_t>(first_row);
  region.q_end = static_cast<std::int64_t>(last_row) + 1;
  region.k_begin = std::max(slice.k_begin, region.q_begin + region.low);
  region.k_end = std::min(k_last, region.q_end - 1 + region.high) + 1;
  return region;
}

bool share_a_pair(const SliceRegion& a, const SliceRegion& b) {
  const std::int64_t q_first = std::max(a.q_begin, b.q_begin), q_last = std::min(a.q_end, b.q_end) - 1;
  const std::int64_t k_first = std::max(a.k_begin, b.k_begin), k_last = std::min(a.k_end, b.k_end) - 1;
  if (q_first > q_last || k_first > k_last) return false;
  // A rectangle holds every difference column - row between those of its corners.
  const std::int64_t low = std::max({a.low, b.low, k_first - q_last});
  const std::int64_t high = std::min({a.high, b.high, k_last - q_first});
  return low <= high;
}

std::optional<Slice> canonical(const Slice& slice) {
  const std::optional<SliceRegion> region = slice_region(slice);
  if (!region) return std::nullopt;
  Slice result;
  result.batch = slice.batch;
  result.q_begin = region->q_begin;
  result.q_len = region->q_end - region->q_begin;
  result.k_begin = region->k_begin;
  result.k_len = region->k_end - region->k_begin;
  if (!is_huge(slice.q_pos) && !is_huge(slice.k_pos)) {
    result.q_pos = slice.q_pos + (region->q_begin - slice.q_begin);
    result.k_pos = slice.k_pos + (region->k_begin - slice.k_begin);
  }
  // low <= (k_begin + j) - (q_begin + i) and -left <= (k_pos + j) - (q_pos + i), likewise for the right
  const Wide corner = Wide{region->k_begin} - region->q_begin;
  const Wide shift = Wide{result.k_pos} - result.q_pos - corner;
  const bool left_cuts = region->low > corner - (result.q_len - 1);
  const bool right_cuts = region->high < corner + (result.k_len - 1);
  if (left_cuts) result.left = static_cast<std::int64_t>(-(region->low + shift));
  if (right_cuts) result.right = static_cast<std::int64_t>(region->high + shift);
  return result;
}

}  // namespace rotunda
