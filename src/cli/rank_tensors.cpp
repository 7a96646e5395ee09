#include "cli/rank_tensors.hpp"

namespace rotunda::cli {

void RankTensors::allocate(const Problem& problem, RowCounts rows, const std::vector<TensorKind>& kinds,
                           const Device& device) {
  device_ = device;
  host_.allocate(problem, rows, kinds);
  if (!device.is_cuda()) return;
  for (const TensorKind& kind : kinds) {
    TensorView view = host_.views.*kind.view;
    memory_.emplace_back(device, view.bytes());
    view.data = memory_.back().data();
    device_views_.*kind.view = view;
  }
}

void RankTensors::upload(const std::vector<TensorKind>& kinds) {
  if (!device_.is_cuda()) return;
  for (const TensorKind& kind : kinds) {
    const TensorView& from = host_.views.*kind.view;
    copy_bytes((device_views_.*kind.view).data, from.data, from.bytes(), device_, {});
  }
  synchronize(device_, {});
}

void RankTensors::download(const std::vector<TensorKind>& kinds) const {
  if (!device_.is_cuda()) return;
  for (const TensorKind& kind : kinds) {
    const TensorView& to = host_.views.*kind.view;
    copy_bytes(to.data, (device_views_.*kind.view).data, to.bytes(), device_, {});
  }
  synchronize(device_, {});
}

}  // namespace rotunda::cli
