// Messages between processes through NCCL's sends and receives, on a stream of the transport's own.
//
// NCCL moves dense memory. A view that is dense in the order [batch, row, head, dim] travels as it lies; the others of
// an exchange are packed into staging memory before, and unpacked after, in one launch each on the same stream. Staging
// belongs to an exchange id, is made when the id is first posted and grows outside captures only.
//
// All ranks post their exchanges in one order, so one communicator and one stream serve them all without a deadlock.
// What the two sides of a message say is not compared: the ranks have agreed on their plans.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/cuda/event_pool.hpp"
#include "transport/nccl/communicator.hpp"
#include "transport/nccl/watchdog.hpp"
#include "transport/process/process_end.hpp"

namespace rotunda::nccl {

class NcclTransport final : public process::ProcessEnd {
 public:
  /// A message with the dense memory that NCCL sees.
  struct Staged {
    int peer = 0;
    TensorView view, dense;
    [[nodiscard]] bool is_staged() const { return view.data != dense.data; }
    [[nodiscard]] std::int64_t bytes() const {
      return dense.elements() * static_cast<std::int64_t>(size_of(dense.dtype));
    }
  };

  /// @throws Error device
  NcclTransport(const ProcessOptions& options, std::unique_ptr<Rendezvous> rendezvous,
                std::shared_ptr<Communicator> communicator);
  ~NcclTransport() override;

  [[nodiscard]] std::string name() const override { return "nccl"; }
  void use_stream(Stream stream) override { compute_ = stream; }
  void post(int id, std::span<const Message> sends, std::span<const Message> receives) override;
  void await(int id) override;
  void await_sent(int id) override;

 private:
  using Mark = std::shared_ptr<cuda::Event>;
  struct Posted {
    Mark done;
    bool has_sends = false, has_receives = false;
    bool sent = false, received = false;
  };

  void stop() noexcept override;
  Posted& find(int id);
  void hold(int id, bool Posted::*awaited);
  /// The messages to and from others; staging is taken in their order. Empty ones don't travel.
  [[nodiscard]] std::vector<Staged> stage(std::span<const Message> messages, std::byte*& memory) const;
  std::byte* staging(int id, std::int64_t bytes);
  void exchange(int id, const std::vector<Staged>& sends, const std::vector<Staged>& receives);
  void check(Result result, const char* call);
  [[nodiscard]] bool is_captured() const;
  Mark record(Stream stream);

  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<cuda::EventPool> events_;
  Stream compute_;
  OwnedStream stream_;
  std::map<int, DeviceMemory> staging_;
  std::vector<DeviceMemory> outgrown_;  ///< captured graphs may still use it
  std::map<int, Posted> posted_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace rotunda::nccl
