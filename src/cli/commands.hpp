// The commands. Each prints its results and returns the exit status; errors are thrown.
#pragma once

#include <string>
#include <vector>

#include "cli/options.hpp"

namespace rotunda::cli {

int demo(const Options& options);
int run(const Options& options);
int verify(const Options& options);
int bench(const Options& options);
int explain(const Options& options);
int plan(const Options& options);
int info(const Options& options);

/// The whole program: parses, runs, and turns errors into one sentence on standard error and an exit status.
int main_program(const std::vector<std::string>& arguments);

}  // namespace rotunda::cli
