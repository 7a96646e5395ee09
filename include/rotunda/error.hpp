// Errors: one exception type, whose kind says who can mend it and which exit status the CLI returns.
#pragma once

#include <stdexcept>
#include <string>

namespace rotunda {

enum class ErrorKind {
  bad_input,    ///< the caller's text, file or tensors are wrong
  unsupported,  ///< a right request that nothing here can serve; the message holds every reason
  transport,    ///< a peer is late, dead or disagrees
  device,       ///< a device or its driver failed
  internal,     ///< a fault of Rotunda
};

/// Every error that Rotunda throws. what() is one sentence: what, where, the value, what is allowed.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// "bad input", "unsupported", …
[[nodiscard]] const char* to_string(ErrorKind kind) noexcept;

/// The CLI's exit status: bad_input 2, unsupported 3, transport 4, device 5, internal 70.
[[nodiscard]] int exit_status(ErrorKind kind) noexcept;

}  // namespace rotunda
