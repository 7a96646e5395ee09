#include "kernel/cudnn/graph.hpp"

#include <cudnn_frontend.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/cuda/check.hpp"
#include "base/fail.hpp"
#include "kernel/cudnn/library.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend looks its symbols up in it
}  // namespace cudnn_frontend

namespace rotunda::cudnn {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Names of a graph's tensors: operands count from 1.
constexpr std::int64_t kLengthsQ = 50, kLengthsK = 51, kFirstOffsets = 100;

constexpr std::array<const char*, kOperands> kNames = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"};

std::int64_t uid(Operand operand) {
  return static_cast<std::int64_t>(operand) + 1;
}

/// Writes the graph of a key.
class GraphWriter {
 public:
  /// Into an empty graph, which may have been told its device: operations copy what is known when they are added.
  GraphWriter(const GraphKey& key, std::shared_ptr<fe::graph::Graph> graph) : key_(key), graph_(std::move(graph)) {
    const auto data = key.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    graph_->set_io_data_type(data)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::int64_t sequences = key[Operand::q].dim[0];
    for (int i = 0; i < key.offset_arrays; ++i) {
      offsets_.push_back(array("offsets" + std::to_string(i), kFirstOffsets + i, sequences + 1));
    }
    if (!key.lengths) return;
    lengths_q_ = array("lengths_q", kLengthsQ, sequences);
    lengths_k_ = array("lengths_k", kLengthsK, sequences);
  }

  void write() { key_.backward ? backward() : forward(); }

 private:
  Tensor array(const std::string& name, std::int64_t id, std::int64_t length) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(id)
                              .set_dim({length, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }

  void describe(fe::graph::Tensor_attributes& tensor, Operand operand) const {
    const TensorKey& key = key_[operand];
    const auto data = key_.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    tensor.set_uid(uid(operand))
        .set_name(kNames[static_cast<std::size_t>(operand)])
        .set_dim({key.dim.begin(), key.dim.end()})
        .set_stride({key.stride.begin(), key.stride.end()})
        .set_data_type(operand == Operand::lse ? fe::DataType_t::FLOAT : data);
    if (key.offsets >= 0) tensor.set_ragged_offset(offsets_[static_cast<std::size_t>(key.offsets)]);
  }

  Tensor input(Operand operand) {
    fe::graph::Tensor_attributes tensor;
    describe(tensor, operand);
    return graph_->tensor(tensor);
  }

  void output(const Tensor& tensor, Operand operand) const { describe(tensor->set_output(true), operand); }

  template <class Attributes>
  void set_options(Attributes& attributes) const {
    attributes.set_attn_scale(static_cast<float>(key_.scale));
    attributes.set_diagonal_alignment(key_.mask.align == Align::top_left ? fe::DiagonalAlignment_t::TOP_LEFT
                                                                         : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    // Its left bound is the first distance that is not seen. Finite bounds are less than the rows.
    if (key_.mask.left != kInfinity) attributes.set_diagonal_band_left_bound(static_cast<int>(key_.mask.left + 1));
    if (key_.mask.right != kInfinity) attributes.set_diagonal_band_right_bound(static_cast<int>(key_.mask.right));
    if (key_.lengths) attributes.set_padding_mask(true).set_seq_len_q(lengths_q_).set_seq_len_kv(lengths_k_);
    if (key_.offset_arrays > 0) {
      attributes.set_max_total_seq_len_q(key_.total_q).set_max_total_seq_len_kv(key_.total_k);
    }
  }

  void forward() {
    auto attributes = fe::graph::SDPA_attributes().set_name("forward").set_generate_stats(true);
    set_options(attributes);
    const Tensor q = input(Operand::q), k = input(Operand::k), v = input(Operand::v);
    const auto [out, lse] = graph_->sdpa(q, k, v, attributes);
    output(out, Operand::out);
    output(lse, Operand::lse);
  }

  void backward() {
    auto attributes = fe::graph::SDPA_backward_attributes().set_name("backward");
    attributes.set_deterministic_algorithm(key_.deterministic);
    set_options(attributes);
    const Tensor q = input(Operand::q), k = input(Operand::k), v = input(Operand::v);
    const Tensor out = input(Operand::out), dout = input(Operand::dout), lse = input(Operand::lse);
    const auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, out, dout, lse, attributes);
    output(dq, Operand::dq);
    output(dk, Operand::dk);
    output(dv, Operand::dv);
  }

  const GraphKey& key_;
  std::shared_ptr<fe::graph::Graph> graph_;
  std::vector<Tensor> offsets_;
  Tensor lengths_q_, lengths_k_;
};

/// A cuDNN handle of a device, this thread's while it lives. Making one allocates, so they are passed on when a thread
/// ends; they are never destroyed, for the driver may be gone by the time statics are.
class Handles {
 public:
  /// The current device must be `device`. @throws Error device
  static cudnnHandle_t of(int device) {
    thread_local Own own;
    cudnnHandle_t& handle = own.handles[device];
    if (handle == nullptr) handle = take(device);
    return handle;
  }

 private:
  struct Own {
    std::map<int, cudnnHandle_t> handles;
    ~Own() {
      const std::lock_guard lock(mutex());
      for (const auto& [device, handle] : handles) {
        if (handle != nullptr) idle().emplace(device, handle);
      }
    }
  };

  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::multimap<int, cudnnHandle_t>& idle() {
    static auto& idle = *new std::multimap<int, cudnnHandle_t>;
    return idle;
  }

 public:
  /// One that no other thread uses, until this one ends.
  static cudnnHandle_t take(int device) {
    {
      const std::lock_guard lock(mutex());
      if (const auto found = idle().find(device); found != idle().end()) {
        cudnnHandle_t handle = found->second;
        idle().erase(found);
        return handle;
      }
    }
    cudnnHandle_t handle = nullptr;
    const auto status = fe::detail::create_handle(&handle);
    if (status != CUDNN_STATUS_SUCCESS) {
      fail(ErrorKind::device, "cudnnCreate failed on cuda:{}: {}", device, fe::detail::get_error_string(status));
    }
    return handle;
  }
};

void open_library() {
  if (library().handle == nullptr) fail(ErrorKind::unsupported, "{}", library().problem);
  static const bool once = [] {
    fe::cudnn_dlhandle = library().handle;
    return true;
  }();
  (void)once;
}

std::optional<std::string> problem_of(fe::error_t error) {
  if (error.is_good()) return std::nullopt;
  return fmt::format("cuDNN {}: {}", version_text(library().version), error.get_message());
}

/// Lowers a written graph and looks for engines, with a handle or for the device that it was told. Compiles nothing.
/// @return cuDNN's reason not to serve it, or nothing
std::optional<std::string> check(fe::graph::Graph& graph, cudnnHandle_t handle) {
  if (auto problem = problem_of(graph.validate())) return problem;
  auto built = handle == nullptr ? graph.build_operation_graph() : graph.build_operation_graph(handle);
  if (auto problem = problem_of(built)) return problem;
  if (auto problem = problem_of(graph.create_execution_plans({fe::HeurMode_t::A}))) return problem;
  return problem_of(graph.check_support());
}

class BuiltPlan final : public Plan {
 public:
  BuiltPlan(const GraphKey& key, std::shared_ptr<fe::graph::Graph> graph)
      : device_(key.device), graph_(std::move(graph)) {
    auto error = graph_->get_workspace_size(workspace_);
    if (error.is_bad()) fail(ErrorKind::internal, "cuDNN's workspace: {}", error.get_message());
  }

  [[nodiscard]] std::int64_t workspace_bytes() const override { return workspace_; }

  void execute(const Bindings& bindings, std::byte* workspace, Stream stream) const override {
    std::unordered_map<std::int64_t, void*> pack;
    for (std::size_t i = 0; i < kOperands; ++i) {
      if (bindings.tensors[i] != nullptr) pack.emplace(static_cast<std::int64_t>(i) + 1, bindings.tensors[i]);
    }
    if (bindings.lengths_q != nullptr) pack.emplace(kLengthsQ, bindings.lengths_q);
    if (bindings.lengths_k != nullptr) pack.emplace(kLengthsK, bindings.lengths_k);
    for (std::size_t i = 0; i < bindings.offsets.size(); ++i) {
      pack.emplace(kFirstOffsets + static_cast<std::int64_t>(i), bindings.offsets[i]);
    }
    const cuda::CurrentDevice current(device_);
    cudnnHandle_t handle = Handles::of(device_);
    const auto status = fe::detail::set_stream(handle, cuda::native(stream));
    if (status != CUDNN_STATUS_SUCCESS) {
      fail(ErrorKind::device, "cudnnSetStream failed: {}", fe::detail::get_error_string(status));
    }
    auto error = graph_->execute(handle, pack, workspace);
    if (error.is_bad()) fail(ErrorKind::device, "cuDNN could not be run: {}", error.get_message());
  }

 private:
  int device_;
  std::shared_ptr<fe::graph::Graph> graph_;
  std::int64_t workspace_ = 0;
};

/// Builds graphs of one device, one at a time: with a handle of its own, which graphs keep.
class Builder {
 public:
  static Builder& of(int device) {
    static auto& mutex = *new std::mutex;
    static auto& builders = *new std::map<int, Builder>;
    const std::lock_guard lock(mutex);
    return builders[device];
  }

  /// @param graph receives a graph that is ready to be built, where nothing is returned
  std::optional<std::string> check(const GraphKey& key, std::shared_ptr<fe::graph::Graph>& graph) {
    const std::lock_guard lock(mutex_);
    const cuda::CurrentDevice current(key.device);
    if (handle_ == nullptr) handle_ = Handles::take(key.device);
    graph = std::make_shared<fe::graph::Graph>();
    GraphWriter(key, graph).write();
    return cudnn::check(*graph, handle_);
  }

  std::optional<std::string> build(const GraphKey& key, fe::graph::Graph& graph) {
    const std::lock_guard lock(mutex_);
    const cuda::CurrentDevice current(key.device);
    return problem_of(graph.build_plans());
  }

 private:
  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
};

/// What is known of a key: first whether it is served, which takes milliseconds, then its plan, which takes longer.
struct Entry {
  std::once_flag checked, built;
  std::shared_ptr<fe::graph::Graph> graph;
  std::optional<std::string> refusal, failure;
  std::unique_ptr<const Plan> plan;
};

/// cuDNN's reason, or that of the frontend's exception; errors of ours pass, and the next call may do better.
template <class Step>
std::optional<std::string> reason_of(Step&& step) {
  try {
    return step();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

Entry& checked_entry(const GraphKey& key) {
  static auto& mutex = *new std::mutex;
  static auto& entries = *new std::map<GraphKey, Entry>;
  open_library();
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex);
    entry = &entries[key];
  }
  std::call_once(entry->checked,
                 [&] { entry->refusal = reason_of([&] { return Builder::of(key.device).check(key, entry->graph); }); });
  return *entry;
}

}  // namespace

const Plan& plan(const GraphKey& key) {
  Entry& entry = checked_entry(key);
  if (entry.refusal) fail(ErrorKind::unsupported, "{} ({})", *entry.refusal, to_text(key));
  std::call_once(entry.built, [&] {
    entry.failure = reason_of([&] { return Builder::of(key.device).build(key, *entry.graph); });
    if (!entry.failure) entry.plan = std::make_unique<BuiltPlan>(key, entry.graph);
  });
  if (entry.failure) fail(ErrorKind::unsupported, "{} ({})", *entry.failure, to_text(key));
  return *entry.plan;
}

std::optional<std::string> refuse(const GraphKey& key) {
  return checked_entry(key).refusal;
}

std::optional<std::string> refuse(const GraphKey& key, const SavedDevice& device) {
  open_library();
  const auto properties = std::make_shared<fe::DeviceProperties>();
  auto error = properties->deserialize({device.properties.begin(), device.properties.end()});
  if (error.is_bad()) fail(ErrorKind::bad_input, "device properties: {}", error.get_message());
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_device_properties(properties).set_sm_version(device.sm_version);
  GraphWriter(key, graph).write();
  return check(*graph, nullptr);
}

std::string to_text(const GraphKey& key) {
  const auto bound = [](std::int64_t value) { return value == kInfinity ? "inf" : std::to_string(value); };
  std::string text = fmt::format("{} {}, mask {} {},{}", key.backward ? "backward" : "forward", to_string(key.dtype),
                                 key.mask.align == Align::top_left ? "top-left" : "bottom-right", bound(key.mask.left),
                                 bound(key.mask.right));
  if (key.deterministic) text += ", deterministic";
  if (key.offset_arrays > 0) text += fmt::format(", ragged in {} and {} rows", key.total_q, key.total_k);
  if (key.lengths) text += ", lengths";
  for (std::size_t i = 0; i < kOperands; ++i) {
    const TensorKey& tensor = key.tensors[i];
    if (tensor.dim[0] == 0) continue;
    text += fmt::format(", {} [{}] strides [{}]", kNames[i], fmt::join(tensor.dim, ","), fmt::join(tensor.stride, ","));
  }
  return text;
}

}  // namespace rotunda::cudnn
