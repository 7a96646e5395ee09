// One rank's end of a group, as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <string>

#include "rotunda/transport.hpp"

namespace rotunda::python {

/// Calls from several threads of Python follow each other.
class Group {
 public:
  explicit Group(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}
  ~Group() {
    const nanobind::gil_scoped_release release;  // threads and devices that it waits for may need Python to get on
    transport_.reset();
  }

  [[nodiscard]] Transport& transport() { return *transport_; }

  /// Runs body(transport) without the GIL, one caller at a time.
  template <class Body>
  auto run(Body&& body) {
    const nanobind::gil_scoped_release release;
    const std::scoped_lock lock(mutex_);
    return body(*transport_);
  }

 private:
  std::unique_ptr<Transport> transport_;
  std::mutex mutex_;
};

void bind_group(nanobind::module_& module);

}  // namespace rotunda::python
