#include "rotunda/info.hpp"

#include <fmt/format.h>

#include "cli/build_info.hpp"
#include "cli/commands.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace rotunda::cli {
namespace {

std::string components_text(const std::string& kind) {
  Table table({kind, "", ""}, 3);
  for (const Component& each : components()) {
    if (each.kind == kind) table.add({"  " + each.name, each.available ? "yes" : "no", each.description});
  }
  return table.text();
}

std::string environment_text() {
  Table table({"environment", "", ""}, 3);
  for (const Variable& each : environment_variables()) {
    table.add({"  " + each.name, each.value ? fmt::format("'{}'", *each.value) : "(not set)", each.meaning});
  }
  return table.text();
}

}  // namespace

int info(const Options& options) {
  const auto found = versions();
  print(options, fmt::format("{}, built with {} ({})\n\n{}\n{}\ndevices\n  cpu  {}, {} cores\n\n{}", version_text(),
                             found.at("compiler"), build_options(), components_text("kernel"),
                             components_text("transport"), cpu_name(), cores(), environment_text()));
  return 0;
}

}  // namespace rotunda::cli
