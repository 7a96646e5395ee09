# FlashAttention-4's kernels, exported ahead of time by tools/fa4: object files for the target rotunda_kernel, and the
# table of them, exported_kernels.inc. Needs python3 and PyPI while building; no GPU, no torch, and no Python at run time.
#
# Everything made lies in ROTUNDA_FA4_CACHE, in folders named by what it is made from: nothing is made twice.
set(ROTUNDA_FA4_SET default CACHE STRING "Which kernels of FlashAttention-4: small, default or full (docs/kernels/fa4.md)")
set(fa4_cache_default ${CMAKE_BINARY_DIR}/fa4)
if(DEFINED ENV{ROTUNDA_FA4_CACHE})
  set(fa4_cache_default $ENV{ROTUNDA_FA4_CACHE})
endif()
set(ROTUNDA_FA4_CACHE ${fa4_cache_default} CACHE PATH "Where the exporter and what it exported are kept")
set(fa4_tools ${PROJECT_SOURCE_DIR}/tools/fa4)

find_package(Python3 3.10 QUIET COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  kernel_is_missing(fa4 "its kernels are exported by Python 3.10 or later, and there is none")
endif()

# The exporter's packages, in an environment of their own.
set(fa4_made_from ${fa4_tools}/requirements.txt)
file(SHA256 ${fa4_made_from} fa4_packages)
string(SUBSTRING "${fa4_packages}" 0 16 fa4_packages)
set(fa4_venv ${ROTUNDA_FA4_CACHE}/venv-py${Python3_VERSION_MAJOR}.${Python3_VERSION_MINOR}-${fa4_packages})
if(NOT EXISTS ${fa4_venv}/complete)
  message(STATUS "Installing FlashAttention-4's exporter into ${fa4_venv} (340 MB)")
  file(REMOVE_RECURSE ${fa4_venv})
  execute_process(COMMAND ${Python3_EXECUTABLE} -m venv ${fa4_venv} RESULT_VARIABLE result OUTPUT_VARIABLE errors
                  ERROR_VARIABLE errors)
  if(NOT result EQUAL 0)
    kernel_is_missing(fa4 "python3 could not make an environment for the exporter (on Debian: apt-get install python3-venv): ${errors}")
  endif()
  execute_process(COMMAND ${fa4_venv}/bin/pip install --quiet --disable-pip-version-check --no-deps
                          --requirement ${fa4_tools}/requirements.txt
                  RESULT_VARIABLE result ERROR_VARIABLE errors)
  if(NOT result EQUAL 0)
    kernel_is_missing(fa4 "pip could not install the exporter's packages: ${errors}")
  endif()
  file(TOUCH ${fa4_venv}/complete)
endif()

# The objects: one command for each dtype and width, since Python takes a second to start.
file(GLOB fa4_scripts CONFIGURE_DEPENDS ${fa4_tools}/*.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${fa4_scripts} ${fa4_tools}/requirements.txt)
set(fa4_text "${fa4_packages}")
foreach(script IN LISTS fa4_scripts)
  file(SHA256 ${script} hash)
  string(APPEND fa4_text " ${hash}")
endforeach()
string(SHA256 fa4_hash "${fa4_text}")
string(SUBSTRING "${fa4_hash}" 0 16 fa4_hash)
set(fa4_objects_folder ${ROTUNDA_FA4_CACHE}/objects-${fa4_hash})
execute_process(COMMAND ${Python3_EXECUTABLE} ${fa4_tools}/export.py --list ${ROTUNDA_FA4_SET} OUTPUT_VARIABLE fa4_groups
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" fa4_groups "${fa4_groups}")
set(fa4_objects "")
set(fa4_lines "")
foreach(group IN LISTS fa4_groups)
  separate_arguments(names UNIX_COMMAND "${group}")
  list(TRANSFORM names PREPEND ${fa4_objects_folder}/ OUTPUT_VARIABLE paths)
  list(TRANSFORM paths APPEND .o OUTPUT_VARIABLE objects)
  list(TRANSFORM paths APPEND .inc OUTPUT_VARIABLE lines)
  list(GET names 0 first)
  add_custom_command(OUTPUT ${objects} ${lines}
    COMMAND ${fa4_venv}/bin/python -W ignore ${fa4_tools}/export.py ${fa4_objects_folder} ${names}
    COMMENT "Exporting ${first} and the like" VERBATIM)
  list(APPEND fa4_objects ${objects})
  list(APPEND fa4_lines ${lines})
endforeach()
set(fa4_generated ${CMAKE_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${fa4_generated}/kernel/fa4)
add_custom_command(OUTPUT ${fa4_generated}/kernel/fa4/exported_kernels.inc
  COMMAND cat ${fa4_lines} > ${fa4_generated}/kernel/fa4/exported_kernels.inc DEPENDS ${fa4_lines} VERBATIM)

# What exported kernels need at run time, of nvidia-cutlass-dsl (52 KB): its objects go into the library with theirs.
file(GLOB fa4_runtime ${fa4_venv}/lib/python3*/site-packages/nvidia_cutlass_dsl/cu13/lib/libcuda_dialect_runtime_static.a)
set(fa4_runtime_folder ${fa4_venv}/runtime)
if(NOT EXISTS ${fa4_runtime_folder})
  file(MAKE_DIRECTORY ${fa4_runtime_folder})
  execute_process(COMMAND ${CMAKE_AR} x ${fa4_runtime} WORKING_DIRECTORY ${fa4_runtime_folder}
                  COMMAND_ERROR_IS_FATAL ANY)
endif()
file(GLOB fa4_runtime_objects ${fa4_runtime_folder}/*.o)
set_source_files_properties(${fa4_objects} ${fa4_runtime_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
set(fa4_sources ${fa4_objects} ${fa4_runtime_objects} ${fa4_generated}/kernel/fa4/exported_kernels.inc)
