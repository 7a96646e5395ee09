# cmake -D BUILD=… -D CONSUMER=… -D SCRATCH=… -D GENERATOR=… -D COMPILER=… -P install_test.cmake
set(prefix ${SCRATCH}/prefix)
file(REMOVE_RECURSE ${SCRATCH})

function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
step(${CMAKE_COMMAND} -S ${CONSUMER} -B ${SCRATCH}/build -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER}
     -D CMAKE_PREFIX_PATH=${prefix})
step(${CMAKE_COMMAND} --build ${SCRATCH}/build)
step(${SCRATCH}/build/consumer)
step(${prefix}/bin/rotunda info)

# Headers of include/rotunda and nothing else.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/*)
foreach(header IN LISTS headers)
  if(NOT header MATCHES "^rotunda/[a-z_]+\\.hpp$")
    message(FATAL_ERROR "${header} was installed, which is not a public header")
  endif()
endforeach()
if(NOT headers)
  message(FATAL_ERROR "no header was installed below ${prefix}/include")
endif()
