#include "problem/overlap.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "problem/slice_region.hpp"

namespace rotunda {
namespace {

struct Item {
  SliceRegion region;
  std::int64_t batch = 0;
  std::size_t index = 0;
};

using Pair = std::pair<std::size_t, std::size_t>;

std::optional<Pair> clash(const Item& a, const Item& b) {
  if (!share_a_pair(a.region, b.region)) return std::nullopt;
  return std::minmax(a.index, b.index);
}

// The swept row meets each region in one interval of columns. While no two regions share a pair these intervals keep
// their order from row to row: both ends of an interval stay or move up by one, so to pass its neighbour an interval
// would have to touch it. Hence it is enough to compare regions when they become neighbours.
class Sweep {
 public:
  /// Adds an item at its first row. Rows never go back.
  std::optional<Pair> add(const Item* item) {
    row_ = item->region.q_begin;
    const auto [place, added] = active_.insert(item);
    if (!added) return clash(**place, *item);  // both start at one column of this row
    if (const auto after = std::next(place); after != active_.end()) {
      if (const auto found = clash(*item, **after)) return found;
    }
    return place == active_.begin() ? std::nullopt : clash(**std::prev(place), *item);
  }

  /// Takes an item out after its last row.
  std::optional<Pair> remove(const Item* item) {
    row_ = item->region.q_end - 1;
    const auto after = active_.erase(active_.find(item));
    if (after == active_.begin() || after == active_.end()) return std::nullopt;
    return clash(**std::prev(after), **after);
  }

 private:
  struct Before {
    const std::int64_t* row;
    bool operator()(const Item* a, const Item* b) const { return a->region.first(*row) < b->region.first(*row); }
  };

  std::int64_t row_ = 0;
  std::set<const Item*, Before> active_{Before{&row_}};
};

struct Event {
  std::int64_t batch = 0, row = 0;
  bool begins = false;
  const Item* item = nullptr;
};

}  // namespace

std::optional<Pair> find_overlap(const std::vector<Slice>& slices) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (const auto region = slice_region(slices[i])) items.push_back({*region, slices[i].batch, i});
  }
  std::vector<Event> events;
  for (const Item& item : items) {
    events.push_back({item.batch, item.region.q_begin, true, &item});
    events.push_back({item.batch, item.region.q_end, false, &item});
  }
  // Those that end before a row leave before those that begin at it come. A batch entry leaves nothing behind.
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.batch, a.row, a.begins, a.item) < std::tie(b.batch, b.row, b.begins, b.item);
  });
  Sweep sweep;
  for (const Event& event : events) {
    const auto found = event.begins ? sweep.add(event.item) : sweep.remove(event.item);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace rotunda
