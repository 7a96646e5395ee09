# The headers of cuDNN's C++ frontend, as the interface target rotunda_cudnn_frontend. cuDNN itself is found at run time
# and never linked; what is needed here is cudnn.h of the CUDA toolkit or of an installed cuDNN.
set(cudnn_frontend_version 1.32.0)
set(cudnn_frontend_sha256 c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0)
set(cudnn_frontend_hint "set CUDNN_FRONTEND_INCLUDE to the include folder of cudnn-frontend ${cudnn_frontend_version}")

# The wheel carries the headers; those for one Python and processor are those for all. `problem` receives what went wrong.
function(download_cudnn_frontend folder problem)
  set(wheels ${CMAKE_BINARY_DIR}/cudnn_frontend/wheels)
  file(WRITE ${wheels}/requirements.txt
       "nvidia-cudnn-frontend==${cudnn_frontend_version} --hash=sha256:${cudnn_frontend_sha256}\n")
  find_program(PYTHON3_PROGRAM python3)
  mark_as_advanced(PYTHON3_PROGRAM)
  if(NOT PYTHON3_PROGRAM)
    set(${problem} "cuDNN's frontend can't be downloaded: there is no python3 with pip" PARENT_SCOPE)
    return()
  endif()
  message(STATUS "Downloading cudnn-frontend ${cudnn_frontend_version}")
  execute_process(
    COMMAND ${PYTHON3_PROGRAM} -m pip download --disable-pip-version-check --quiet --no-deps --require-hashes
            --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64
            --dest ${wheels} --requirement ${wheels}/requirements.txt
    RESULT_VARIABLE result ERROR_VARIABLE errors OUTPUT_QUIET)
  file(GLOB wheel ${wheels}/*.whl)
  if(NOT result EQUAL 0 OR NOT wheel)
    set(${problem} "pip could not download nvidia-cudnn-frontend ${cudnn_frontend_version}: ${errors}" PARENT_SCOPE)
    return()
  endif()
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${folder} PATTERNS include/*)
endfunction()

set(CUDNN_FRONTEND_INCLUDE "" CACHE PATH "Include folder of cudnn-frontend; empty: downloaded from PyPI")
set(cudnn_frontend_include ${CUDNN_FRONTEND_INCLUDE})
if(NOT cudnn_frontend_include)
  set(cudnn_frontend_include ${CMAKE_BINARY_DIR}/cudnn_frontend/${cudnn_frontend_version}/include)
  if(NOT EXISTS ${cudnn_frontend_include}/cudnn_frontend.h)
    set(download_problem "")
    download_cudnn_frontend(${CMAKE_BINARY_DIR}/cudnn_frontend/${cudnn_frontend_version} download_problem)
    if(download_problem)
      kernel_is_missing(cudnn "${download_problem}; ${cudnn_frontend_hint}")
    endif()
  endif()
endif()

# Later headers need symbols that the oldest cuDNN served lacks.
set(version_header ${cudnn_frontend_include}/cudnn_frontend_version.h)
if(NOT EXISTS ${version_header})
  kernel_is_missing(cudnn "there is no cudnn_frontend_version.h in ${cudnn_frontend_include}; ${cudnn_frontend_hint}")
endif()
file(READ ${version_header} text)
string(REGEX MATCH "MAJOR_VERSION +([0-9]+)" _ "${text}")
set(found_version ${CMAKE_MATCH_1})
string(REGEX MATCH "MINOR_VERSION +([0-9]+)" _ "${text}")
string(APPEND found_version .${CMAKE_MATCH_1})
string(REGEX MATCH "PATCH_VERSION +([0-9]+)" _ "${text}")
string(APPEND found_version .${CMAKE_MATCH_1})
if(NOT found_version VERSION_EQUAL cudnn_frontend_version)
  kernel_is_missing(cudnn "${cudnn_frontend_include} holds cudnn-frontend ${found_version}; ${cudnn_frontend_hint}")
endif()

find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(CUDNN_INCLUDE)
if(NOT CUDNN_INCLUDE)
  kernel_is_missing(cudnn "cudnn.h was not found in ${CUDAToolkit_INCLUDE_DIRS}: set CUDNN_INCLUDE to its folder")
endif()

add_library(rotunda_cudnn_frontend INTERFACE)
target_include_directories(rotunda_cudnn_frontend SYSTEM INTERFACE ${cudnn_frontend_include} ${CUDNN_INCLUDE})
target_compile_definitions(rotunda_cudnn_frontend INTERFACE NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
                                                            CUDNN_FRONTEND_SKIP_JSON_LIB)
