# Folders whose CUDA code is for Hopper alone.
set(ROTUNDA_HOPPER_FOLDERS fa4 sm90)

# rotunda_portable_code(files…): compiles the CUDA sources among these for ROTUNDA_PORTABLE_ARCHITECTURES too, but for
# those in folders of Hopper's own. As in CMAKE_CUDA_ARCHITECTURES, `80-real` is code for compute capability 8.0,
# `80-virtual` is PTX, which a driver compiles for that device or any later one when it is first used, and `80` is both.
function(rotunda_portable_code)
  set(flags "")
  foreach(architecture IN LISTS ROTUNDA_PORTABLE_ARCHITECTURES)
    if(NOT architecture MATCHES "^([0-9]+[af]?)(-real|-virtual)?$")
      message(FATAL_ERROR "CUDA architecture \"${architecture}\": allowed is a number, alone or with -real or -virtual")
    endif()
    set(number ${CMAKE_MATCH_1})
    if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
      list(APPEND flags --generate-code=arch=compute_${number},code=sm_${number})
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-real")
      list(APPEND flags --generate-code=arch=compute_${number},code=compute_${number})
    endif()
  endforeach()
  set(sources ${ARGN})
  list(JOIN ROTUNDA_HOPPER_FOLDERS "|" folders)
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  list(FILTER sources EXCLUDE REGEX "/(src|tests)/.*/(${folders})/")
  if(sources AND flags)
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS "${flags}")
  endif()
endfunction()
