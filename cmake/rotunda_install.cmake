# install(): the libraries, include/rotunda, the CLI, and a package for find_package(rotunda), whose target
# rotunda::rotunda is all that a consumer links.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rotunda)
install(TARGETS rotunda_api EXPORT rotunda)
install(EXPORT rotunda NAMESPACE rotunda:: DESTINATION ${package_dir} FILE rotunda-targets.cmake)
install(DIRECTORY include/rotunda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
if(TARGET rotunda)
  install(TARGETS rotunda)
endif()
foreach(folder IN ITEMS docs examples data bench/peers)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder})
    cmake_path(GET folder PARENT_PATH parent)
    install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/rotunda/${parent} USE_SOURCE_PERMISSIONS
            PATTERN __pycache__ EXCLUDE)
  endif()
endforeach()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/rotunda)

configure_package_config_file(cmake/rotunda-config.cmake.in rotunda-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(rotunda-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/rotunda-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/rotunda-config-version.cmake
        DESTINATION ${package_dir})
