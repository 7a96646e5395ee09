// A transport between processes of one host in which the receiver pulls from the sender's memory.
//
// The two sides of an exchange meet on the host, through shared memory: the sender's post says what it offers and where
// it lies, and the receiver, when its post is there too, enqueues the pull and says so. That order matters: nobody's
// stream ever waits for a signal whose writing has not been enqueued yet. The queues of all devices together are then
// an order in which everything can run, whatever streams share a hardware queue and whatever call makes a host wait for
// its device.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/process/mailbox.hpp"
#include "transport/process/mover.hpp"
#include "transport/process/process_end.hpp"

namespace rotunda::process {

class PullTransport final : public ProcessEnd {
 public:
  /// Collective. @throws Error
  PullTransport(std::string name, const ProcessOptions& options, std::unique_ptr<Rendezvous> rendezvous,
                std::unique_ptr<Mailbox> mailbox, std::unique_ptr<Mover> mover);
  ~PullTransport() override;

  [[nodiscard]] std::string name() const override { return name_; }
  void use_stream(Stream stream) override { mover_->use_stream(stream); }
  void post(int id, std::span<const Message> sends, std::span<const Message> receives) override;
  void await(int id) override;
  void await_sent(int id) override;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& text) override;

 private:
  void stop() noexcept override { mover_->stop(); }

  /// What this rank sends to one peer in one exchange.
  struct Sent {
    int peer = 0, slot = 0;
    std::int64_t number = 0;  ///< counts what this rank has offered to the peer, from 1
  };
  /// What this rank receives from one peer in one exchange.
  struct Received {
    int peer = 0, id = 0;
    std::vector<TensorView> views;
    Mark wanted, arrived;
    bool done = false;  ///< the pull is enqueued
  };
  struct Posted {
    std::vector<Sent> sends;
    std::vector<std::shared_ptr<Received>> receives;
    std::vector<Mark> own;  ///< arrivals of messages to itself
    bool sent = false, received = false;
  };
  /// What a peer offers.
  struct Offer {
    int id = 0, slot = 0;
    std::vector<TensorView> views;
    std::string where;
  };
  struct Peer {
    std::string incoming;  ///< bytes that are no whole record yet
    std::deque<Offer> offers;
    std::deque<std::shared_ptr<Received>> wanted;
    std::map<int, int> slots;  ///< of exchanges that this rank sends
    std::int64_t offered = 0, taken = 0;
    std::deque<std::pair<std::int64_t, std::int64_t>> unconfirmed;  ///< messages and bytes of what is not taken
  };
  /// What a wait still lacks: "rank 0 waited … for rank `peer` `what`".
  struct Missing {
    int peer = 0;
    std::string what;
  };

  [[nodiscard]] Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  Posted& find(int id);
  int slot_of(int rank, int id);
  void send_to(int rank, int id, const std::vector<TensorView>& views, Posted& posted);
  void copy_own(const std::vector<TensorView>& from, const std::vector<TensorView>& to, int id, const Mark& mark,
                Posted& posted);
  /// Takes what the others have said, and pulls what can be pulled. True: something happened.
  bool serve();
  void take_records(int rank);
  void take_record(int rank, std::string_view record);
  void pull(int rank, const Offer& offer, Received& received);
  /// Serves until nothing is missing.
  void wait(const std::function<std::optional<Missing>()>& missing);

  std::string name_;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<Mover> mover_;
  std::vector<Peer> peers_;
  std::map<int, Posted> posted_;
};

}  // namespace rotunda::process
