#include "group.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <stdexcept>

#include "rotunda/error.hpp"

namespace rotunda::python {

namespace nb = nanobind;

namespace {

/// The exchange of a Python object with send(peer, memoryview), receive(peer, memoryview), wait(ticket) and stop().
class PythonExchange final : public HostExchange {
 public:
  explicit PythonExchange(nb::object object) : object_(std::move(object)) {}
  ~PythonExchange() override {
    if (Py_IsInitialized() == 0) {
      (void)object_.release();  // the interpreter has gone
      return;
    }
    const nb::gil_scoped_acquire acquire;
    object_.reset();
  }

  std::int64_t send(int peer, std::span<const std::byte> bytes) override {
    // What is sent is never written to; Python's tensors know no memory that can only be read.
    return call("send", peer, {const_cast<std::byte*>(bytes.data()), bytes.size()});
  }
  std::int64_t receive(int peer, std::span<std::byte> bytes) override { return call("receive", peer, bytes); }

  void wait(std::int64_t ticket) override {
    guarded([&] { object_.attr("wait")(ticket); });
  }
  void stop() noexcept override {
    try {
      guarded([&] { object_.attr("stop")(); });
    } catch (const std::exception&) {  // it is the end anyway
    }
  }

 private:
  std::int64_t call(const char* method, int peer, std::span<std::byte> bytes) {
    std::int64_t ticket = 0;
    guarded([&] {
      const nb::object memory = nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(bytes.data()),
                                                                  static_cast<Py_ssize_t>(bytes.size()), PyBUF_WRITE));
      ticket = nb::cast<std::int64_t>(object_.attr(method)(peer, memory));
    });
    return ticket;
  }

  /// With the GIL; a Python exception leaves as its text, since it must not outlive the GIL.
  template <class Body>
  static void guarded(Body&& body) {
    const nb::gil_scoped_acquire acquire;
    std::string text;
    try {
      body();
      return;
    } catch (const nb::python_error& error) {
      text = nb::cast<std::string>(nb::str(error.value()));
    }
    throw std::runtime_error(text);
  }

  nb::object object_;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::shared_ptr<Group> make_local(std::optional<int> device) {
  LocalOptions options;
  if (device) options.devices = {*device};
  return std::make_shared<Group>(std::move(make_local_group(1, options).front()));
}

std::shared_ptr<Group> make_callback(int rank, int size, const std::string& address, double timeout,
                                     nb::object exchange) {
  const ProcessOptions options{{rank, size, rank, address, "torch.distributed"}, milliseconds(timeout), Device{}, {}};
  auto bytes = std::make_shared<PythonExchange>(std::move(exchange));
  const nb::gil_scoped_release release;
  return std::make_shared<Group>(make_callback_transport(options, std::move(bytes)));
}

std::shared_ptr<Group> make_process(const std::string& name, int rank, int size, const std::string& address,
                                    double timeout, int device) {
  const ProcessOptions options{
      {rank, size, rank, address, "torch.distributed"}, milliseconds(timeout), cuda_device(device), {}};
  const nb::gil_scoped_release release;
  return std::make_shared<Group>(make_process_transport(name, options));
}

}  // namespace

void bind_group(nb::module_& module) {
  nb::class_<Group>(module, "Group")
      .def_static("local", &make_local, nb::arg("device") = nb::none())
      .def_static("callback", &make_callback)
      .def_static("process", &make_process)
      .def_prop_ro("rank", [](Group& group) { return group.transport().rank(); })
      .def_prop_ro("size", [](Group& group) { return group.transport().size(); })
      .def_prop_ro("transport", [](Group& group) { return group.transport().name(); })
      .def_prop_ro("device", [](Group& group) { return to_string(group.transport().device()); })
      .def("all_gather_text",
           [](Group& group, const std::string& text) {
             return group.run([&](Transport& transport) { return transport.all_gather_text(text); });
           })
      // Not after the mutex: whoever holds it may be waiting for a peer.
      .def(
          "abort", [](Group& group, const std::string& reason) { group.transport().abort(reason); },
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("bytes_sent", [](Group& group) { return group.transport().counters().bytes_sent; });
}

}  // namespace rotunda::python
