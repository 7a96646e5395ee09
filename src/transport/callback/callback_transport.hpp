// The transport whose bytes the host program carries (torch.distributed, say). Who is there, agreements and failures
// are the rendezvous' business, as with the other transports between processes; the host program moves bytes alone.
//
// Views travel through memory of the transport's own on both sides: packed when they are posted, unpacked when they are
// awaited. So neither the host program nor its threads ever touch a tensor, and an error frees them at any moment.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/callback/courier.hpp"
#include "transport/process/process_end.hpp"

namespace rotunda::callback {

class CallbackTransport final : public process::ProcessEnd {
 public:
  CallbackTransport(const ProcessOptions& options, std::unique_ptr<Rendezvous> rendezvous,
                    std::shared_ptr<HostExchange> exchange);
  ~CallbackTransport() override;

  [[nodiscard]] std::string name() const override { return "callback"; }
  void post(int id, std::span<const Message> sends, std::span<const Message> receives) override;
  void await(int id) override;
  void await_sent(int id) override;

 private:
  using Parcels = std::vector<std::shared_ptr<Parcel>>;
  struct Posted {
    Errand errand;
    bool sent = false, received = false;
  };

  /// Why something that is waited for won't come, and how long it may still take where that is wrong.
  struct Reason {
    std::string text;
    std::chrono::milliseconds grace;
  };

  void stop() noexcept override { courier_.stop(); }
  void copy_own(std::span<const Message> sends, std::span<const Message> receives, int id);
  [[nodiscard]] Parcels parcels(int id, std::span<const Message> messages) const;
  Posted& find(int id);
  [[nodiscard]] std::optional<Reason> reason_to_give_up(const Parcel& lacking, const char* action) const;
  /// The sentence of a timeout.
  [[nodiscard]] std::string late(const Parcel& lacking, const char* action) const;
  /// Returns when all parcels are done, or throws: after the timeout "rank 0 waited … for rank 1 `action` exchange 4".
  void wait_for(const Parcels& parcels, const char* action);

  Courier courier_;
  std::map<int, Posted> posted_;
};

}  // namespace rotunda::callback
