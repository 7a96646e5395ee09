#include "base/fail.hpp"
#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "cli/record.hpp"
#include "cli/session.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/trace.hpp"

namespace rotunda::cli {
namespace {

std::span<const std::byte> bytes_of(const TensorView& view) {
  return {static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.bytes())};
}

void write_outputs(const std::string& path, const Inputs& inputs, const TensorStore& outputs) {
  std::vector<TensorToWrite> tensors;
  const Problem& problem = inputs.problem;
  for (const TensorKind& kind : output_kinds(problem)) {
    tensors.push_back({kind.name, file_code(dtype_of(problem, kind)), file_shape(problem, kind, whole_rows(problem)),
                       bytes_of(outputs.views.*kind.view)});
  }
  write_safetensors(path, std::move(tensors), {{"problem", inputs.problem_text}});
}

}  // namespace

int run(const Options& options) {
  if (options.in.empty()) fail(ErrorKind::bad_input, "--in is missing: a safetensors file with q, k, v");
  const Inputs inputs = read_inputs(options.in, problem_of(options));
  TensorStore outputs;
  outputs.allocate(inputs.problem, whole_rows(inputs.problem), output_kinds(inputs.problem));

  Session session(session_setup(options, inputs.problem), inputs.tensors.views);
  warn_of_idle_flags(options, inputs.problem, &session.plan());
  const double forward = session.forward();
  const double backward = inputs.problem.grad ? session.backward() : 0;
  session.gather(outputs.views);

  if (options.is_first() && !options.out.empty()) write_outputs(options.out, inputs, outputs);
  if (options.is_first() && !options.trace.empty()) write_trace(options.trace, session.reports());
  if (options.is_first() && !options.json.empty()) {
    append_json(options.json, {to_json(record_of("run", inputs.problem_text, options, session.reports()))});
  }
  print(options,
        fmt::format("{} on {}: forward {} ms{}, {} moved, {} workspace a rank at most\n", session.plan().summary(),
                    counted(session.plan().ranks, "rank"), figure(1e3 * forward),
                    inputs.problem.grad ? fmt::format(", backward {} ms", figure(1e3 * backward)) : "",
                    bytes_text(bytes_moved(session.reports())), bytes_text(peak_workspace_bytes(session.reports()))));
  return 0;
}

}  // namespace rotunda::cli
