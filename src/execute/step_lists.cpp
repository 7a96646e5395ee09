#include "execute/step_lists.hpp"

#include <cstring>

#include "schedule/step_lists.hpp"

namespace rotunda {

StepLists::StepLists(const std::vector<const Program*>& programs, const Device& device) {
  if (!device.is_cuda()) return;
  std::vector<std::byte> all;
  for (const Program* program : programs) {
    for_each_list(*program, [&](const void* list, std::int64_t bytes) {
      offsets_[list] = static_cast<std::int64_t>(all.size());
      const auto* begin = static_cast<const std::byte*>(list);
      all.insert(all.end(), begin, begin + bytes);
    });
  }
  memory_ = DeviceMemory(device, static_cast<std::int64_t>(all.size()));
  copy_bytes(memory_.data(), all.data(), memory_.bytes(), device, {});
  synchronize(device, {});
}

const Slice* StepLists::on_device(const std::vector<Slice>& slices) const {
  const auto found = offsets_.find(slices.data());
  return found == offsets_.end() ? nullptr : reinterpret_cast<const Slice*>(memory_.data() + found->second);
}

RowList StepLists::rows(const std::vector<RowSpan>& rows) const {
  const auto found = offsets_.find(rows.data());
  const void* device = found == offsets_.end() ? nullptr : memory_.data() + found->second;
  return {rows, static_cast<const RowSpan*>(device)};
}

}  // namespace rotunda
