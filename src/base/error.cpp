#include "rotunda/error.hpp"

namespace rotunda {

const char* to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::bad_input: return "bad input";
    case ErrorKind::unsupported: return "unsupported";
    case ErrorKind::transport: return "transport";
    case ErrorKind::device: return "device";
    case ErrorKind::internal: return "internal";
  }
  return "?";
}

int exit_status(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::bad_input: return 2;
    case ErrorKind::unsupported: return 3;
    case ErrorKind::transport: return 4;
    case ErrorKind::device: return 5;
    case ErrorKind::internal: return 70;
  }
  return 70;
}

}  // namespace rotunda
