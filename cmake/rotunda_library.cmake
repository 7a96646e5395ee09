# rotunda_library(FOLDER [USES folders…] [LINK targets…]): src/FOLDER as the static library rotunda_FOLDER, every .cpp
# below it. USES names the folders that it may include. A folder without sources is an interface library.
function(rotunda_library folder)
  cmake_parse_arguments(ARG "" "" "USES;LINK" ${ARGN})
  set(target rotunda_${folder})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  list(TRANSFORM ARG_USES PREPEND rotunda_)
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:rotunda_flags>)
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
