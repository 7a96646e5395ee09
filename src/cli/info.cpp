#include "rotunda/info.hpp"

#include <fmt/format.h>

#include "base/fail.hpp"
#include "cli/build_info.hpp"
#include "cli/calibrate.hpp"
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
  std::string text = fmt::format("  cpu     {}, {}\n", describe(Device{}), counted(cores(), "core"));
  for (int i = 0; i < cuda_device_count(); ++i) text += fmt::format("  cuda:{}  {}\n", i, describe(cuda_device(i)));
  if (cuda_device_count() == 0) text += fmt::format("  cuda    none: {}\n", why_no_cuda());
  return text;
}

/// What plans are timed by.
std::string calibrations_text() {
  const std::string cpu = calibration_text(Device{});
  std::string text;
  if (!cpu.empty()) text += "  cpu\n" + cpu;
  for (int i = 0; i < cuda_device_count(); ++i) {
    const std::string cuda = calibration_text(cuda_device(i));
    if (!cuda.empty()) text += fmt::format("  cuda:{}\n{}", i, cuda);
  }
  if (!text.empty()) return fmt::format("calibration of {}\n{}", calibration_file(), text);
  return "calibration\n  none: plans are made by round figures; rotunda info --calibrate measures this machine, and "
         "keeps\n"
         "  the figures in the folder ROTUNDA_CACHE\n";
}

}  // namespace

int info(const Options& options) {
  if (options.calibrate) calibrate(options);
  const auto found = versions();
  print(options, fmt::format("{}, built with {} ({})\n\n{}\n{}\ndevices\n{}\n{}\n{}", version_text(),
                             found.at("compiler"), build_options(), components_text("kernel"),
                             components_text("transport"), devices_text(), calibrations_text(), environment_text()));
  return 0;
}

}  // namespace rotunda::cli
