# Options, and the compiler flags that every target of the project shares.
option(ROTUNDA_TESTS "Build the tests" ON)
set(ROTUNDA_SANITIZE "" CACHE STRING "Sanitizers, comma-separated: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(rotunda_flags INTERFACE)
target_compile_options(rotunda_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror)
if(ROTUNDA_SANITIZE)
  add_compile_options(-fsanitize=${ROTUNDA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g)
  add_link_options(-fsanitize=${ROTUNDA_SANITIZE})
endif()
