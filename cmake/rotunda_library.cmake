# rotunda_library(FOLDER [USES folders…] [LINK targets…]): src/FOLDER as the static library rotunda_FOLDER, every .cpp
# below it. USES names the folders that it may include.
function(rotunda_library folder)
  cmake_parse_arguments(ARG "" "" "USES;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/${folder}/*.cpp)
  add_library(rotunda_${folder} STATIC ${sources})
  target_include_directories(rotunda_${folder} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:include>)
  list(TRANSFORM ARG_USES PREPEND rotunda_)
  target_link_libraries(rotunda_${folder} PUBLIC ${ARG_USES} ${ARG_LINK} PRIVATE $<BUILD_INTERFACE:rotunda_flags>)
endfunction()
