# Options, and the compiler flags that every target of the project shares.
option(ROTUNDA_TESTS "Build the tests and the examples" ON)
option(ROTUNDA_BATCHES "Compile the tests and the command line in batches of sources: soon from nothing, later after a change" ON)
option(ROTUNDA_WERROR "Treat warnings as errors (for compilers that the project is tested with)" OFF)
option(ROTUNDA_BENCH "Build the micro-benchmarks (Google Benchmark)" OFF)
option(ROTUNDA_FUZZ "Build the fuzz targets (clang only)" OFF)
option(ROTUNDA_PYTHON "Build the Python package's extension module (needs nanobind)" OFF)
option(ROTUNDA_CUDA "Build the CUDA kernels" OFF)
set(ROTUNDA_CUDNN AUTO CACHE STRING "With ROTUNDA_CUDA: build the kernel that calls cuDNN: ON, OFF, or AUTO where it can be")
set(ROTUNDA_FA4 AUTO CACHE STRING "With ROTUNDA_CUDA: build FlashAttention-4's kernels for Hopper: ON, OFF, or AUTO where it can be")
set(ROTUNDA_PORTABLE_ARCHITECTURES 80-virtual CACHE STRING
    "With ROTUNDA_CUDA: what CUDA code is compiled for beside Hopper; 80-virtual is for all later ones")
set(ROTUNDA_SANITIZE "" CACHE STRING "Sanitizers, comma-separated: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# CUDA code needs a compiler for it, no device. All of it is built for Hopper (CMAKE_CUDA_ARCHITECTURES), and what is not
# Hopper's own for others too (cuda_code.cmake).
set(ROTUNDA_WITH_CUDA OFF)
if(ROTUNDA_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "ROTUNDA_CUDA=ON needs a CUDA toolkit (nvcc), and none was found: put nvcc on the PATH or set "
                        "CUDACXX; without CUDA, use the preset cpu")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "GPU architectures to compile for")
  if(CMAKE_VERSION VERSION_LESS 3.26)
    # CMake 3.25 knows no flag for C++20 in CUDA, though nvcc has one since 12.0.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 13 REQUIRED)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(ROTUNDA_WITH_CUDA ON)
  # An optional kernel that lacks what it needs is an error where it was asked for, and else left out with a warning: the
  # file that calls this then ends.
  macro(kernel_is_missing kernel reason)
    string(TOUPPER ROTUNDA_${kernel} kernel_option)
    if(${kernel_option} STREQUAL AUTO)
      message(WARNING "Building without the kernel ${kernel}: ${reason}")
      set(${kernel_option} OFF)
      return()
    endif()
    message(FATAL_ERROR "${reason}; to build without the kernel ${kernel}: -D${kernel_option}=OFF")
  endmacro()
  if(ROTUNDA_CUDNN)
    include(cudnn_frontend)
  endif()
  if(ROTUNDA_FA4)
    include(fa4)
  endif()
endif()

add_library(rotunda_flags INTERFACE)
# {fmt} 9 takes nvcc for a compiler without constexpr, and then fails at its own checks of formats.
target_compile_definitions(rotunda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
target_compile_options(rotunda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr --extended-lambda -lineinfo>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlaps in std::string's own code that are not there.
  target_compile_options(rotunda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(ROTUNDA_WERROR)
  target_compile_options(rotunda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

# Everything is compiled with the sanitizers, whole program or nothing.
if(ROTUNDA_SANITIZE)
  add_compile_options(-fsanitize=${ROTUNDA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # GCC's manual: with sanitizers it may be a false alarm
  endif()
  add_link_options(-fsanitize=${ROTUNDA_SANITIZE})
  add_compile_definitions(ROTUNDA_FEW_TARGETS)  # src/kernel/targets.hpp
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-subobject-linkage)  # takes sources that a batch includes for headers
endif()
# rotunda_soon_compiled(TARGET [LONG_RUNNING]): for the command line and the tests, which cost more to compile than to
# run: less optimised, and several sources at once, since most of a source's time is its headers'. What runs long is
# optimised with sanitizers too.
function(rotunda_soon_compiled target)
  cmake_parse_arguments(ARG "LONG_RUNNING" "" "" ${ARGN})
  set(optimisation -O1)
  if(ROTUNDA_SANITIZE AND NOT ARG_LONG_RUNNING)
    set(optimisation -O0)
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${optimisation}>)
  if(ROTUNDA_BATCHES AND NOT CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    endif()
  endif()
endfunction()
if(ROTUNDA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
