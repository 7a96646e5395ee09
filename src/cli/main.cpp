#include <string>
#include <vector>

#include "cli/commands.hpp"

int main(int argc, char** argv) {
  return rotunda::cli::main_program(std::vector<std::string>(argv + 1, argv + argc));
}
