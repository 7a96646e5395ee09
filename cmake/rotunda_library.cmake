# Folders whose sources need CUDA. A build without it takes a library's without_cuda.cpp in their place.
set(ROTUNDA_CUDA_FOLDERS cuda cudnn fa4 sm90 mma ipc nccl)

# rotunda_sources(VARIABLE FOLDER): the sources below src/FOLDER that this build compiles.
function(rotunda_sources variable folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp
                                              ${PROJECT_SOURCE_DIR}/src/${folder}/*.cu)
  if(ROTUNDA_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "/without_cuda\\.cpp$")
    if(NOT ROTUNDA_CUDNN)
      list(FILTER sources EXCLUDE REGEX "/src/.*/cudnn/")
    endif()
    if(NOT ROTUNDA_FA4)
      list(FILTER sources EXCLUDE REGEX "/src/.*/fa4/")
    endif()
  else()
    list(JOIN ROTUNDA_CUDA_FOLDERS "|" folders)
    list(FILTER sources EXCLUDE REGEX "/src/.*/(${folders})/")
  endif()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# rotunda_library(FOLDER [USES folders…] [LINK targets…]): src/FOLDER as the static library rotunda_FOLDER, every source
# below it. USES names the folders that it may include. A folder without sources is an interface library.
function(rotunda_library folder)
  cmake_parse_arguments(ARG "" "" "USES;LINK" ${ARGN})
  set(target rotunda_${folder})
  rotunda_sources(sources ${folder})
  list(TRANSFORM ARG_USES PREPEND rotunda_)
  if(sources)
    add_library(${target} STATIC ${sources})
    rotunda_portable_code(${sources})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:rotunda_flags>)
    if(ROTUNDA_WITH_CUDA)
      target_link_libraries(${target} PUBLIC CUDA::cudart_static)
    endif()
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} ${scope} ${ARG_USES} ${ARG_LINK})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
  install(TARGETS ${target} EXPORT rotunda)
endfunction()
