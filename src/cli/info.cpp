#include "rotunda/info.hpp"

#include <fmt/format.h>

#include "cli/build_info.hpp"
#include "cli/commands.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "rotunda/device.hpp"

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

std::string devices_text() {
  std::string text = fmt::format("  cpu     {}, {} cores\n", cpu_name(), cores());
  for (int i = 0; i < cuda_device_count(); ++i) text += fmt::format("  cuda:{}  {}\n", i, describe(cuda_device(i)));
  if (cuda_device_count() == 0) text += fmt::format("  cuda    none: {}\n", why_no_cuda());
  return text;
}

}  // namespace

int info(const Options& options) {
  const auto found = versions();
  print(options, fmt::format("{}, built with {} ({})\n\n{}\n{}\ndevices\n{}\n{}", version_text(), found.at("compiler"),
                             build_options(), components_text("kernel"), components_text("transport"), devices_text(),
                             environment_text()));
  return 0;
}

}  // namespace rotunda::cli
